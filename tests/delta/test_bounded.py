"""A driver keeps as much after 20 batches as after 10."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from bench.long_run import KEYS, TOPOLOGY, play_batch
from deltalake import DeltaTable

from support.play import Play
from tidemark.model.project.layout import Layout
from tidemark.storage.delta import tables
from tidemark.storage.delta.log import SHORT_LOG, TableLog
from tidemark.storage.fence import Fence
from tidemark.stream.journal.entries import KEPT
from tidemark.stream.journal.notes import as_json

SUB = "events"


@dataclass(frozen=True)
class Footprint:
    """Files, bytes and objects that remain between two batches."""

    control_files: int  # those with states beside
    state_bytes: int
    open_files: int
    open_windows: int
    states: int
    progress_bytes: int
    own_bytes: int  # that Tidemark's lines have asked Python for


def footprint(play: Play) -> Footprint:
    engine, control = play._engines[SUB], Layout(play.home).control("play", SUB)
    states = control / "state" / "1" / "0"
    assert engine.progress is not None
    gc.collect()
    asked_for = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(inclusive=True, filename_pattern="*/tidemark/*")]
    )
    return Footprint(
        control_files=sum(path.is_file() and path.parent != states for path in control.rglob("*")),
        state_bytes=sum(path.stat().st_size for path in states.iterdir()),
        open_files=len(os.listdir("/proc/self/fd")),
        open_windows=len(engine.progress.windows),
        states=len(engine._steps.memory.states["sums"]) + len(engine._steps.memory.stored["sums"]),
        progress_bytes=len(as_json(engine.progress)),
        own_bytes=sum(line.size for line in asked_for.statistics("filename")),
    )


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have a checkpoint every 10 commits."""
    monkeypatch.setattr("tidemark.storage.delta.log.CHECKPOINT_EVERY", 10)
    monkeypatch.setattr("tidemark.storage.delta.log.SHORT_EVERY", 10)


@pytest.mark.usefixtures("often")
def test_memory_of_a_driver_does_not_grow_with_its_batches(tmp_path: Path) -> None:
    play = Play(f"flush_batches = 5\n{TOPOLOGY}", tmp_path)
    tracemalloc.start()
    for number in range(10):
        play_batch(play, number)
    early = footprint(play)
    for number in range(10, 15):
        play_batch(play, number)
    middle = footprint(play)
    for number in range(15, 20):
        play_batch(play, number)
    late = footprint(play)
    tracemalloc.stop()
    assert early.control_files == late.control_files == 2 * (KEPT + 1) + 2  # `carried_out`, `meanings.json`
    assert late.state_bytes < 2 * early.state_bytes
    assert late.open_files <= early.open_files
    # batches 9 and 19 are the last seconds of a window: with a bound of 1 s it is open, and no other one is
    assert early.open_windows == late.open_windows == 1
    assert early.states == late.states == 2 * len(KEYS)
    assert late.progress_bytes <= early.progress_bytes + 20  # numbers have a digit more
    # at most 1 kB a batch; a cache that fills once is in one of the two differences
    assert min(middle.own_bytes - early.own_bytes, late.own_bytes - middle.own_bytes) <= 5_000
    # and who opens a table reads less than 10 commits of its log
    batches = Layout(tmp_path).stream_table("play", SUB, "batches")
    checkpoints = [int(path.name.split(".")[0]) for path in batches.glob("_delta_log/*.checkpoint.parquet")]
    assert DeltaTable(str(batches)).version() - max(checkpoints) < 10


@pytest.mark.usefixtures("often")
def test_a_table_is_reopened_after_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_at: list[int] = []

    class Noted(TableLog):
        def __init__(self, path: Path, app_id: str) -> None:
            super().__init__(path, app_id)
            opened_at.append(self.version)

    rows = pa.table({"n": [1]})
    tables.create(tmp_path / "t", rows.schema)
    monkeypatch.setattr(tables, "TableLog", Noted)
    committer = tables.Committer("app", Fence(clock=lambda: 0))
    for batch_id in range(25):
        committer.commit(tmp_path / "t", rows, batch_id)
    # version 0 is the empty table; versions 9 and 19 have a checkpoint
    assert opened_at == [0, 9, 19]
    checkpoints = sorted(path.name for path in (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
    assert checkpoints == [f"{9:020d}.checkpoint.parquet", f"{19:020d}.checkpoint.parquet"]


def test_a_log_of_facts_has_the_commits_of_twenty_minutes_at_most(tmp_path: Path) -> None:
    """With a commit each thirty seconds; from ten minutes on, whatever the number of commits."""
    path = tmp_path / "facts"
    folder = path / "_delta_log"

    def trim(table: DeltaTable) -> None:
        for file in folder.glob("0*"):
            age_s = 30 * (table.version() - int(file.name.split(".")[0]))
            os.utime(file, (time.time() - age_s,) * 2)
        table.cleanup_metadata()

    tables.create(path, pa.schema([("n", pa.int64())]), log=SHORT_LOG)
    committer = tables.Committer("app", Fence(clock=lambda: 0), trimmers={path.name: trim})
    files: dict[int, int] = {}
    for version in range(1, 301):
        committer.commit_notes(path, version, notes={})
        files[version] = len(os.listdir(folder))
    # Checkpoints of versions 19, 39, 59 … At 299 there are three, `_last_checkpoint`, and commits 259 to 299. Then the
    # commits before 279 are older than ten minutes: two checkpoints stay, and commits 279 to 300.
    assert (files[299], files[300]) == (3 + 1 + 41, 2 + 1 + 22)
    assert (files[239], files[240]) == (files[299], files[300])
    assert max(files.values()) == files[299]
