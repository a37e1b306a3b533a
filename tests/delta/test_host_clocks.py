"""Rows and culprits of shards on hosts whose clocks differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import polars as pl
import pytest

import critical_path
from support.play import Play
from support.separate_executors import OneWorker
from support.topologies import aggregate, sink, source, topology_of
from tidemark.facts.measures import sla_facts
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import HEARTBEATS
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.path import path_document
from tidemark.semantics.skew import Skew
from tidemark.semantics.sla import Sla
from tidemark.storage.delta.tables import append
from tidemark.stream.driver.heartbeats import ClockOffset, ClockOffsets
from tidemark.stream.journal.task_run import TaskRun
from tidemark.stream.shards.host_clocks import HostClocks
from tidemark.stream.shards.tasks import Dealt, IntakeTask, ShardTask
from tidemark.stream.shards.totals import ShardResult
from tidemark.stream.write.measurement import Host

T = 1_400_000_000_000
COUNTS = topology_of(
    {"window": "10 s"},
    events=source("id string", max_ahead=None),
    counts=aggregate(key=["id"], aggregates={"n": "count(*)"}, select={"n": "n"}),
    out=sink("counts", table="out"),
)
HANDED_OVER_MS = 10
"""Delays until tasks begin, and until their results are known."""
AHEAD_MS = {"ahead": 5_000, "right": 0}
true_ms = 0
readings = 0
W = TypeVar("W", IntakeTask, ShardTask)
D = TypeVar("D")


@dataclass(frozen=True)
class HostClock:
    """Clock of *host*: each reading takes *reading_ms*.

    The third one takes *slow_ms* if that is not 0.
    """

    host: str
    reading_ms: int = 10
    slow_ms: int = 0

    def __call__(self) -> int:
        global true_ms, readings
        readings += 1
        true_ms += self.slow_ms if self.slow_ms and readings == 3 else self.reading_ms
        return true_ms + AHEAD_MS[self.host]

    def name(self) -> str:
        return self.host


PARTITIONS = [HostClock("ahead"), HostClock("right")]
SHARDS = [HostClock("ahead"), HostClock("right", slow_ms=500), HostClock("ahead", 20)]
"""Shard 1 is slow: its third reading is that after `counts`."""


class OnTwoHosts(OneWorker):
    """Starts tasks together, each by the clock of its host.

    The clock of the driver of *play* continues meanwhile.
    """

    def __init__(self, rows: pl.DataFrame, play: Play) -> None:
        super().__init__(rows)
        self._play = play

    def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
        parts = self._rows.partition_by("source", "partition", maintain_order=True)
        tasks = [_at(taking_in, PARTITIONS[part["partition"][0]]) for part in parts]
        dealt = self._at_once([lambda t=t, p=p: [*t(p)] for t, p in zip(tasks, parts, strict=True)])
        return self.work(working, [each for of_part in dealt for each in of_part])

    def work(self, working: ShardTask, dealt: Iterable[Dealt]) -> list[ShardResult]:
        every = [*dealt]
        of_shard = [[each for shard, each in every if shard == number] for number in range(working.shards)]
        tasks = [_at(working, clock) for clock in SHARDS]
        worked = self._at_once([partial(tasks[n], n, own) for n, own in enumerate(of_shard)])
        self._play.now_ms += HANDED_OVER_MS
        return worked

    def _at_once(self, tasks: list[Callable[[], D]]) -> list[D]:
        global true_ms, readings
        began_ms, found, ended = self._play.now_ms + HANDED_OVER_MS, [], []
        for task in tasks:
            true_ms, readings = began_ms, 0
            found.append(task())
            ended.append(true_ms)
        self._play.now_ms = max(ended)
        return found


def _at(task: W, clock: HostClock) -> W:
    return replace(task, clock=clock, host=clock.name)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Plays three batches; the second closes the window from T.

    The third comes 5 s later.
    """
    play = Play(COUNTS, tmp_path_factory.mktemp("hosts"), partitions=2)
    play.in_shards(3, lambda rows: OnTwoHosts(rows, play)).hosts = {play.sub: Host("driver")}
    for second, at_s in ((0, 10), (20, 30), (25, 35)):
        rows = [play.row("events", T + second * 1_000, partition=n % 2, id=str(n)) for n in range(20)]
        play.batch(rows, at_ms=T + at_s * 1_000)
    return play


def test_each_host_of_tasks_has_an_estimate_every_15_s(play: Play) -> None:
    """The clock of `ahead` has an upper and a lower bound.

    They are its first start, 20 ms after the driver's, and the start of the slow shard.
    """
    assert play.clock_offsets.taken() == [
        ClockOffset(host=host, estimated_at_ms=ms, skew=skew, samples=samples, reference="driver")
        for ms in (T + 10_000 + 590, T + 30_000 + 590)
        for host, skew, samples in (
            ("ahead", Skew(offset_ms=-4_990, error_ms=32), 5),
            ("right", Skew(offset_ms=-5, error_ms=16), 3),
        )
    ]


def test_an_operator_finishes_with_its_last_task_by_driver_clock(play: Play) -> None:
    finished = {row["operator"]: row["ewt_at"] - T - 30_000 for row in play.rows("operator_windows")}
    # Partition 0 ended at 5,030 by `ahead`, shard 1 at 560 by `right`; the driver commits 10 ms after all shards.
    assert finished == {"events": 5_030 - 4_990, "counts": 560, "out": 590}


def test_a_path_names_the_slow_shard_and_no_host_that_is_ahead(play: Play) -> None:
    critical_path.run(Layout(play.home), play.topology, (), Interval(T, T + 20_000))
    (window,) = path_document(play.home, play.topology, last=1, now_ms=0)["windows"]
    assert window["physical_path"] == (
        "events[partition 0] (0 ms) → counts[shard 1] (520 ms) → out[shard 1] (30 ms) = 550 ms"
    )
    (counts,) = [step for step in window["steps"] if step["operator"] == "counts"]
    assert counts["behind_tasks_ms"] == 560 - (80 + 110) // 2  # 5,070 and 5,100 less 4,990
    assert window["skew_error_ms"] == counts["tasks_error_ms"] == 32


def test_windows_have_an_end_per_shard_and_per_input_partition(play: Play) -> None:
    ended = "unix_millis(ewt_at) - $1, unix_millis(ewt_adjusted_at) - $1"
    text = f"SELECT operator, coalesce(shard, partition), host, {ended} FROM task_windows WHERE operator <> 'out'"
    assert sorted(Warehouse(play.home).ask(text, [T + 30_000]).rows) == [
        ("counts", 0, "ahead", 5_070, 80),
        ("counts", 1, "right", 560, 560),
        ("counts", 2, "ahead", 5_100, 110),
        ("events", 0, "ahead", 5_030, 40),
        ("events", 1, "right", 30, 30),
    ]


def test_an_sla_uses_the_clock_of_the_driver_not_of_tasks(play: Play) -> None:
    """Time follows the driver, so records of other hosts are not ahead.

    A host of tasks is 5 s off.
    """
    estimates = [
        ("driver", 30_000, 3, "brokers"),
        ("driver", 31_001, 90, "brokers"),
        ("ahead", 30_000, 5_000, "driver"),
    ]
    offsets = [
        {"host": host, "estimated_at": utc(T + at), "offset_ms": ms, "error_ms": 2, "samples": 5, "reference": by}
        for host, at, ms, by in estimates
    ]
    beats = [{"beat_at": T + 20_000, "clock_offsets": None}, {"beat_at": T + 35_000, "clock_offsets": offsets}]
    append(play.table(HEARTBEATS.name), rows_of(HEARTBEATS, beats, topology="play", sub_topology="events"))
    spec = SlaSpec(
        name="s", subject="out", measure=STALENESS, limits=Sla(error_after_ms=1_000), owner="o", over_ms=1_000,
        ignore_when_idle=False,
    )  # fmt: skip
    facts = sla_facts.facts(Warehouse(play.home), play.topology, [spec], {}, at_ms=T + 31_000)
    assert {fact.subject: fact.n for fact in facts if fact.what == "clock"} == {"driver": 5}, (
        "the next estimate is later than the check"
    )


def run(host: str, started_ms: int, finished_ms: int, shard: int | None = 0) -> TaskRun:
    return TaskRun(
        operator="o", shard=shard, host=host, started_at_ms=started_ms, finished_at_ms=finished_ms, records=1
    )


def test_no_task_is_adjusted_when_a_clock_was_set_meanwhile() -> None:
    clocks = HostClocks("driver", ClockOffsets())
    wrong = [run("ahead", 6_010, 6_490), run("set", 1_010, 9_000), run("driver", 1_010, 1_490)]
    found = clocks.adjusted(wrong, began_ms=1_000, ended_ms=1_500)
    assert [each.skew_ms for each in found] == [None, None, None]
    right = [run("ahead", 6_010, 6_490), run("set", 8_510, 8_990), run("driver", 1_010, 1_490)]
    found = clocks.adjusted(right, began_ms=1_000, ended_ms=1_500)
    assert [each.skew_ms for each in found] == [-5_000, -7_500, 0]
    assert [each.skew_error_ms for each in found] == [11, 11, 0]
