"""A critical path names the partition that passed its window last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import critical_path
from support.play import Play
from support.separate_executors import OneWorker
from support.topologies import aggregate, sink, source, topology_of
from tidemark.cli.explain.path import as_text
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.path import path_document
from tidemark.stream.shards.tasks import IntakeTask, ShardTask
from tidemark.stream.shards.totals import ShardResult

T = 1_400_000_000_000
COUNTS = topology_of(
    {"window": "10 s"},
    events=source("id string", idle_after="5 s", max_ahead=None),
    counts=aggregate(key=["id"], aggregates={"n": "count(*)"}, select={"n": "n"}),
    out=sink("counts", table="out"),
)
TASKS_MS = {"taking in": 40, "working": 90, "all": 100}
"""When tasks finish, and the batch does, in ms."""


@dataclass(frozen=True)
class StandingClock:
    """A clock that stands still."""

    at_ms: int

    def __call__(self) -> int:
        return self.at_ms


class OnOneHost(OneWorker):
    """Runs tasks by the clock of the driver of *play*."""

    def __init__(self, rows: pl.DataFrame, play: Play) -> None:
        super().__init__(rows)
        self._play = play

    def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
        first, second = (StandingClock(self._play.now_ms + TASKS_MS[part]) for part in ("taking in", "working"))
        worked = super().run(replace(taking_in, clock=first), replace(working, clock=second))
        self._play.now_ms += TASKS_MS["all"]
        return worked


def _one_shard(home: Path, partitions: int = 3) -> Play:
    return Play(COUNTS, home, partitions=partitions)


def _two_shards(home: Path, partitions: int = 3) -> Play:
    play = Play(COUNTS, home, partitions=partitions)
    return play.in_shards(2, lambda rows: OnOneHost(rows, play))


def _batch(play: Play, *, at_s: int, **times: float) -> None:
    """Runs a batch with four records of each partition.

    It is *at_s* after T. Names are `p0`, `p1` …, values the records' time in s after T.
    """
    rows = [
        play.row("events", T + round(time * 1_000), partition=int(name[1:]), id=f"id {number}")
        for name, time in times.items()
        for number in range(4)
    ]
    play.batch(rows, at_ms=T + at_s * 1_000)


def _window(play: Play) -> dict[str, Any]:
    critical_path.run(Layout(play.home), play.topology, (), Interval(T, T + 20_000))
    (window,) = path_document(play.home, play.topology, last=1, now_ms=0)["windows"]
    return window  # type: ignore[no-any-return]


def _ends(play: Play) -> list[tuple[Any, ...]]:
    """Returns partition, batch, two ends after T, and records."""
    ended = "unix_millis(ewt_at) - $1, unix_millis(ewt_adjusted_at) - $1"
    text = f"SELECT partition, batch_id, {ended}, records FROM task_windows WHERE partition IS NOT NULL"
    return sorted(Warehouse(play.home).ask(text, [T]).rows)


def _slow_partition(play: Play) -> Play:
    """Plays a window until 10 s with a slow partition.

    It needs records from 11 s on. Partition 2 has one 4 s after 0 and 1. Partition 3 is idle until the window is
    closed, and 4 is never read.
    """
    _batch(play, at_s=1, p0=0, p1=0, p2=0, p3=0)
    _batch(play, at_s=12, p0=11.5, p1=11, p2=10.999)
    _batch(play, at_s=16, p0=15, p2=12)
    _batch(play, at_s=18, p3=17)
    return play


def test_one_shard_names_the_partition_that_is_4_s_behind(tmp_path: Path) -> None:
    play = _slow_partition(_one_shard(tmp_path, partitions=5))
    window = _window(play)
    events = window["steps"][0]
    assert (events["task"], events["behind_tasks_ms"], events["tasks_error_ms"]) == ("partition 2", 4_000, 0)
    assert window["physical_path"] == "events[partition 2] (0 ms) → counts (0 ms) → out (0 ms) = 0 ms"
    text = as_text("play", window)
    assert "events[partition 2] finished 4 s after the median of its other tasks\n" in text
    assert _ends(play) == [(0, 1, 12_000, 12_000, 4), (1, 1, 12_000, 12_000, 4), (2, 2, 16_000, 16_000, 4)]


def test_two_shards_name_the_partition_that_is_4_s_behind(tmp_path: Path) -> None:
    """Partition 0 is taken in by the closing batch, too."""
    play = _slow_partition(_two_shards(tmp_path, partitions=5))
    window = _window(play)
    events = window["steps"][0]
    assert (events["task"], events["behind_tasks_ms"], events["tasks_error_ms"]) == ("partition 2", 4_000, 0)
    assert window["physical_path"] == (
        "events[partition 2] (0 ms) → counts[shard 0] (50 ms) → out[shard 0] (10 ms) = 60 ms"
    )
    assert _ends(play) == [(0, 1, 12_040, 12_040, 4), (1, 1, 12_040, 12_040, 4), (2, 2, 16_040, 16_040, 4)]


@pytest.mark.parametrize("start", [_one_shard, _two_shards])
def test_an_idle_partition_is_not_named(start: Callable[[Path], Play], tmp_path: Path) -> None:
    """The window waits until partition 2 counts as idle."""
    play = start(tmp_path)
    _batch(play, at_s=10, p0=0, p1=0, p2=0)
    _batch(play, at_s=14, p0=12, p1=12)
    _batch(play, at_s=16, p0=13)
    window = _window(play)
    assert {step["operator"]: step["task"] for step in window["steps"]}["events"] is None
    assert [row[:2] for row in _ends(play)] == [(0, 1), (1, 1)]
    # It had a record at 10 s, was idle after 15 s, and the next batch, at 16 s, was due a trigger before.
    assert {(part["owner"], part["ms"], part["detail"]) for part in window["parts"] if part["owner"] == "silence"} == {
        ("silence", 4_000, "events/2 idle_after")
    }
    assert not {part["owner"] for part in window["parts"]} & {"next_record", "producer"}


@pytest.mark.parametrize("start", [_one_shard, _two_shards])
def test_partitions_of_one_batch_are_not_slow(start: Callable[[Path], Play], tmp_path: Path) -> None:
    play = start(tmp_path)
    _batch(play, at_s=1, p0=0, p1=0, p2=0)
    _batch(play, at_s=12, p0=12, p1=12, p2=12)
    window = _window(play)
    assert {step["operator"]: step["task"] for step in window["steps"]}["events"] is None
    assert [row[:2] for row in _ends(play)] == [(0, 1), (1, 1), (2, 1)]
