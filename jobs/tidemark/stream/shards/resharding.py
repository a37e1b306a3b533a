"""Deals a stream's state out to another number of shards, or writes it without that of some operators.

It handles one old shard after the other. The result counts only for the newest batch: a driver that has decided a batch
since reshards anew. So resharding can be interrupted at any step and repeated: until the next batch is decided the old
files stay, and they are the state. Files that no entry names afterwards are removed by the next driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import polars as pl

from tidemark.control.files import read
from tidemark.control.folder import Control
from tidemark.model.stream import Stream
from tidemark.storage.fence import Fence
from tidemark.storage.location import put_once
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.shards.sharding import Sharding, ShardingImpossible
from tidemark.stream.startup.load import without
from tidemark.stream.state.files import KEYS, StateFiles, files_of
from tidemark.stream.state.memory import Tables
from tidemark.stream.state.runs import damage_of

log = logging.getLogger("tidemark.stream")

FILE = "state/resharded.json"
"""The file of a control folder with the runs of the new shards."""


@dataclass(frozen=True)
class _Resharded:
    """The runs of new shards, which have the state after batch `batch_id`."""

    batch_id: int
    states: tuple[StateRuns, ...]


def reshard(
    stream: Stream,
    journal: Journal,
    newest: Entry,
    sharding: Sharding | None,
    files_of_shard: Callable[[int], StateFiles],
    say: Callable[[str], None],
    without_operators: Collection[str] = (),
) -> list[StateRuns]:
    """Writes the state after the *newest* entry as runs of new shards.

    Args:
        stream: The stream; it has the new number of shards.
        journal: Its journal.
        newest: The newest entry, which names the old shards.
        sharding: How records are dealt out; None for one shard.
        files_of_shard: Returns the files of a new shard.
        say: Called with a message after each old shard.
        without_operators: Those whose states are left out.

    Returns:
        The runs of each new shard.

    Raises:
        ShardingImpossible: records wait for `max_drift`.
    """
    if sharding is not None:
        _refuse_if_records_wait(stream, newest)
    left_out = {*without_operators, *begun_behind(stream, newest)}
    # StateRuns are never changed in place, so all shards begin with the same one.
    shards = [StateRuns(newest.batch_id)] * stream.shards
    n = len(newest.notes.states)
    for old in range(n):
        # Only one old shard is in memory at a time.
        before = _rows(shards)
        shards = _with_old(_old_shard(stream, journal, newest, old, left_out), shards, sharding, files_of_shard)
        say(f"partitioned the state of {old + 1} of {n} shards: {_rows(shards) - before:,} rows")
    return shards


def begun_behind(stream: Stream, newest: Entry) -> frozenset[str]:
    """Returns the operators, and the sources with records that wait, that begin behind the *newest* entry.

    Their states are left out. They are of another meaning, or of a place that is not read any more. Those of an
    operator that returns are as old as its removal.
    """
    control = Control(stream.control)
    begun = control.begun_behind(newest.batch_id)
    sources = {each.name for each in control.sources() if each.begins_behind(newest.batch_id)}
    return frozenset(begun | {name for name in sources if newest.notes.held(name)})


def states_after(stream: Stream, newest: Entry) -> Sequence[StateRuns] | None:
    """Returns the states after the *newest* entry as `reshard` or `begin` wrote them, or as the entry names them.

    The latter may be of another number of shards. None: they have to be written anew, since something begins.
    """
    if (remembered := remembered_shards(stream, newest)) is not None:
        return remembered
    return None if begun_behind(stream, newest) else newest.notes.states


def write_anew(
    stream: Stream,
    journal: Journal,
    newest: Entry,
    by: Sharding | None,
    say: Callable[[str], None],
    without_operators: Collection[str] = (),
    *,
    check_lease: Callable[[], None],
) -> list[StateRuns]:
    """Has the next driver begin with the state after *newest*, as `reshard` writes it; returns its runs."""
    files = partial(StateFiles, stream, journal, shards=stream.shards, fence=Fence(check_lease))
    runs = reshard(stream, journal, newest, by, files, say, without_operators)
    remember(stream.control, runs, check_lease=check_lease)
    return runs


def _refuse_if_records_wait(stream: Stream, newest: Entry) -> None:
    """Raises ShardingImpossible where records wait for `max_drift` after the *newest* entry."""
    # A driver with `max_drift` left them, and no shard would send them on. Those of a source that begins are dropped.
    dropped = begun_behind(stream, newest)
    for source in stream.sub.outside_sources:
        if source.name not in dropped and (n := newest.notes.held(source.name)):
            held = "1 record is" if n == 1 else f"{n} records are"
            msg = (
                f"{stream.sub.name}: {held} still held for max_drift at {source.name}; start it once with shards = 1, "
                "to release them"
            )
            raise ShardingImpossible(msg)


def _with_old(
    tables: Tables, shards: Sequence[StateRuns], sharding: Sharding | None, files_of_shard: Callable[[int], StateFiles]
) -> list[StateRuns]:
    """Writes *tables* as runs, and returns *shards* with those.

    A shard without rows of *tables* gets no run.
    """
    parts = [tables] if sharding is None else _parts(tables, sharding, len(shards))
    with_old: list[StateRuns] = []
    for number, (runs, part) in enumerate(zip(shards, parts, strict=True)):
        has_rows = any(rows.height for rows in part.values())
        with_old.append(files_of_shard(number).add_run(runs, part) if has_rows else runs)
    return with_old


def _old_shard(
    stream: Stream, journal: Journal, newest: Entry, number: int, without_operators: Collection[str]
) -> Tables:
    """Returns the state of an old shard without that of some operators.

    *number* is that of the shard among those that *newest* names.
    """
    old = newest.notes.states
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    # Their columns may have other types now.
    steps.memory.forget(without_operators)
    StateFiles(stream, journal, number, len(old)).load(steps.memory, old[number], newest.batch_id)
    whole = steps.memory.whole()
    # Every shard has these tables, so only the first one hands them on.
    return without(whole, stream.sub.table_inputs()) if number else whole


def _parts(tables: Tables, sharding: Sharding, shards: int) -> Iterator[Tables]:
    """Yields the part of *tables* that belongs to each shard."""
    # Places are computed once per table and then used for every shard.
    placed = {}
    for place, rows in tables.items():
        kind, _, operator = place.partition("/")
        placed[place] = sharding.placed(shards, operator, rows, KEYS[kind]) if kind in KEYS else None
    for number in range(shards):
        yield {place: _of(rows, placed[place], number) for place, rows in tables.items()}


def _of(rows: pl.DataFrame, placed: pl.Series | None, number: int) -> pl.DataFrame:
    return rows if placed is None else rows.filter(placed == number)


def _rows(shards: Sequence[StateRuns]) -> int:
    return sum(runs.rows for runs in shards)


def remember(control: Path, shards: Sequence[StateRuns], *, check_lease: Callable[[], None]) -> None:
    """Has the next driver begin with *shards*; only the last call counts."""
    _file(control).parent.mkdir(parents=True, exist_ok=True)
    put_once(_file(control), msgspec.json.encode(_Resharded(shards[0].batch_id, tuple(shards))), check=check_lease)


def forget(control: Path) -> None:
    """Has the next driver begin with what the newest journal entry names."""
    _file(control).unlink(missing_ok=True)


def remembered_shards(stream: Stream, newest: Entry) -> tuple[StateRuns, ...] | None:
    """Returns the shards that were made of the state after *newest*.

    None unless they are as many as *stream* has. None, too, where a file of theirs is missing or torn: what *newest*
    names still exists.
    """
    remembered = read(stream.control, FILE, lambda content: msgspec.convert(content, _Resharded))
    if remembered is None or remembered.batch_id != newest.batch_id or len(remembered.states) != stream.shards:
        return None
    for path in files_of(stream.control, remembered.states):
        if found := damage_of(path):
            log.warning("%s, written by `tidemark reshard` or `begin`: %s; writing the state again", path, found)
            return None
    log.info("starting with %d shards written by `tidemark reshard` or `begin`", len(remembered.states))
    return remembered.states


def _file(control: Path) -> Path:
    return control / FILE
