"""Who is to blame for windows over their SLA: the view, in Spark and in DuckDB, on rows by hand and on real batches."""

from __future__ import annotations

import time
from importlib.resources import files

import polars as pl
import pytest
from playing import Play

import critical_path as job
from tidemark.cli.sql import Warehouse
from tidemark.report.what_if import Change, what_if
from tidemark.spark import PROJECT, read_table
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import load
from tidemark.spec.tables import BATCHES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS, SLA_RESULTS
from tidemark.stream.wiring import Stream, build_engine

VIEW = (files("tidemark") / "views" / "critical_path_blame.sql").read_text(encoding="utf-8")
NOON = 1_770_033_600_000
HOUR_MS = 3_600_000
WINDOW_MS = 5_000
IN_ORDER = ("grain", "interval_start", "rank")


def test_an_operator_that_broke_its_promise_is_to_blame_and_not_who_waited_longer(warehouse):
    window(warehouse, 0, a=20, b=100, waited=500)
    window(warehouse, 1, a=30, b=420, waited=3_000, over=True)

    found = blamed(who(warehouse), "window")

    assert found == [(NOON + WINDOW_MS, "b", 1, 120, 420, 100, 1)]


def test_without_a_window_over_its_sla_nobody_is_to_blame(warehouse):
    window(warehouse, 0, a=20, b=100, waited=3_000)
    assert who(warehouse) == []


def test_all_that_a_window_older_than_its_leaf_promises_spent_beyond_the_usual_is_ranked(warehouse):
    for number, a in enumerate((20, 40, 30)):
        window(warehouse, number, a=a, b=100, waited=500, sla=10_000)
    window(warehouse, 3, a=25, b=350, waited=2_000, before=9_000, over=True, sla=10_000)

    found = blamed(who(warehouse), "window")

    # usual: a 30, b 100 and a promise of 300, waiting 500, before_source 1000
    assert [row[1:] for row in found] == [
        ("before_source", 1, 8_000, 9_000, 1_000, 1),
        ("waiting", 2, 1_500, 2_000, 500, 1),
        ("b", 3, 50, 350, 100, 1),
    ]


def test_without_a_window_that_kept_its_sla_all_time_counts(warehouse):
    window(warehouse, 0, a=7_000, b=310, waited=2_000, before=0, over=True, sla=9_000)
    assert [row[1:4] for row in blamed(who(warehouse), "window")] == [
        ("a", 1, 7_000), ("waiting", 2, 2_000), ("b", 3, 10),
    ]  # fmt: skip


def test_equals_are_ranked_by_name_and_what_is_off_the_path_is_not_to_blame(warehouse):
    window(warehouse, 0, a=500, b=800, waited=0, before=0, over=True, sla=900, off_path=9_000)
    assert [row[1:4] for row in blamed(who(warehouse), "window")] == [("a", 1, 500), ("b", 2, 500)]


def test_hours_and_days_sum_what_their_windows_say(warehouse):
    an_hour = HOUR_MS // WINDOW_MS
    window(warehouse, 0, a=20, b=100, waited=500)
    for number, b in ((1, 420), (2, 310), (an_hour - 1, 400)):  # the last one ends with the hour: it is the next one's
        window(warehouse, number, a=20, b=b, waited=0, over=True)

    found = who(warehouse)
    assert blamed(found, "hour") == [
        (NOON, "b", 1, 130, 730, 100, 2),
        (NOON + HOUR_MS, "b", 1, 100, 400, 100, 1),
    ]
    assert blamed(found, "day") == [(NOON - 12 * HOUR_MS, "b", 1, 230, 1_130, 100, 3)]


def test_a_breach_blames_for_the_windows_that_it_judged(warehouse):
    for number in range(4):
        window(warehouse, number, a=20, b=400 + number, waited=0, over=True)
    breach = {"sla": "quick", "topology": "t", "verdict": "error", "checked_at": NOON + 20_000, "over_ms": 10_000}
    kept = {**breach, "sla": "kept", "verdict": "pass"}
    warehouse.write(SLA_RESULTS, [breach, breach, kept])  # checked twice at one instant

    # of the windows that end at 5, 10, 15 and 20 s it judged those of 10 and 15 s
    found = who(warehouse)
    assert blamed(found, "breach") == [(NOON + 10_000, "b", 1, 203, 803, None, 2)]
    assert {row["sla"] for row in found if row["grain"] == "breach"} == {"quick"}


def test_spark_says_the_same(spark, warehouse):
    for number, (a, b) in enumerate([(20, 100), (30, 200), (20, 420), (500, 310)]):
        window(warehouse, number, a=a, b=b, waited=700, over=b > 300, sla=2_000)
    window(warehouse, 4, a=100, b=200, waited=None, over=True, sla=1_200)
    window(warehouse, 5, a=0, b=400, waited=0, before=-2_000, over=True)
    window(warehouse, 6, a=20, b=9_000, waited=0, over=None)
    breach = {"sla": "quick", "topology": "t", "verdict": "warn", "checked_at": NOON + 26_001, "over_ms": 12_345}
    warehouse.write(SLA_RESULTS, [breach])
    for table in (CRITICAL_PATHS, CRITICAL_PATH_STEPS, SLA_RESULTS):
        read_table(spark, warehouse.layout, "t", table).createOrReplaceTempView(table.name)

    in_spark = pl.DataFrame(spark.sql(VIEW).toArrow()).sort(*IN_ORDER)

    assert list(in_spark.iter_rows(named=True)) == who(warehouse)
    assert set(in_spark["grain"]) == {"window", "hour", "day", "breach"}


def test_shares_are_of_all_the_time_since_the_window_ended(warehouse):
    window(warehouse, 0, a=0, b=250, waited=750, before=0)
    window(warehouse, 1, a=0, b=500, waited=500, before=1_000, over=True)
    (row,) = (row for row in who(warehouse) if row["grain"] == "window")
    assert (row["share"], row["usual_share"]) == (0.25, 0.25)


def window(warehouse, number, *, a, b, waited, before=1_000, over=False, sla=None, off_path=0):
    """A closed window with the path src → a → b, of which b promised 300 ms of work; `c` is off the path."""
    at = {"topology": "t", "window_start": NOON + number * WINDOW_MS, "window_end": NOON + (number + 1) * WINDOW_MS}
    path = {
        "latency_ms": a + b + (waited or 0), "queued_ms": 0, "waited_ms": waited, "before_source_ms": before,
        "leaf": "b", "sla_ms": sla, "over_sla": over,
    }  # fmt: skip
    warehouse.write(CRITICAL_PATHS, [{**at, **path}])
    steps = (("src", 0, 0, None), ("a", 1, a, None), ("b", 2, b, 300), ("c", None, off_path, None))
    warehouse.write(
        CRITICAL_PATH_STEPS,
        [
            {**at, "operator": name, "kind": "map", "step": step, "worked_ms": ms, "promised_ms": promised}
            for name, step, ms, promised in steps
        ],
    )
    warehouse.write(SLA_RESULTS, [])


def who(warehouse):
    """The rows of the view in DuckDB, by interval and rank."""
    answer = Warehouse(warehouse.layout.warehouse).ask(VIEW)
    rows = pl.DataFrame(answer.rows, schema=dict.fromkeys(answer.columns), orient="row", infer_schema_length=None)
    return list(rows.sort(*IN_ORDER).iter_rows(named=True))


def blamed(rows, grain=None):
    """Start of the interval (epoch ms), who, rank, excess, what it used, what is usual, and windows."""
    columns = ("operator", "rank", "excess_ms", "used_ms", "usual_ms", "windows")
    return [
        (round(row["interval_start"].timestamp() * 1_000), *(row[c] for c in columns))
        for row in rows
        if grain in (None, row["grain"])
    ]


class Slowed(Play):
    """The demo's flights, with time going on while a batch runs, and an operator that sleeps."""

    slow_ms: dict[str, int] = {}  # noqa: RUF012

    def start(self, sub, *_, **__):
        stream = Stream(self.topology, self.topology.sub_topology(sub), Layout(self.home))
        began = time.monotonic()
        offset = {"at": -1, "began": began}

        def clock():
            if offset["at"] != self.now_ms:
                offset.update(at=self.now_ms, began=time.monotonic())
            return self.now_ms + round((time.monotonic() - offset["began"]) * 1_000)

        self._engines[sub] = build_engine(
            stream, self.broker, thread_id="t", epoch=1, slow_ms=self.slow_ms, clock=clock
        )


WINDOWS = 6


def flown(home, **slow_ms):
    """Windows of flights whose carriers' driver begins 3 s after the first driver; carrier_state sleeps."""
    play = Slowed((PROJECT / "jobs" / "topologies" / "flights.toml").read_text(), home)
    play.slow_ms = slow_ms
    for number in range(WINDOWS + 1):
        at_ms = NOON + number * 2 * WINDOW_MS
        fields = {"flight": f"f{number}", "carrier": "UA", "origin": "EWR", "status": "departed", "dep_delay_min": 20.0}
        rows = [play.row("flight_events", at_ms, **fields), play.row("weather", at_ms, origin="EWR", temp_f=50.0)]
        play.batch(rows, at_ms=at_ms + 500, sub="status")
        play.hop("carriers", at_ms=at_ms + 4_000)
    return play


def reported(spark, warehouse, play):
    specs = load(PROJECT / "expectations" / "slas.toml", play.topology)
    job.run(warehouse.layout, play.topology, specs, Interval(NOON, NOON + HOUR_MS))
    warehouse.write(SLA_RESULTS, [])


@pytest.mark.parametrize("slow", [400, 0])
def test_the_demos_slowed_operator_is_named_though_a_hop_waits_longer_and_is_not_when_it_is_quick(
    spark, warehouse, slow
):
    play = flown(warehouse.layout.warehouse, **({"carrier_state": slow} if slow else {}))
    reported(spark, warehouse, play)

    paths = (
        read_table(spark, warehouse.layout, "flights", CRITICAL_PATHS).where("path is not null").toArrow().to_pylist()
    )
    assert len(paths) >= WINDOWS - 1
    assert all(2_000 < row["waited_ms"] < 4_000 for row in paths)
    names = {(row[1], row[2]) for row in blamed(who(warehouse))}
    assert names == ({("carrier_state", 1)} if slow else set())


def test_what_if_without_the_delay_agrees_with_the_run_without_it(tmp_path):
    def windows(play, *changes):
        finished, batches = (
            pl.concat(
                pl.read_delta(str(Layout(play.home).stream_table("flights", sub.name, table.name)))
                for sub in play.topology.sub_topologies
            )
            for table in (OPERATOR_WINDOWS, BATCHES)
        )
        return what_if(finished, batches, play.topology.upstreams, changes, trigger_ms=play.topology.trigger_ms)

    slowed = windows(flown(tmp_path / "slow", carrier_state=400), Change(operator="carrier_state", less_ms=400))
    quick = windows(flown(tmp_path / "quick"))
    assert [w.start_ms for w in slowed] == [w.start_ms for w in quick]
    then_ms = sorted(window.then.latency_ms for window in slowed)[len(slowed) // 2]
    quick_ms = sorted(window.was.latency_ms for window in quick)[len(quick) // 2]
    assert then_ms == pytest.approx(quick_ms, abs=150)  # of some 3.7 s, most of which is waiting
    assert sorted(window.was.latency_ms for window in slowed)[len(slowed) // 2] > quick_ms + 350
