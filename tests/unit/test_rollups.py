from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from support.latency_facts import listed, statistics
from tidemark.kernels.reports.rollups import (
    NO_OUTLINE,
    QUANTILES,
    Outline,
    by_grain,
    in_scopes,
    latencies,
    rows_to_keep,
    shrunk_minutes,
)
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.semantics.buckets import bucket_of, quantile

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
MINUTE, HOUR, DAY = (grain.length_ms for grain in Grain)
TASKS = {
    "topology": pl.String, "sub_topology": pl.String, "operator": pl.String, "kind": pl.String, "task_id": pl.String,
    "interval_start": pl.Datetime("us", "UTC"), "n": pl.Int64,
    "min_ms": pl.Int64, "max_ms": pl.Int64, "sum_ms": pl.Int64, "negative_n": pl.Int64,
    "buckets": pl.List(pl.Struct({"bucket": pl.Int32, "n": pl.Int64})),
}  # fmt: skip
NOTHING = pl.DataFrame(schema={"scope": pl.String, "path": pl.String, "grain": pl.String, **TASKS})
PATHS = {"a": "s → a", "b": "s → b"}
"""The operator `c` is no terminal one."""
records = st.lists(
    st.tuples(
        st.integers(0, 3 * 24 * 60 - 1), st.sampled_from("abc"), st.sampled_from("01"), st.integers(-1_000, 100_000)
    ),
    min_size=1,
)


def tasks(latency_records):
    """Returns measured rows by task for records from NOON on.

    Each record has its minute, operator, task and latency.
    """
    latencies_ms = defaultdict(list)
    for minute, operator, task, latency_ms in latency_records:
        latencies_ms[minute, operator, task].append(latency_ms)
    rows = []
    for (minute, operator, task), ms in latencies_ms.items():
        same = {"topology": "t", "sub_topology": "s", "operator": operator, "kind": "sink", "task_id": f"s_{task}"}
        same["interval_start"] = NOON + timedelta(minutes=minute)
        rows.append({**same, **statistics(ms), "buckets": listed(ms)})
    return pl.DataFrame(rows, schema=TASKS)


def rolled_up(latency_records):
    return by_grain(in_scopes(tasks(latency_records), PATHS), NOTHING)


def subjects(operator, task):
    """Whose rows count a record, as scope, operator, task and path."""
    yield "operator", operator, None, None
    yield "task", operator, f"s_{task}", None
    if operator in PATHS:
        yield "topology", None, None, None
        yield "path", None, None, PATHS[operator]


@given(records)
def test_every_scope_and_grain_says_what_its_records_say(latency_records):
    expected = defaultdict(list)
    for minute, operator, task, latency_ms in latency_records:
        at_ms = NOON_MS + minute * MINUTE
        for subject in subjects(operator, task):
            for grain in Grain:
                expected[*subject, grain.value, at_ms // grain.length_ms * grain.length_ms].append(latency_ms)

    rows = latencies(rolled_up(latency_records), NO_OUTLINE).with_columns(pl.col("interval_start").dt.epoch("ms"))

    found = {tuple(row[k] for k in ("scope", "operator", "task_id", "path", "grain", "interval_start")): row
             for row in rows.iter_rows(named=True)}  # fmt: skip
    assert len(found) == rows.height
    assert found.keys() == expected.keys()
    for key, ms in expected.items():
        row = found[key]
        assert [row[k] for k in ("n", "min_ms", "max_ms", "sum_ms")] == [len(ms), min(ms), max(ms), sum(ms)]
        assert row["negative_n"] == sum(m < 0 for m in ms)
        assert row["avg_ms"] == pytest.approx(sum(ms) / len(ms))
        for column, q in QUANTILES.items():
            assert row[column] == pytest.approx(np.quantile(ms, q, method="inverted_cdf"), rel=0.01)
            assert row[column] == quantile([(bucket_of(m), 1) for m in ms], q, min_ms=min(ms), max_ms=max(ms))
            assert row["min_ms"] <= row[column] <= row["max_ms"]


@given(records)
def test_buckets_of_every_scope_and_grain_count_all_records(latency_records):
    rows = rolled_up(latency_records)

    of = ["scope", "operator", "task_id", "path", "grain", "interval_start"]
    counted = rows.select(*of, n=pl.col("buckets").list.eval(pl.element().struct.field("n")).list.sum())
    assert_frame_equal(counted, latencies(rows, NO_OUTLINE).select(*of, "n"), check_row_order=False)


@given(records, st.sets(st.integers(0, 3 * 24 * 60 - 1), min_size=1))
def test_rolled_up_minutes_on_stored_ones_equal_all_at_once(latency_records, late):
    everything = rolled_up(latency_records)
    first_ms = NOON_MS + min(late) * MINUTE
    hour = Interval(first_ms, first_ms + 1).widened(Grain.HOUR)
    starts_ms = [NOON_MS + minute * MINUTE for minute in late]
    minutes = [Interval(at_ms, at_ms + MINUTE) for at_ms in starts_ms if at_ms < hour.end_ms]
    new = in_scopes(tasks(latency_records), PATHS).filter(_starts_in(minutes))

    again = by_grain(new, rows_to_keep(everything, hour, minutes))

    is_minute = (pl.col("grain") == "minute") & _starts_in(minutes)
    is_hour = (pl.col("grain") == "hour") & _starts_in([hour])
    is_day = (pl.col("grain") == "day") & _starts_in([hour.widened(Grain.DAY)])
    assert_frame_equal(
        again, everything.filter(is_minute | is_hour | is_day), check_row_order=False, check_column_order=False
    )


def test_intervals_start_and_end_where_the_clock_says():
    measured = rolled_up([(61, "c", "0", 5)]).filter(scope="operator")

    assert measured.select("grain", "interval_start", "interval_end").rows() == [
        ("minute", NOON + timedelta(minutes=61), NOON + timedelta(minutes=62)),
        ("hour", NOON + timedelta(hours=1), NOON + timedelta(hours=2)),
        ("day", NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1)),
    ]


def test_a_rollup_keeps_other_minutes_and_other_hours():
    starts = [NOON + timedelta(hours=hours) for hours in (-13, -12, -1, 0, 1, 11, 12)]
    minutes = [NOON + timedelta(minutes=minutes) for minutes in (-1, 0, 1, 59, 60)]
    grains = ["hour"] * 7 + ["minute"] * 5 + ["day"]
    stored = pl.DataFrame({"grain": grains, "interval_start": [*starts, *minutes, NOON.replace(hour=0)]})

    found = rows_to_keep(stored, Interval(NOON_MS, NOON_MS + HOUR), [Interval(NOON_MS, NOON_MS + MINUTE)])

    assert found.rows() == [
        *(("hour", starts[place]) for place in (1, 2, 4, 5)),
        ("minute", minutes[2]),
        ("minute", minutes[3]),
    ]


def test_the_share_over_an_sla_is_counted_from_higher_buckets():
    late = [(0, "a", "0", 900), (0, "a", "0", 1_100), (0, "a", "1", 3_000), (0, "b", "0", 3_000), (0, "c", "0", 3_000)]
    outline = Outline(PATHS, {"a": 1_000, "b": 1_000})

    rows = latencies(rolled_up(late), outline).filter(grain="minute")

    found = rows.sort("scope", "operator", "task_id", "path", nulls_last=True)
    assert found.select("scope", "operator", "task_id", "path", "sla_ms", "over_sla_n").rows() == [
        ("operator", "a", None, None, 1_000, 2),
        ("operator", "b", None, None, 1_000, 1),
        ("operator", "c", None, None, None, None),
        ("path", None, None, "s → a", 1_000, 2),
        ("path", None, None, "s → b", 1_000, 1),
        ("task", "a", "s_0", None, 1_000, 1),
        ("task", "a", "s_1", None, 1_000, 1),
        ("task", "b", "s_0", None, 1_000, 1),
        ("task", "c", "s_0", None, None, None),
        ("topology", None, None, None, 1_000, 3),
    ]
    assert found["over_sla_share"].to_list() == [2 / 3, 1, None, 2 / 3, 1, 1 / 2, 1, 1, None, 3 / 4]


@pytest.mark.parametrize("promised", [{"a": 1_000}, {"a": 1_000, "b": 2_000}, {}])
def test_a_topology_of_unequal_promises_promises_nothing(promised):
    rows = latencies(rolled_up([(0, "a", "0", 3_000)]), Outline(PATHS, promised)).filter(scope="topology")

    assert rows.select("sla_ms", "over_sla_n", "over_sla_share").unique().rows() == [(None, None, None)]


def test_minutes_that_lost_facts_are_found_and_grown_ones_not():
    stored = rolled_up([(0, "a", "0", 1), (1, "a", "0", 1), (2, "a", "0", 1), (2, "a", "0", 1), (3, "a", "0", 1)])

    left = tasks([(1, "a", "0", 1), (1, "b", "0", 1), (2, "a", "0", 1), (3, "a", "0", 2)])

    assert shrunk_minutes(stored, left) == [NOON_MS, NOON_MS + 2 * MINUTE, NOON_MS + 3 * MINUTE]


def _starts_in(intervals):
    start_ms = pl.col("interval_start").dt.epoch("ms")
    each = [(start_ms >= interval.start_ms) & (start_ms < interval.end_ms) for interval in intervals]
    return pl.any_horizontal(each)
