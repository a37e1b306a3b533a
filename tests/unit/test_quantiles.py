"""A quantile is the same length wherever it is computed."""

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.kernels.columns import quantiles
from tidemark.kernels.columns.quantiles import median_of
from tidemark.semantics.buckets import bucket_of, quantile, value_of
from tidemark.semantics.quantiles import median_sql, quantile_of, quantile_sql

FOURTEEN_MS = [1_000 * n for n in range(1, 15)]


def in_sql(select, lengths_ms):
    rows = duckdb.execute(f"SELECT {select} FROM (SELECT unnest($1::BIGINT[]) AS ms)", [lengths_ms]).fetchall()
    return rows[0][0]


def in_column(lengths_ms, q):
    frame = pl.DataFrame({"ms": lengths_ms}, schema={"ms": pl.Int64()})
    return frame.select(quantiles.quantile_of(pl.col("ms"), q)).item()


def test_of_fourteen_windows_the_median_is_the_seventh_and_the_p90_the_thirteenth():
    # Half of 14 is 7, and nine tenths of 14 are 12.6: with 12 windows less than nine tenths would be counted.
    assert (quantile_of(FOURTEEN_MS, 0.5), quantile_of(FOURTEEN_MS, 0.9)) == (7_000, 13_000)
    assert (in_sql(median_sql("ms"), FOURTEEN_MS), in_sql(quantile_sql("ms", 0.9), FOURTEEN_MS)) == (7_000, 13_000)


def test_of_two_records_the_p99_is_the_longer_one_since_half_of_them_took_that_long():
    assert quantile_of([10, 9_000], 0.99) == in_sql(quantile_sql("ms", 0.99), [10, 9_000]) == 9_000
    assert quantile([(bucket_of(10), 1), (bucket_of(9_000), 1)], 0.99, min_ms=10, max_ms=9_000) == pytest.approx(
        9_000, 0.01
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(0, 1_000))
def test_at_least_the_share_q_is_no_longer_and_less_than_q_is_shorter(lengths_ms, thousandths):
    """With whole numbers: q is a number of thousandths."""
    found_ms = quantile_of(lengths_ms, thousandths / 1_000)
    assert 1_000 * sum(ms <= found_ms for ms in lengths_ms) >= thousandths * len(lengths_ms)
    assert thousandths == 0 or 1_000 * sum(ms < found_ms for ms in lengths_ms) < thousandths * len(lengths_ms)
    assert in_sql(quantile_sql("ms", thousandths / 1_000), lengths_ms) == found_ms


@given(st.lists(st.integers(-(10**6), 10**9), min_size=1, max_size=40), st.sampled_from([0.5, 0.9, 0.99, 0.0, 1.0]))
def test_python_sql_columns_and_buckets_take_the_same_rank_as_numpy(lengths_ms, q):
    expected_ms = np.quantile(lengths_ms, q, method="inverted_cdf")
    assert quantile_of(lengths_ms, q) == expected_ms
    assert in_sql(quantile_sql("ms", q), [*lengths_ms, None]) == expected_ms
    assert in_column([*lengths_ms, None], q) == expected_ms
    assert quantile([(bucket_of(ms), 1) for ms in lengths_ms], q) == value_of(bucket_of(int(expected_ms)))


@given(st.lists(st.integers(-(10**6), 10**9), min_size=1, max_size=40))
def test_the_median_of_a_column_is_a_value_of_it(lengths_ms):
    """Polars and Python's statistics would take the mean of two neighbours."""
    frame = pl.DataFrame({"ms": [None, *lengths_ms], "all": 0}, schema={"ms": pl.Int64(), "all": pl.Int8()})
    found = frame.group_by("all").agg(median_of(pl.col("ms")))["ms"]
    assert found.to_list() == [np.quantile(lengths_ms, 0.5, method="inverted_cdf")]


@pytest.mark.parametrize("lengths_ms", [[], [None]])
def test_without_a_value_there_is_no_quantile(lengths_ms):
    assert in_sql(median_sql("ms"), lengths_ms) is None
    assert in_column(lengths_ms, 0.5) is None
    assert pl.DataFrame({"ms": lengths_ms}, schema={"ms": pl.Int64()}).select(median_of(pl.col("ms"))).item() is None
