import math
from collections import Counter

import duckdb
import numpy as np
import polars as pl
import pytest
from ddsketch import DDSketch
from hypothesis import example, given
from hypothesis import strategies as st
from reference.buckets import bucket_value_sql

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns import buckets as kernel
from tidemark.semantics.buckets import RELATIVE_ERROR, bucket_of, bucket_sql, quantile, value_of

ONE_PERCENT = 0.01
YEAR_MS = 366 * 24 * 3600 * 1000
whole_ms = st.one_of(st.integers(-2000, 2000), st.integers(-YEAR_MS, YEAR_MS), st.integers(-(2**63), 2**63 - 1))
latencies = st.lists(st.integers(-500, 5000) | st.integers(-YEAR_MS, YEAR_MS), min_size=1, max_size=60)
quantiles = st.integers(0, 1_000).map(lambda thousandths: thousandths / 1_000)


def counted(values):
    return Counter(map(bucket_of, values))


def place_of(q, n):
    """The place, from 0, of the first of *n* sorted values up to which there are *q* of them, by whole numbers."""
    return next(place for place in range(n) if 1_000 * (place + 1) >= round(q * 1_000) * n)


def near_every_edge():
    """Returns the whole numbers beside each bucket's upper edge.

    Two engines could disagree there; values are up to eleven years.
    """
    edges = (math.floor(1.02**exponent) for exponent in range(1350))
    return sorted({sign * (edge + beside) for edge in edges for beside in (-1, 0, 1) for sign in (-1, 1)})


def test_small_latencies_have_the_buckets_of_the_formula():
    assert [bucket_of(v) for v in (0, 1, 2, 3, 50, 100, 5000)] == [0, 1, 37, 57, 199, 234, 432]
    assert value_of(432) == pytest.approx(5039.1, abs=0.1)


@given(whole_ms)
@example(-(2**63))
def test_a_bucket_stands_for_its_values_within_one_percent(value_ms):
    assert abs(value_of(bucket_of(value_ms)) - value_ms) <= ONE_PERCENT * abs(value_ms)
    assert abs(bucket_of(value_ms)) < 2**15


@given(whole_ms)
def test_a_negative_value_mirrors_the_positive_one(value_ms):
    assert bucket_of(-value_ms) == -bucket_of(value_ms)
    assert (bucket_of(value_ms) > 0) == (value_ms > 0)
    assert (bucket_of(value_ms) == 0) == (value_ms == 0)


@given(st.integers(-2500, 2500))
def test_buckets_are_in_the_order_of_the_values_they_stand_for(bucket):
    assert value_of(bucket) < value_of(bucket + 1)


@given(latencies, quantiles)
def test_a_quantile_is_within_one_percent_of_the_exact_one(values, q):
    exact = sorted(values)[place_of(q, len(values))]
    assert abs(quantile(counted(values).items(), q) - exact) <= ONE_PERCENT * abs(exact)


@given(latencies, quantiles)
def test_known_extremes_bound_a_quantile_and_never_make_it_less_exact(values, q):
    exact, counts = sorted(values)[math.floor(q * (len(values) - 1))], counted(values).items()
    bounded = quantile(counts, q, min_ms=min(values), max_ms=max(values))
    assert min(values) <= bounded <= max(values)
    assert abs(bounded - exact) <= abs(quantile(counts, q) - exact)


def test_a_percentile_is_not_beyond_the_extremes_of_its_values():
    # 2,399 ms is bucket 395, which stands for 2,421.5 ms, and 1,518 ms is bucket 371, which stands for 1,505.7 ms.
    assert quantile([(bucket_of(2_399), 5)], 0.99, min_ms=2_399, max_ms=2_399) == 2_399
    assert quantile([(bucket_of(1_518), 5)], 0.5, min_ms=1_518) == 1_518
    assert quantile([(bucket_of(1_518), 5)], 0.5, max_ms=1_518) == value_of(bucket_of(1_518))
    assert quantile([], 0.5, min_ms=1, max_ms=2) is None


def test_quantiles_are_within_one_percent_of_numpys():
    values = np.random.default_rng(7).lognormal(5, 2, 100_000).astype(np.int64) - 50
    buckets = pl.DataFrame({"v": values}).group_by(bucket=kernel.bucket_of(pl.col("v"))).agg(n=pl.len())
    for q in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = np.quantile(values, q, method="inverted_cdf")
        assert abs(quantile(buckets.rows(), q) - exact) <= ONE_PERCENT * abs(exact)


@given(latencies, quantiles)
def test_ddsketch_finds_the_same_quantile_within_both_errors(values, q):
    sketch = DDSketch(relative_accuracy=ONE_PERCENT)
    for value in values:
        sketch.add(value)
    place, last = place_of(q, len(values)), len(values) - 1
    exact = sorted(values)[place]
    # DDSketch rounds its rank down, from 0 to the last: half a place more is safe from the digits of a division.
    same_place = (place + 0.5) / last if place < last else 1.0
    difference = quantile(counted(values).items(), q) - sketch.get_quantile_value(same_place)
    assert abs(difference) <= 2 * ONE_PERCENT * abs(exact)


@given(latencies, latencies, latencies)
def test_merging_is_adding_up_and_loses_nothing(one, two, three):
    assert counted(one) + counted(two) == counted(two) + counted(one) == counted(one + two)
    assert (counted(one) + counted(two)) + counted(three) == counted(one) + (counted(two) + counted(three))
    assert sum(counted(one + two + three).values()) == len(one + two + three)


@given(latencies, latencies, quantiles)
def test_a_bucket_may_come_more_than_once(one, two, q):
    """Merging appends: the quantile of two rollups is their union's."""
    unmerged = [*counted(one).items(), *counted(two).items()]
    assert quantile(unmerged, q) == quantile(counted(one + two).items(), q)


def test_without_values_there_is_no_quantile():
    assert quantile([], 0.5) is None
    assert quantile([(3, 0)], 0.5) is None


@pytest.mark.parametrize("q", [-0.1, 1.1, 99, float("nan")])
def test_a_quantile_is_between_zero_and_one(q):
    with pytest.raises(InvalidArgument, match="between 0 and 1"):
        quantile([(1, 1)], q)


@pytest.mark.parametrize("values", [near_every_edge(), [*range(-20_000, 20_000)], [-(2**63), 2**63 - 1]])
def test_python_polars_and_duckdb_agree_on_every_bucket(values):
    frame = pl.DataFrame({"v": values}, schema={"v": pl.Int64})
    buckets = frame.select(v="v", bucket=kernel.bucket_of(pl.col("v")))
    assert buckets["bucket"].to_list() == [bucket_of(value) for value in values]
    sql = duckdb.sql(f"SELECT {bucket_sql('v')} b, {bucket_value_sql('bucket')} r FROM buckets").fetchall()
    assert [row[0] for row in sql] == buckets["bucket"].to_list()
    assert [row[1] for row in sql] == pytest.approx([value_of(b) for b in buckets["bucket"]], rel=1e-12)


def test_null_has_no_bucket():
    frame = pl.DataFrame({"v": [None, 0]}, schema={"v": pl.Int64})
    assert frame.select(kernel.bucket_of(pl.col("v"))).to_series().to_list() == [None, 0]
    sql = f"SELECT {bucket_sql('v')}, {bucket_value_sql('v')} FROM frame ORDER BY v NULLS FIRST"
    assert duckdb.sql(sql).fetchall() == [(None, None), (0, 0.0)]


def test_the_error_leaves_room_for_other_logarithms():
    assert RELATIVE_ERROR < 0.99 * ONE_PERCENT + 1e-5
