"""Deals the state of a stream out to another number of shards, or rewrites it without some operators.

One old shard is handled after the other. The new files are the state after the newest batch only: if a driver decides
another batch, they are out of date and the state is dealt out again. The old files stay the state until the next batch
is decided, so resharding can be interrupted at any step, and repeated. The next driver removes files that no entry
names.
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
from tidemark.model.settings.lengths import counted
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
        sharding: How keys are dealt out to shards; None for one shard.
        files_of_shard: Returns the files of a new shard by its number.
        say: Called with a message after each old shard.
        without_operators: Operators whose states are left out.

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
        before = _rows(shards)
        # The states of an old shard have no name here, so that they are gone when the next old shard is loaded.
        shards = _add_old_shard(
            _load_old_shard(stream, journal, newest, old, left_out), shards, sharding, files_of_shard
        )
        say(f"partitioned the state of {old + 1} of {n} shards: {_rows(shards) - before:,} rows")
    return shards


def begun_behind(stream: Stream, newest: Entry) -> frozenset[str]:
    """Returns the operators, and the sources with waiting records, that begin anew after the *newest* entry.

    Their old states are of no use: the topology file gives the operator another meaning now, or the source reads
    something else. If an operator was removed and has come back, its states are as old as its removal.
    """
    control = Control(stream.control)
    begun = control.begun_behind(newest.batch_id)
    sources = {source.name for source in control.sources() if source.begins_behind(newest.batch_id)}
    return frozenset(begun | {name for name in sources if newest.notes.held(name)})


def states_after(stream: Stream, newest: Entry) -> Sequence[StateRuns] | None:
    """Returns the files with the states after the *newest* entry.

    They are the files that `tidemark reshard` or `begin` wrote, if there are any, and otherwise those that the entry
    names, which may be of another number of shards. The result is None if the states have to be written anew, because
    an operator or a source begins anew.
    """
    if (remembered := remembered_shards(stream, newest)) is not None:
        return remembered
    return None if begun_behind(stream, newest) else newest.notes.states


def write_anew(
    stream: Stream,
    journal: Journal,
    newest: Entry,
    sharding: Sharding | None,
    say: Callable[[str], None],
    without_operators: Collection[str] = (),
    *,
    check_lease: Callable[[], None],
) -> list[StateRuns]:
    """Writes the state after *newest* anew, for the next driver to begin with, and returns its files.

    The arguments are those of `reshard`; *check_lease* raises an error if another driver may write.
    """
    files = partial(StateFiles, stream, journal, shards=stream.shards, fence=Fence(check_lease))
    runs = reshard(stream, journal, newest, sharding, files, say, without_operators)
    remember(stream.control, runs, check_lease=check_lease)
    return runs


def _refuse_if_records_wait(stream: Stream, newest: Entry) -> None:
    """Raises ShardingImpossible where records wait for `max_drift` after the *newest* entry."""
    # Shards have no `max_drift`, so no shard would send them on. Records of a source that begins anew are dropped.
    dropped = begun_behind(stream, newest)
    for source in stream.sub.outside_sources:
        if source.name not in dropped and (n := newest.notes.held(source.name)):
            held = counted(n, "record is", "records are")
            msg = (
                f"{stream.sub.name}: {held} still held for max_drift at {source.name}; start it once with shards = 1, "
                "to release them"
            )
            raise ShardingImpossible(msg)


def _add_old_shard(
    tables: Tables, shards: Sequence[StateRuns], sharding: Sharding | None, files_of_shard: Callable[[int], StateFiles]
) -> list[StateRuns]:
    """Deals the states *tables* of an old shard out to the new *shards*, and returns the new shards with them.

    Each new shard that gets rows gets a run with them.
    """
    dealt = [tables] if sharding is None else _deal(tables, sharding, len(shards))
    added: list[StateRuns] = []
    for number, (runs, shard_tables) in enumerate(zip(shards, dealt, strict=True)):
        has_rows = any(rows.height for rows in shard_tables.values())
        added.append(files_of_shard(number).add_run(runs, shard_tables) if has_rows else runs)
    return added


def _load_old_shard(
    stream: Stream, journal: Journal, newest: Entry, number: int, without_operators: Collection[str]
) -> Tables:
    """Returns the states of the old shard *number*, as *newest* numbers them, without those of some operators."""
    old = newest.notes.states
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    # The columns of operators that begin anew may have other types now, which would not fit the old states.
    steps.memory.forget(without_operators)
    StateFiles(stream, journal, number, len(old)).load(steps.memory, old[number], newest.batch_id)
    whole = steps.memory.whole()
    # Every shard has the tables that joins look up, so only the first one hands them on.
    return without(whole, stream.sub.table_inputs()) if number else whole


def _deal(tables: Tables, sharding: Sharding, shards: int) -> Iterator[Tables]:
    """Yields, for each shard, the rows of *tables* whose keys belong to it."""
    # The shard of each row is computed once per table, and then used for every shard.
    shard_of_rows: dict[str, pl.Series | None] = {}
    for table, rows in tables.items():
        kind, _, operator = table.partition("/")
        shard_of_rows[table] = sharding.placed(shards, operator, rows, KEYS[kind]) if kind in KEYS else None
    for number in range(shards):
        yield {table: _in_shard(rows, shard_of_rows[table], number) for table, rows in tables.items()}


def _in_shard(rows: pl.DataFrame, shard: pl.Series | None, number: int) -> pl.DataFrame:
    """Returns those of *rows* whose *shard* is *number*, or all rows where every shard has them."""
    return rows if shard is None else rows.filter(shard == number)


def _rows(shards: Sequence[StateRuns]) -> int:
    return sum(runs.rows for runs in shards)


def remember(control: Path, shards: Sequence[StateRuns], *, check_lease: Callable[[], None]) -> None:
    """Notes that the next driver begins with *shards*. A later call replaces an earlier one."""
    _file(control).parent.mkdir(parents=True, exist_ok=True)
    put_once(_file(control), msgspec.json.encode(_Resharded(shards[0].batch_id, tuple(shards))), check=check_lease)


def forget(control: Path) -> None:
    """Removes the note of `remember`, so that the next driver begins with what the newest journal entry names."""
    _file(control).unlink(missing_ok=True)


def remembered_shards(stream: Stream, newest: Entry) -> tuple[StateRuns, ...] | None:
    """Returns the shards that `remember` noted, if they have the state after *newest* and *stream* has as many.

    The result is also None if one of their files is missing or torn, because what *newest* names still exists.
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
