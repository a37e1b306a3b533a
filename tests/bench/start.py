"""Measures CPU time and memory of starts from tables and from files.

The first start after an older version reads tables.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
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
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.operate.steps import Steps
from tidemark.stream.startup.load import load_memory
from tidemark.stream.state.files import StateFiles
from tidemark.stream.state.memory import Moves
from tidemark.stream.wiring import build_engine

KEYS, VERSIONS = 20_000, 250
NOON_MS = 1_700_000_000_000


def figures(runs: int) -> Iterator[Figure]:
    """Compares a long history with a single version per key."""
    with TemporaryDirectory() as folder:
        old = _stream(Path(folder) / "old", VERSIONS)
        young = _stream(Path(folder) / "young", 1)
        from_tables = [_start_s(old) for _ in range(runs)]
        # A process gives memory back late or never, so each start is in one of its own.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            costs = {name: [] for name in ("old", "young")}
            for name, stream in (("old", old), ("young", young)) * runs:
                (runs_of_state,) = _with_files(stream).notes.states or ()
                cost = pool.submit(_cost, stream.layout.warehouse, runs_of_state)
                costs[name].append(cost.result())
    versions = f"{KEYS:,} keys, {VERSIONS} versions each"
    for number, what in enumerate(("CPU time", "memory")):
        of_old, of_young = ([cost[number] for cost in costs[name]] for name in ("old", "young"))
        ratio = [one / other for one, other in zip(of_old, of_young, strict=True)]
        yield Figure(f"{versions}: {what} of a start / with one version of each key", ratio, 1.2, at_most=True)
        yield Figure(f"{what} of a start", of_old, unit=("ms", "MiB")[number])
    yield Figure("the first start after an older version", from_tables, unit="s CPU")


def _cost(home: Path, runs: StateRuns) -> tuple[float, float]:
    """Returns CPU time (ms) of a start, and its process's memory (MiB)."""
    took_s = _start_s(_stream_in(home), runs)
    # ru_maxrss would begin with the memory of the parent.
    peak_kib = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return took_s * 1_000, int(peak_kib) / 1_024


def _stream_in(home: Path) -> Stream:
    topology = parse(tomllib.loads(NEWEST), file="play.toml")
    return Stream(topology, topology.sub_topologies[0], Layout(home))


def _stream(home: Path, versions: int) -> Stream:
    """Creates a stream whose keys changed so often, once a batch.

    It is written as its driver does.
    """
    stream = _stream_in(home)
    topology = stream.topology
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


def _start_s(stream: Stream, runs: StateRuns | None = None) -> float:
    """Returns the CPU time of a start with *runs* of its state.

    Without *runs* the start reads tables.
    """
    steps, progress, newest = _started(stream)
    began_s = time.process_time()
    if runs is None:
        load_memory(steps, stream.sub, stream.home, progress)
    else:
        _files(stream).load(steps.memory, runs, newest.batch_id)
    took_s = time.process_time() - began_s
    assert len(steps.memory.stored["newest"]) == KEYS
    return took_s
