"""The buckets of `tidemark.semantics.buckets` for whole columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import polars as pl

from tidemark.semantics.buckets import GAMMA, RELATIVE_ERROR


def bucket_of(value_ms: pl.Expr) -> pl.Expr:
    """Returns the bucket of each signed value in whole milliseconds, as Int16.

    Null for null.
    """
    magnitude = 1 + (value_ms.cast(pl.Float64).abs().log() / math.log(GAMMA)).ceil()
    return pl.when(value_ms == 0).then(value_ms).otherwise(magnitude * value_ms.sign()).cast(pl.Int16)


def value_of(bucket: str) -> pl.Expr:
    """Returns the value in whole milliseconds that each *bucket* stands for.

    It is an Int64 and within the relative error.
    """
    index = pl.col(bucket).cast(pl.Int64())
    magnitude_ms = GAMMA ** (index.abs() - 1).cast(pl.Float64()) * (1 - RELATIVE_ERROR)
    return pl.when(index == 0).then(0).otherwise((magnitude_ms * index.sign()).round()).cast(pl.Int64())


STATISTICS = ("n", "min_ms", "max_ms", "sum_ms", "negative_n")
"""Columns with statistics of latencies, beside `buckets`."""
_OF_COUNTS = (
    pl.sum("n", "sum_ms"),
    pl.min("min_ms"),
    pl.max("max_ms"),
    pl.col("n").filter(pl.col("bucket") < 0).sum().alias("negative_n"),
)
"""STATISTICS of rows with the same latencies by bucket. Latencies in buckets below 0 are negative."""
_LISTED = pl.struct(pl.col("bucket").cast(pl.Int32()), pl.col("n").cast(pl.Int64())).alias("buckets")


def statistics(latencies: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Returns STATISTICS for each group of equal *by*, sorted by it; *latencies* has a row for each
    group and bucket.
    """
    return latencies.lazy().group_by(by).agg(*_OF_COUNTS).sort(by).collect()


def in_lists(latencies: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Returns STATISTICS and the list `buckets` for each group of equal *by*, sorted by it.

    *latencies* has a row for each group and bucket.
    """
    # Each step at once: to plan them together takes three times as long as to carry them out for a small batch.
    return latencies.sort("bucket").group_by(by).agg(*_OF_COUNTS, _LISTED).sort(by)


def in_rows(lists: pl.LazyFrame) -> pl.LazyFrame:
    """Returns a row with `bucket` and `n` for each bucket in the column `buckets` of *lists*."""
    return lists.explode("buckets").filter(pl.col("buckets").is_not_null()).unnest("buckets")


def merged(
    latencies: pl.LazyFrame,
    by: Sequence[str],
    *others: pl.Expr,
    engine: Literal["in-memory", "streaming"] = "in-memory",
) -> pl.DataFrame:
    """Merges rows of equal *by* into one.

    Args:
        latencies: rows with STATISTICS and the list `buckets`.
        by: the columns that rows have in common.
        others: aggregates of further columns.
        engine: the streaming engine is for more rows than fit into memory.
    """
    extremes = pl.min("min_ms"), pl.max("max_ms")
    statistics = latencies.group_by(by).agg(pl.sum("n", "sum_ms", "negative_n"), *extremes, *others)
    counts = in_rows(latencies.select(*by, "buckets")).group_by(*by, "bucket").agg(pl.sum("n"))
    # Within a group the order of rows stays.
    lists = counts.sort("bucket").group_by(by).agg(_LISTED)
    # In one plan with the statistics, 19 million buckets take the streaming engine 2 GB instead of 0.5.
    return statistics.collect(engine=engine).join(lists.collect(engine=engine), on=by, how="left", nulls_equal=True)
