"""Deals the state of a stream out to another number of shards, one old shard after the other.

What is made counts only for the newest batch: a driver that has worked on since makes it anew. So it can be interrupted
at any step and done again, beside a driver, too; files that no entry comes to name are removed by the next driver.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from tidemark.delta import Reference
from tidemark.place import replace
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.stream import Stream
from tidemark.stream.distributed.sharding import Sharding
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.load import load_whole
from tidemark.stream.state import Tables
from tidemark.stream.state_files import StateFiles, StateRuns
from tidemark.stream.steps import Steps

TEXTS = {"stored": "key", "states": "_key"}
"""The column that has the text of a key, by the kind of what is kept."""


def reshard(
    stream: Stream,
    journal: Journal,
    newest: Entry,
    sharding: Sharding | None,
    files_of: Callable[[int], StateFiles],
) -> list[StateRuns]:
    """Write the state after the *newest* entry as runs of the shards of *stream*; *sharding* is None for one.

    In memory is one old shard at a time. *files_of* has the files of a new one.
    """
    shards = [StateRuns(newest.batch_id, attempt=uuid.uuid4().hex)] * stream.shards
    for tables in _old_shards(stream, journal, newest):
        for number, runs in enumerate(shards):
            part = tables if sharding is None else _part(tables, sharding, number, stream.shards)
            if any(rows.height for rows in part.values()):
                shards[number] = files_of(number).with_another(runs, part)
    return shards


def _old_shards(stream: Stream, journal: Journal, newest: Entry) -> Iterator[Tables]:
    """Yield the state of each shard that *newest* names; of an older version the whole, from its tables."""
    old = StateRuns.of(newest.notes)
    everywhere = stream.sub.table_inputs()  # every shard has these
    for number, runs in enumerate(old or [StateRuns()]):
        steps = Steps(stream.topology, Reference(stream.layout.warehouse))
        if old is None:
            load_whole(steps, stream, journal, newest, StreamProgress.from_json(newest.notes["progress"]))
        else:
            files = StateFiles(stream, journal, number, len(old))
            files.load(steps.memory, runs, newest.batch_id, but=everywhere if number else frozenset())
        yield steps.memory.whole()


def _part(tables: Mapping[str, pl.DataFrame], sharding: Sharding, number: int, shards: int) -> Tables:
    """Return what of *tables* belongs to the shard *number*."""
    found = {}
    for place, rows in tables.items():
        kind, _, operator = place.partition("/")
        text = TEXTS.get(kind)
        found[place] = rows if text is None else sharding.own(number, shards, operator, rows, text)
    return found


def remember(control: Path, shards: Sequence[StateRuns]) -> None:
    """Have the next driver of the stream with the folder *control* begin with *shards*."""
    replace(_file(control), json.dumps({"batch_id": shards[0].batch_id, "state": StateRuns.notes(shards)}))


def remembered(stream: Stream, newest: Entry) -> list[StateRuns] | None:
    """Return the shards that were made of the state after *newest*; None unless they are as many as *stream* has."""
    file = _file(stream.control)
    if not file.exists():
        return None
    notes = json.loads(file.read_text(encoding="utf-8"))
    shards = StateRuns.of(notes)
    is_newest = notes["batch_id"] == newest.batch_id
    return shards if is_newest and shards is not None and len(shards) == stream.shards else None


def _file(control: Path) -> Path:
    return control / "resharded.json"
