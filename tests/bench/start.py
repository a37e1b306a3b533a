"""CPU time of a start: of the first one after an older version, from tables, and of others, from files."""

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
from playing import NEWEST, Silence

from tidemark.clock import wall_clock_ms
from tidemark.delta import Committer, Reference
from tidemark.kernels.schemas import rows_of
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.layout import Layout
from tidemark.spec.stream import Stream
from tidemark.spec.tables import BATCHES, CHANGES
from tidemark.spec.topology import parse
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.load import load_memory
from tidemark.stream.state import Moves
from tidemark.stream.state_files import StateFiles, StateRuns
from tidemark.stream.steps import Steps
from tidemark.stream.wiring import build_engine

KEYS, VERSIONS = 40_000, 50
NOON_MS = 1_700_000_000_000


def figures(runs: int) -> Iterator[Figure]:
    """A start from a long history against one with a single version a key."""
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
    """A stream whose keys have changed so often, once a batch each; written as its driver does."""
    topology = parse(tomllib.loads(NEWEST), file="play.toml")
    stream = Stream(topology, topology.sub_topologies[0], Layout(home))
    build_engine(stream, Silence(), thread_id="t", epoch=1, slow_ms={})  # creates the tables
    committer = Committer(f"{topology.name}/{stream.sub.name}", wall_clock_ms)
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
    Journal(stream.control / "journal", "data").write(Entry(versions - 1, {}, {"progress": progress.to_json()}))
    return stream


def _digests(chance: np.random.Generator) -> list[bytes]:
    """One for each key, as long as SHA-256 makes them."""
    drawn = chance.bytes(32 * KEYS)
    return [drawn[start : start + 32] for start in range(0, len(drawn), 32)]


def _journal(stream: Stream) -> Journal:
    return Journal(stream.control / "journal", "data")


def _files(stream: Stream) -> StateFiles:
    return StateFiles(stream, _journal(stream))


def _with_files(stream: Stream) -> Entry:
    """An entry of *stream* as of the first batch after a start from tables, with the files that it names."""
    steps, progress, newest = _started(stream)
    load_memory(steps, stream.sub, stream.home, progress)
    files = _files(stream)
    moved = files.noted(steps.memory, progress.batch_id, newest.batch_id, Moves())
    return replace(newest, tables=moved, notes={**newest.notes, "state": StateRuns.notes([files.runs])})


def _started(stream: Stream) -> tuple[Steps, StreamProgress, Entry]:
    newest = _journal(stream).newest()
    assert newest is not None
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    return steps, StreamProgress.from_json(newest.notes["progress"]), newest


def _start_s(stream: Stream, entry: Entry | None = None) -> float:
    """The CPU time of a start with *entry* as the newest; of one from tables without."""
    steps, progress, _ = _started(stream)
    began_s = time.process_time()
    if entry is None:
        load_memory(steps, stream.sub, stream.home, progress)
    else:
        (runs,) = StateRuns.of(entry.notes) or ()
        _files(stream).load(steps.memory, runs, entry.batch_id)
    took_s = time.process_time() - began_s
    assert len(steps.memory.stored["newest"]) == KEYS
    return took_s
