"""Deals the state of a stream out to another number of shards, one old shard after the other.

What is made counts only for the newest batch: a driver that has worked on since makes it anew. So it can be interrupted
at any step and done again: until the next batch is decided the old files stay, and they are the state. Files that no
entry comes to name are removed by the next driver.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import polars as pl

from tidemark.delta import Reference
from tidemark.place import put_once
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.stream import Stream
from tidemark.stream.commit import create_tables
from tidemark.stream.distributed.sharding import Sharding
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.load import load_whole
from tidemark.stream.state import Tables
from tidemark.stream.state_files import StateFiles, StateRuns, files_of, is_whole
from tidemark.stream.steps import Steps

log = logging.getLogger("tidemark.stream")

TEXTS = {"stored": "key", "states": "_key"}
"""The column that has the text of a key, by the kind of what is kept."""


def reshard(
    stream: Stream,
    journal: Journal,
    newest: Entry,
    sharding: Sharding | None,
    files_of_shard: Callable[[int], StateFiles],
    say: Callable[[str], None],
) -> list[StateRuns]:
    """Write the state after the *newest* entry as runs of the shards of *stream*; *sharding* is None for one.

    In memory is one old shard at a time, and *say* is told of each. *files_of_shard* has the files of a new one.
    """
    shards = [StateRuns(newest.batch_id, attempt=uuid.uuid4().hex)] * stream.shards
    n = len(StateRuns.of(newest.notes) or [StateRuns()])
    for old in range(n):
        before = _rows(shards)
        shards = _with_old(_old_shard(stream, journal, newest, old), shards, sharding, files_of_shard)
        say(f"{old + 1} of {n} shards {'is' if old == 0 else 'are'} dealt out: {_rows(shards) - before:,} rows")
    return shards


def _with_old(
    tables: Tables, shards: Sequence[StateRuns], sharding: Sharding | None, files_of_shard: Callable[[int], StateFiles]
) -> list[StateRuns]:
    """Return *shards*, each with another run where it has a part of *tables*, which is written."""
    parts = [tables] if sharding is None else _parts(tables, sharding, len(shards))
    return [
        files_of_shard(number).with_another(runs, part) if any(rows.height for rows in part.values()) else runs
        for number, (runs, part) in enumerate(zip(shards, parts, strict=True))
    ]


def _old_shard(stream: Stream, journal: Journal, newest: Entry, number: int) -> Tables:
    """Return the state of the shard *number* of those that *newest* names; of an older version all, from its tables."""
    old = StateRuns.of(newest.notes)
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    if old is None:
        create_tables(stream.home, stream.sub, steps.schemas)  # an older version's lack columns that are read
        load_whole(steps, stream, journal, newest, StreamProgress.from_json(newest.notes["progress"]))
    else:
        everywhere = stream.sub.table_inputs()  # every shard has these
        files = StateFiles(stream, journal, number, len(old))
        files.load(steps.memory, old[number], newest.batch_id, but=everywhere if number else frozenset())
    return steps.memory.whole()


def _parts(tables: Tables, sharding: Sharding, shards: int) -> Iterator[Tables]:
    """Yield what of *tables* belongs to each shard."""
    placed = {}
    for place, rows in tables.items():
        kind, _, operator = place.partition("/")
        placed[place] = sharding.placed(shards, operator, rows, TEXTS[kind]) if kind in TEXTS else None
    for number in range(shards):
        yield {place: _of(rows, placed[place], number) for place, rows in tables.items()}


def _of(rows: pl.DataFrame, placed: pl.Series | None, number: int) -> pl.DataFrame:
    return rows if placed is None else rows.filter(placed == number)


def _rows(shards: Sequence[StateRuns]) -> int:
    return sum(run.rows for runs in shards for run in runs.runs)


def remember(control: Path, shards: Sequence[StateRuns], *, check_lease: Callable[[], None]) -> None:
    """Have the next driver of the stream with the folder *control* begin with *shards*; one is remembered at a time."""
    notes = {"batch_id": shards[0].batch_id, "state": StateRuns.notes(shards)}
    put_once(_file(control), json.dumps(notes).encode(), check=check_lease)


def forget(control: Path) -> None:
    """Have the next driver begin with what the newest journal entry names."""
    _file(control).unlink(missing_ok=True)


def remembered(stream: Stream, newest: Entry) -> list[StateRuns] | None:
    """Return the shards that were made of the state after *newest*; None unless they are as many as *stream* has.

    They are None, too, where a file of theirs is gone or torn: what *newest* names is still there.
    """
    file = _file(stream.control)
    if not file.exists():
        return None
    notes = json.loads(file.read_text(encoding="utf-8"))
    shards = StateRuns.of(notes)
    if notes["batch_id"] != newest.batch_id or shards is None or len(shards) != stream.shards:
        return None
    for path in files_of(stream.control, shards):
        if not is_whole(path):
            log.warning("%s, which `tidemark reshard` wrote, is not whole: the state is dealt out anew", path)
            return None
    log.info("the driver begins with %d shards that `tidemark reshard` made", len(shards))
    return shards


def _file(control: Path) -> Path:
    return control / "state" / "resharded.json"
