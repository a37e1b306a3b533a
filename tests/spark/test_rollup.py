from __future__ import annotations

import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import rollup
from tidemark.kernels.rollups import Outline
from tidemark.semantics.buckets import bucket_of, quantile
from tidemark.spec.intervals import Grain, Interval, instant_ms
from tidemark.spec.tables import LATENCY_BUCKET_ROLLUP, LATENCY_BUCKETS, LATENCY_ROLLUP, OPERATOR_LATENCY

MINUTE, HOUR, DAY = (grain.length_ms for grain in Grain)
MIDNIGHT = instant_ms("2026-03-01")


def test_minutes_hours_and_days_by_hand(spark, warehouse):
    measured(warehouse, MIDNIGHT + 10 * HOUR, [100, 200, 300, -5], sub_topology="a")
    measured(warehouse, MIDNIGHT + 10 * HOUR + 59_999, [400], sub_topology="a")
    measured(warehouse, MIDNIGHT + 10 * HOUR + 60_000, [1_000], sub_topology="a")
    measured(warehouse, MIDNIGHT + 11 * HOUR, [7], sub_topology="a")
    measured(warehouse, MIDNIGHT + 10 * HOUR, [0], sub_topology="b")

    roll_up(spark, warehouse, MIDNIGHT + 10 * HOUR, MIDNIGHT + 12 * HOUR)

    rows = {
        (row["sub_topology"], row["grain"], f"{row['interval_start']:%H:%M}"): row
        for row in warehouse.report(LATENCY_ROLLUP)
    }
    columns = ("n", "min_ms", "max_ms", "sum_ms", "negative_n", "avg_ms")
    assert {key: tuple(row[column] for column in columns) for key, row in rows.items()} == {
        ("a", "minute", "10:00"): (5, -5, 400, 995, 1, 199.0),
        ("a", "minute", "10:01"): (1, 1_000, 1_000, 1_000, 0, 1_000.0),
        ("a", "minute", "11:00"): (1, 7, 7, 7, 0, 7.0),
        ("a", "hour", "10:00"): (6, -5, 1_000, 1_995, 1, 332.5),
        ("a", "hour", "11:00"): (1, 7, 7, 7, 0, 7.0),
        ("a", "day", "00:00"): (7, -5, 1_000, 2_002, 1, 286.0),
        ("b", "minute", "10:00"): (1, 0, 0, 0, 0, 0.0),
        ("b", "hour", "10:00"): (1, 0, 0, 0, 0, 0.0),
        ("b", "day", "00:00"): (1, 0, 0, 0, 0, 0.0),
    }
    day = rows["a", "day", "00:00"]
    assert day["interval_end"].isoformat() == "2026-03-02T00:00:00+00:00"
    assert day["p50_ms"] == pytest.approx(200, rel=0.01)  # rank 3 of -5, 7, 100, 200, 300, 400, 1000
    assert day["p99_ms"] == pytest.approx(400, rel=0.01)  # rank ⌊0.99 · 6⌋ = 5


def test_percentiles_are_those_of_ring_zero(spark, warehouse):
    rng = random.Random(7)
    latencies = [round(rng.lognormvariate(5, 2)) * rng.choice((1, 1, 1, -1)) for _ in range(2_000)]
    measured(warehouse, MIDNIGHT, latencies)

    roll_up(spark, warehouse, MIDNIGHT, MIDNIGHT + 1)

    (minute,) = (row for row in warehouse.report(LATENCY_ROLLUP) if row["grain"] == "minute")
    buckets = [(bucket_of(latency), 1) for latency in latencies]
    for column, q in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        assert math.isclose(minute[column], quantile(buckets, q) or 0, rel_tol=1e-12)


def test_in_whatever_pieces_and_order_intervals_are_rolled_up_the_tables_are_the_same(spark, warehouse, tmp_path):
    rng = random.Random(3)
    for _ in range(12):
        measured(warehouse, MIDNIGHT + rng.randrange(2 * DAY), [rng.randrange(-50, 9_000)], rng.choice("ab"))
    roll_up(spark, warehouse, MIDNIGHT, MIDNIGHT + 2 * DAY)
    at_once = both(warehouse)

    pieces = [(start, start + 13 * HOUR) for start in range(MIDNIGHT, MIDNIGHT + 2 * DAY, 13 * HOUR)]
    rng.shuffle(pieces)
    for table in (LATENCY_ROLLUP, LATENCY_BUCKET_ROLLUP):
        warehouse.forget(table)
    for start, end in [*pieces, pieces[0]]:
        roll_up(spark, warehouse, start, end)

    assert both(warehouse) == at_once


def test_an_hour_touched_in_part_is_rolled_up_as_a_whole(spark, warehouse):
    for minute in (0, 29, 30, 31, 59):
        measured(warehouse, MIDNIGHT + minute * MINUTE, [minute])

    roll_up(spark, warehouse, MIDNIGHT + 30 * MINUTE, MIDNIGHT + 31 * MINUTE)

    rows = warehouse.report(LATENCY_ROLLUP)
    assert {row["grain"]: row["n"] for row in rows if row["grain"] != "minute"} == {"hour": 5, "day": 5}
    assert sum(row["n"] for row in rows if row["grain"] == "minute") == 5


def test_facts_that_came_late_appear_when_their_interval_is_rolled_up_again(spark, warehouse):
    measured(warehouse, MIDNIGHT, [1])
    roll_up(spark, warehouse, MIDNIGHT, MIDNIGHT + HOUR)
    measured(warehouse, MIDNIGHT + 1, [2])

    roll_up(spark, warehouse, MIDNIGHT, MIDNIGHT + HOUR)

    assert {(row["grain"], row["n"]) for row in warehouse.report(LATENCY_ROLLUP)} == {
        ("minute", 2),
        ("hour", 2),
        ("day", 2),
    }


def test_a_topology_without_facts_gets_empty_tables(spark, warehouse):
    roll_up(spark, warehouse, MIDNIGHT, MIDNIGHT + HOUR)

    assert both(warehouse) == ([], [])


def measured(warehouse, finished_at_ms, latencies, sub_topology="s"):
    """One batch of operator `o`, with its buckets counted one by one."""
    common = {
        "batch_id": 0,
        "operator": "o",
        "kind": "sink",
        "task_id": f"{sub_topology}_0",
        "finished_at": finished_at_ms,
    }
    stats = {
        "n": len(latencies),
        "min_ms": min(latencies),
        "max_ms": max(latencies),
        "sum_ms": sum(latencies),
        "negative_n": sum(latency < 0 for latency in latencies),
    }
    warehouse.write(OPERATOR_LATENCY, [{**common, **stats}], sub_topology)
    buckets = [{**common, "bucket": bucket_of(latency), "n": 1} for latency in latencies]
    warehouse.write(LATENCY_BUCKETS, buckets, sub_topology)


def roll_up(spark, warehouse, start_ms, end_ms):
    rollup.run(spark, warehouse.layout, "t", Interval(start_ms, end_ms))


def both(warehouse):
    return warehouse.report(LATENCY_ROLLUP), warehouse.report(LATENCY_BUCKET_ROLLUP)


@pytest.mark.parametrize("second_hour", [10, 11])
def test_two_rollups_at_once_leave_what_one_after_the_other_would(spark, warehouse, monkeypatch, second_hour):
    for hour in (10, 11):
        measured(warehouse, MIDNIGHT + hour * HOUR, [hour])
    both_have_read = threading.Barrier(2)
    minutes, waited = rollup.minutes, threading.local()

    def read_together(*given):
        if not hasattr(waited, "once"):
            waited.once = True
            both_have_read.wait(60)
        return minutes(*given)

    monkeypatch.setattr(rollup, "minutes", read_together)
    with ThreadPoolExecutor(2) as pool:
        starts = [MIDNIGHT + hour * HOUR for hour in (10, second_hour)]
        for done in [pool.submit(roll_up, spark, warehouse, start, start + HOUR) for start in starts]:
            done.result()

    rows = [(row["grain"], f"{row['interval_start']:%H}", row["n"]) for row in warehouse.report(LATENCY_ROLLUP)]
    hours = [("hour", "10", 1), ("hour", "11", 1)][: second_hour - 9]
    minutes_of = [("minute", "10", 1), ("minute", "11", 1)][: second_hour - 9]
    assert sorted(rows) == [("day", "00", second_hour - 9), *hours, *minutes_of]
