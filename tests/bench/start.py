"""Measures the CPU time of starts from tables and from files.

The first start after an older version reads tables.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from bench.ratios import Figure

from support.quiet_broker import Silence
from support.topologies import NEWEST
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BATCHES, CHANGES
from tidemark.model.topology import parse
from tidemark.semantics.progress import StreamProgress
from tidemark.storage.delta.tables import Committer, Reference
from tidemark.storage.fence import Fence
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.notes import DecisionNotes, EntryNotes
from tidemark.stream.operate.steps import Steps
from tidemark.stream.startup.load import load_memory
from tidemark.stream.state.files import StateFiles
from tidemark.stream.state.memory import Moves
from tidemark.stream.wiring import build_engine

KEYS, VERSIONS = 40_000, 50
NOON_MS = 1_700_000_000_000


def figures(runs: int) -> Iterator[Figure]:
    """Compares a long history with a single version per key."""
    with TemporaryDirectory() as folder:
        old = _stream(Path(folder) / "old", VERSIONS)
        young = _stream(Path(folder) / "young", 1)
        from_tables = [_start_s(old) for _ in range(runs)]
        of_files = [(_start_s(old, _with_files(old)), _start_s(young, _with_files(young))) for _ in range(runs)]
        versions = f"{KEYS:,} keys, {VERSIONS} versions each"
        ratio = [one / other for one, other in of_files]
        yield Figure(f"{versions}: a start / with one version of each key", ratio, 1.2, at_most=True)
        yield Figure("a start", [one for one, _ in of_files], unit="s CPU")
        yield Figure("the first start after an older version", from_tables, unit="s CPU")


def _stream(home: Path, versions: int) -> Stream:
    """Creates a stream whose keys changed so often, once a batch.

    It is written as its driver does.
    """
    topology = parse(tomllib.loads(NEWEST), file="play.toml")
    stream = Stream(topology, topology.sub_topologies[0], Layout(home))
    build_engine(stream, Silence(), thread_id="t", epoch=1, slow_ms={})  # creates the tables
    committer = Committer(f"{topology.name}/{stream.sub.name}", Fence())
    chance = np.random.default_rng(0)
    for batch_id in range(versions):
        same = {"topology": topology.name, "sub_topology": stream.sub.name, "batch_id": batch_id}
        rows = pl.DataFrame(
            {
                "seq": range(KEYS),
                "operator": "newest",
                "key": [f"key-{number}" for number in range(KEYS)],
                "value": [f'{{"v":{batch_id}}}'] * KEYS,
                "timestamp": NOON_MS + batch_id,
                "value_hash": [digest.hex() for digest in _digests(chance)],
            }
        )
        committer.commit(stream.home / CHANGES.name, rows_of(CHANGES, rows, **same), batch_id)
        committer.commit(stream.home / BATCHES.name, rows_of(BATCHES, [{"batch_id": batch_id}]), batch_id)
    progress = StreamProgress(batch_id=versions - 1)
    batch = MicroBatch(batch_id=versions - 1, epoch=1, decided_at_ms=NOON_MS, started_at_ms=NOON_MS, read_at_ms=NOON_MS)
    Journal(stream.control / "journal", "data").write(
        Entry(versions - 1, {}, EntryNotes(decided=DecisionNotes(batch=batch, progress=progress, was=progress)))
    )
    return stream


def _digests(chance: np.random.Generator) -> list[bytes]:
    """Returns one value per key, as long as a SHA-256 digest."""
    drawn = chance.bytes(32 * KEYS)
    return [drawn[start : start + 32] for start in range(0, len(drawn), 32)]


def _journal(stream: Stream) -> Journal:
    return Journal(stream.control / "journal", "data")


def _files(stream: Stream) -> StateFiles:
    return StateFiles(stream, _journal(stream))


def _with_files(stream: Stream) -> Entry:
    """Returns an entry of *stream* after its first start from tables.

    It names the files of the state.
    """
    steps, progress, newest = _started(stream)
    load_memory(steps, stream.sub, stream.home, progress)
    files = _files(stream)
    moved, runs = files.entry_states(steps.memory, progress.batch_id, newest.batch_id, Moves())
    return replace(newest, tables=moved, notes=newest.notes.with_states([runs]))


def _started(stream: Stream) -> tuple[Steps, StreamProgress, Entry]:
    newest = _journal(stream).newest()
    assert newest is not None
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    return steps, newest.notes.decision.progress, newest


def _start_s(stream: Stream, entry: Entry | None = None) -> float:
    """Returns the CPU time of a start with *entry* as newest.

    Without *entry* the start reads tables.
    """
    steps, progress, _ = _started(stream)
    began_s = time.process_time()
    if entry is None:
        load_memory(steps, stream.sub, stream.home, progress)
    else:
        (runs,) = entry.notes.decision.states or ()
        _files(stream).load(steps.memory, runs, entry.batch_id)
    took_s = time.process_time() - began_s
    assert len(steps.memory.stored["newest"]) == KEYS
    return took_s
