"""Measures CPU time and memory of starts, whose state is in files.

A start maps the newest file and reads the journal since, so it should not depend on how often the keys changed before.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from bench.ratios import Figure

from support.topologies import NEWEST
from tidemark.kernels.updates.emission import STORED
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.semantics.progress import StreamProgress
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.notes import DecisionNotes, EntryNotes
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.state.files import StateFiles
from tidemark.stream.state.memory import Moves

KEYS, VERSIONS, FEW = 20_000, 250, 2
NOON_MS = 1_700_000_000_000


def figures(runs: int) -> Iterator[Figure]:
    """Compares a long history with one of two versions of each key."""
    with TemporaryDirectory() as folder:
        homes = {"old": Path(folder) / "old", "young": Path(folder) / "young"}
        _write(homes["old"], VERSIONS)
        _write(homes["young"], FEW)
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in homes}
        # A process gives memory back late or never, so each start is in one of its own.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            for name in (*homes,) * runs:
                costs[name].append(pool.submit(_cost, homes[name]).result())
    versions = f"{KEYS:,} keys, {VERSIONS} versions each"
    for number, what in enumerate(("CPU time", "memory")):
        of_old, of_young = ([cost[number] for cost in costs[name]] for name in ("old", "young"))
        ratio = [one / other for one, other in zip(of_old, of_young, strict=True)]
        yield Figure(f"{versions}: {what} of a start / with {FEW} versions of each key", ratio, 1.2, at_most=True)
        yield Figure(f"{what} of a start", of_old, unit=("ms", "MiB")[number])


def _cost(home: Path) -> tuple[float, float]:
    """Returns CPU time (ms) of a start, and its process's memory (MiB)."""
    stream = _stream(home)
    journal, steps = _journal(stream), Steps(stream.topology, Reference(home))
    newest = journal.newest()
    assert newest is not None
    began_s = time.process_time()
    StateFiles(stream, journal).load(steps.memory, newest.notes.states[0], newest.batch_id)
    took_s = time.process_time() - began_s
    assert len(steps.memory.stored["newest"]) == KEYS
    # ru_maxrss would begin with the memory of the parent.
    peak_kib = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return took_s * 1_000, int(peak_kib) / 1_024


def _stream(home: Path) -> Stream:
    # Each batch writes a file, so that every history ends with a file and one entry of the journal.
    topology = parse(tomllib.loads(f"flush_batches = 1\n{NEWEST}"), file="play.toml")
    return Stream(topology, topology.sub_topologies[0], Layout(home))


def _journal(stream: Stream) -> Journal:
    return Journal(stream.control / "journal", "data")


def _write(home: Path, versions: int) -> None:
    """Writes what a driver leaves whose keys changed so often, once a batch."""
    stream = _stream(home)
    journal, memory = _journal(stream), Steps(stream.topology, Reference(home)).memory
    files, chance = StateFiles(stream, journal), np.random.default_rng(0)
    for batch_id in range(versions):
        moves = Moves(stored={"newest": _changed(batch_id, chance)})
        moved, runs = files.entry_states(memory, batch_id - 1, batch_id, moves)
        journal.write(Entry(batch_id, moved, _notes(batch_id).with_states([runs])), needed_after=runs.batch_id)
        memory.apply(moves)
        files.advance(memory, runs, batch_id)


def _changed(batch_id: int, chance: np.random.Generator) -> pl.DataFrame:
    """Returns a new version of each key, in columns of STORED."""
    # An identity is as long as a SHA-256 digest.
    drawn = chance.bytes(32 * KEYS)
    changed = pl.DataFrame(
        {
            "key": [f"key-{number}" for number in range(KEYS)],
            "value": [f'{{"v":{batch_id}}}'] * KEYS,
            "identity": [drawn[start : start + 32].hex() for start in range(0, len(drawn), 32)],
            "timestamp_ms": [NOON_MS + batch_id] * KEYS,
        }
    )
    return changed.select(*STORED)


def _notes(batch_id: int) -> EntryNotes:
    at_ms = NOON_MS + batch_id
    batch = MicroBatch(batch_id=batch_id, epoch=1, decided_at_ms=at_ms, started_at_ms=at_ms, read_at_ms=at_ms)
    progress = StreamProgress(batch_id=batch_id)
    return EntryNotes(decided=DecisionNotes(batch=batch, progress=progress, was=progress))
