from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tidemark.kernels.rollups import QUANTILES, buckets, by_grain, latencies, other_hours
from tidemark.semantics.buckets import bucket_of, quantile
from tidemark.spec.intervals import Grain, Interval

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = {
    "topology": pl.String, "sub_topology": pl.String, "operator": pl.String, "kind": pl.String,
    "interval_start": pl.Datetime("us", "UTC"), "bucket": pl.Int32, "n": pl.Int64,
    "min_ms": pl.Int64, "max_ms": pl.Int64, "sum_ms": pl.Int64, "negative_n": pl.Int64,
}  # fmt: skip
records = st.lists(
    st.tuples(st.integers(0, 3 * 24 * 60 - 1), st.sampled_from("ab"), st.integers(-1_000, 100_000)), min_size=1
)


def minutes(latency_records):
    """The measured rows of records, each the minute it finished in, counted from NOON, its operator and its latency."""
    rows = []
    for minute, operator in {(minute, operator) for minute, operator, _ in latency_records}:
        ms = [latency for at, name, latency in latency_records if (at, name) == (minute, operator)]
        same = {"topology": "t", "sub_topology": "s", "operator": operator, "kind": "sink"}
        same["interval_start"] = NOON + timedelta(minutes=minute)
        rows.append(
            {
                **same,
                "n": len(ms),
                "min_ms": min(ms),
                "max_ms": max(ms),
                "sum_ms": sum(ms),
                "negative_n": sum(m < 0 for m in ms),
            }
        )
        rows += [
            {**same, "bucket": bucket, "n": n}
            for bucket, n in zip(*np.unique([bucket_of(m) for m in ms], return_counts=True), strict=True)
        ]
    return pl.DataFrame(rows, schema=SCHEMA)


NOTHING = pl.DataFrame(schema=SCHEMA)


@given(records)
def test_a_day_is_the_merge_of_its_hours_and_an_hour_of_its_minutes(latency_records):
    everything = by_grain(minutes(latency_records), NOTHING)

    for grain in Grain:
        found = latencies(everything.filter(grain=grain.value))
        assert found["n"].sum() == len(latency_records)
        assert found["sum_ms"].sum() == sum(ms for _, _, ms in latency_records)
        assert found["negative_n"].sum() == sum(ms < 0 for _, _, ms in latency_records)
        assert buckets(everything.filter(grain=grain.value))["n"].sum() == len(latency_records)


@given(records)
def test_hours_rolled_up_before_make_the_same_days_as_their_facts(latency_records):
    measured = minutes(latency_records)
    early, late = measured.filter(_before_noon_of_day_2()), measured.filter(~_before_noon_of_day_2())
    hours = by_grain(early, NOTHING).filter(grain=Grain.HOUR.value)

    in_two = latencies(by_grain(late, hours).filter(grain=Grain.DAY.value))

    at_once = latencies(by_grain(measured, NOTHING).filter(grain=Grain.DAY.value))
    order = ["operator", "interval_start"]
    touched = at_once.join(in_two, on=order, how="semi")
    assert_frame_equal(in_two.sort(order), touched.sort(order), check_column_order=False)


@given(records)
def test_percentiles_are_within_one_percent_of_those_of_the_records(latency_records):
    days = latencies(by_grain(minutes(latency_records), NOTHING).filter(grain=Grain.DAY.value))

    for row in days.iter_rows(named=True):
        ms = [
            latency
            for minute, operator, latency in latency_records
            if operator == row["operator"] and (NOON + timedelta(minutes=minute)).date() == row["interval_start"].date()
        ]
        assert (row["min_ms"], row["max_ms"], row["avg_ms"]) == (min(ms), max(ms), pytest.approx(sum(ms) / len(ms)))
        for column, q in QUANTILES.items():
            assert row[column] == pytest.approx(np.quantile(ms, q, method="lower"), rel=0.01)
            assert row[column] == quantile([(bucket_of(m), 1) for m in ms], q)


def test_intervals_start_and_end_where_the_clock_says():
    measured = by_grain(minutes([(61, "a", 5)]), NOTHING).filter(pl.col("bucket").is_null())

    assert measured.select("grain", "interval_start", "interval_end").rows() == [
        ("minute", NOON + timedelta(minutes=61), NOON + timedelta(minutes=62)),
        ("hour", NOON + timedelta(hours=1), NOON + timedelta(hours=2)),
        ("day", NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1)),
    ]


def test_a_rollup_takes_the_other_hours_of_its_days_and_nothing_else():
    starts = [NOON + timedelta(hours=hours) for hours in (-13, -12, -1, 0, 1, 11, 12)]
    stored = pl.LazyFrame({"grain": ["hour"] * 7 + ["day"], "interval_start": [*starts, NOON.replace(hour=0)]})
    noon_ms = int(NOON.timestamp() * 1000)

    found = other_hours(stored, Interval(noon_ms + 1, noon_ms + 2)).collect()

    assert found["interval_start"].to_list() == [starts[1], starts[2], starts[4], starts[5]]


def _before_noon_of_day_2():
    return pl.col("interval_start") < NOON + timedelta(days=1)
