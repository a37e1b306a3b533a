"""Culprits of windows over their SLA, in Spark and in DuckDB.

The view is checked on rows by hand and on real batches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import SimpleNamespace

import polars as pl
import pytest

import critical_path as job
from support.play import Play
from support.report_warehouse import TestWarehouse
from tidemark.model.project.files import CHECKOUT as PROJECT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.sla_spec import load
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BATCHES, CRITICAL_PATHS, OPERATOR_WINDOWS, SLA_RESULTS, WINDOW_PARTS
from tidemark.model.topology import OWN
from tidemark.query.spark import read_table
from tidemark.query.sql import Warehouse
from tidemark.reports.what_if.estimates import WorkChange, distances_of, what_if
from tidemark.storage.fence import Fence
from tidemark.stream.decide import decision
from tidemark.stream.wiring import build_engine

VIEW = (files("tidemark") / "views" / "critical_path_blame.sql").read_text(encoding="utf-8")
NOON = 1_770_033_600_000
HOUR_MS = 3_600_000
WINDOW_MS = 5_000
IN_ORDER = ("grain", "interval_start", "rank")


def test_a_part_counts_once_for_whom_it_was_longest(warehouse):
    window(warehouse, 0, a=20, b=100)
    window(warehouse, 0, subject="c", a=50, c=10)
    window(warehouse, 1, over=False, a=900)

    assert [row[1:4] for row in blamed(who(warehouse), "window")] == [("b", 1, 100), ("a", 2, 50), ("c", 3, 10)]


def test_hours_and_days_sum_what_their_windows_say(warehouse):
    an_hour = HOUR_MS // WINDOW_MS
    for number, b in ((1, 120), (2, 10), (an_hour - 1, 100)):  # the last one ends with the hour: it is the next one's
        window(warehouse, number, b=b)

    found = who(warehouse)
    assert blamed(found, "hour") == [
        (NOON, "b", 1, 130, 330, 100, 2),
        (NOON + HOUR_MS, "b", 1, 100, 200, 100, 1),
    ]
    assert blamed(found, "day") == [(NOON - 12 * HOUR_MS, "b", 1, 230, 530, 100, 3)]


def test_an_hour_has_what_its_windows_compared(warehouse):
    for number, excess in enumerate(({"a": 400, "b": 20, "c": 310}, {"a": 10, "b": 30, "c": 320})):
        window(warehouse, number, **excess)

    hour = [row for row in who(warehouse) if row["grain"] == "hour"]
    told = {row["operator"]: (row["compared"], row["judged_ms"], row["expected_ms"], row["excess_ms"]) for row in hour}
    # The windows of a differ: 600 ms of work with a limit of 200 ms, and a part of 110 ms that is usually 100 ms.
    assert told == {"a": (None, 710, 300, 410), "b": ("usual", 250, 200, 50), "c": ("work", 1_030, 400, 630)}


def test_a_breach_blames_for_the_windows_that_it_judged(warehouse):
    for number in range(4):
        window(warehouse, number, b=100 + number)
    window(warehouse, 1, subject="c", c=9_000)  # on another path
    breach = {"sla": "quick", "topology": "t", "verdict": "error", "checked_at": NOON + 20_000, "over_ms": 10_000}
    breach |= {"subject": "b"}
    kept = {**breach, "sla": "kept", "verdict": "pass"}
    warehouse.write(SLA_RESULTS, [breach, breach, kept])  # checked twice at one instant

    # of the windows that were finished at 6, 11, 16 and 21 s it judged those of 11 and 16 s
    found = who(warehouse)
    assert blamed(found, "breach") == [(NOON + 10_000, "b", 1, 203, 403, 100, 2)]
    assert {row["sla"] for row in found if row["grain"] == "breach"} == {"quick"}


def test_spark_says_the_same(spark, warehouse):
    for number, (a, b) in enumerate([(20, 100), (30, 200), (20, 420), (500, 310)]):
        window(warehouse, number, over=b > 300, a=a, b=b)
    window(warehouse, 6, over=None, a=20)
    breach = {"sla": "quick", "topology": "t", "verdict": "warn", "checked_at": NOON + 26_001, "over_ms": 12_345}
    warehouse.write(SLA_RESULTS, [{**breach, "subject": "b"}])
    for table in (WINDOW_PARTS, SLA_RESULTS):
        read_table(spark, warehouse.layout, "t", table).createOrReplaceTempView(table.name)

    in_spark = pl.DataFrame(spark.sql(VIEW).toArrow()).sort(*IN_ORDER)

    assert list(in_spark.iter_rows(named=True)) == who(warehouse)
    assert set(in_spark["grain"]) == {"window", "hour", "day", "breach"}


def window(warehouse, number, *, subject="b", over=True, **excess_ms):
    """Writes a window of *subject*, finished after a second, with long parts.

    The parts take usually 100 ms.
    """
    end_ms = NOON + (number + 1) * WINDOW_MS
    same = {
        "topology": "t", "window_start": end_ms - WINDOW_MS, "window_end": end_ms, "finished_at": end_ms + 1_000,
        "subject": subject, "age_ms": 1_000, "over_sla": over, "usual_ms": 100.0, "usual_share": 0.1,
        "broken_slas": ["quick"] if over else [],
        "no_history": False,
    }  # fmt: skip
    rows = [
        {**same, "operator": name, "kind": "map", "ms": 100 + ms, "excess_ms": ms, **compared(ms)}
        for name, ms in excess_ms.items()
    ]
    warehouse.write(WINDOW_PARTS, rows)
    warehouse.write(SLA_RESULTS, [])


def compared(excess_ms):
    """Returns what made a part too long by *excess_ms*: more than 300 ms are those of work with a limit of 200 ms."""
    what, expected_ms = ("work", 200) if excess_ms > 300 else ("usual", 100)
    return {"compared": what, "judged_ms": float(expected_ms + excess_ms), "expected_ms": float(expected_ms)}


def who(warehouse):
    """The rows of the view in DuckDB, by interval and rank."""
    answer = Warehouse(warehouse.layout.warehouse).ask(VIEW)
    rows = pl.DataFrame(answer.rows, schema=dict.fromkeys(answer.columns), orient="row", infer_schema_length=None)
    return list(rows.sort(*IN_ORDER).iter_rows(named=True))


def blamed(rows, grain=None):
    """Returns culprits by interval, with rank, excess, usage and windows.

    The start of the interval is in epoch ms.
    """
    columns = ("operator", "rank", "excess_ms", "used_ms", "usual_ms", "windows")
    return [
        (round(row["interval_start"].timestamp() * 1_000), *(row[c] for c in columns))
        for row in rows
        if grain in (None, row["grain"])
    ]


class Slowed(Play):
    """The demo's flights with a sleeping operator, however busy the machine.

    Each look at its clock takes 3 ms, and each sleep takes its length.
    """

    slow_ms: dict[str, int] = {}  # noqa: RUF012
    _passed = (0, 0)

    def start(self, sub, *_, **__):
        stream = Stream(self.topology, self.topology.sub_topology(sub), Layout(self.home))
        self._engines[sub] = build_engine(
            stream, self.broker, thread_id="t", epoch=1, slow_ms=self.slow_ms, fence=Fence(clock=self.clock)
        )

    def clock(self, passed_ms=3):
        since_ms, so_far_ms = self._passed
        self._passed = self.now_ms, passed_ms + (so_far_ms if since_ms == self.now_ms else 0)
        return sum(self._passed)


WINDOWS = 6


def flown(monkeypatch, home, *, wakes=False, **slow_ms):
    """Plays flights whose second driver starts 3 s later.

    It is that of the carriers. With *wakes* the first one wakes it, and Spark plans for 60 ms. The operators of
    *slow_ms* sleep.
    """
    play = Slowed((PROJECT / "jobs" / "topologies" / "flights.toml").read_text(), home)
    play.slow_ms = slow_ms
    monkeypatch.setattr(decision, "time", SimpleNamespace(sleep=lambda seconds: play.clock(round(seconds * 1_000))))
    for number in range(WINDOWS + 1):
        at_ms = NOON + number * 2 * WINDOW_MS
        fields = {"flight": f"f{number}", "carrier": "UA", "origin": "EWR", "status": "departed", "dep_delay_min": 20.0}
        rows = [play.row("flight_events", at_ms, **fields), play.row("weather", at_ms, origin="EWR", temp_f=50.0)]
        play.batch(rows, at_ms=at_ms + 500, sub="status")
        play.hop("carriers", at_ms=play.clock(60) if wakes else at_ms + 4_000)
    return play


def reported(spark, warehouse, play):
    specs = load(PROJECT / "expectations" / "slas.toml", play.topology)
    job.run(warehouse.layout, play.topology, specs, Interval(NOON, NOON + HOUR_MS))
    warehouse.write(SLA_RESULTS, [])


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Returns a play of flights, which tests share: they only add reports."""

    @cache
    def play_of(slow, *, wakes):
        with pytest.MonkeyPatch.context() as patch:
            return flown(patch, tmp_path_factory.mktemp("flown"), wakes=wakes, **({slow: 400} if slow else {}))

    return play_of


@pytest.mark.parametrize("slow", ["carrier_state", ""])
def test_the_demos_slowed_operator_is_blamed_only_while_slow(spark, played, slow):
    play = played(slow, wakes=False)
    warehouse = TestWarehouse(Layout(play.home))
    reported(spark, warehouse, play)

    paths = (
        read_table(spark, warehouse.layout, "flights", CRITICAL_PATHS).where("path is not null").toArrow().to_pylist()
    )
    assert len(paths) >= WINDOWS - 1
    assert all(2_000 < row["waited_ms"] < 4_000 for row in paths)
    names = {(row[1], row[2]) for row in blamed(who(warehouse))}
    assert names == ({(slow, 1)} if slow else set())


@pytest.mark.parametrize(
    ("slow", "wakes"), [("carrier_state", False), ("carrier_state", True), ("flight_status", True)]
)
def test_what_if_without_the_delay_agrees_with_a_real_run(played, slow, wakes):
    def windows(play, *changes):
        finished, batches = (
            pl.concat(
                pl.read_delta(str(Layout(play.home).stream_table("flights", sub.name, table.name)))
                for sub in play.topology.sub_topologies
            )
            for table in (OPERATOR_WINDOWS, BATCHES)
        )
        topology = replace(play.topology, trigger_ms=2_000, driver=None if wakes else OWN)
        return what_if(finished, batches, topology.upstreams, changes, distances_ms=distances_of(topology))

    slowed = windows(played(slow, wakes=wakes), WorkChange(operator=slow, less_ms=400))
    quick = windows(played("", wakes=wakes))
    assert [w.start_ms for w in slowed] == [w.start_ms for w in quick]
    then_ms = sorted(window.then.latency_ms for window in slowed)[len(slowed) // 2]
    quick_ms = sorted(window.was.latency_ms for window in quick)[len(quick) // 2]
    assert then_ms == pytest.approx(quick_ms, abs=20)
    was_ms = sorted(window.was.latency_ms for window in slowed)[len(slowed) // 2]
    assert was_ms == pytest.approx(quick_ms + 400, abs=20)
