"""Merges latency by interval: hours from minutes, days from hours, percentiles from the buckets.

A frame of *measured* rows has OPERATOR, `interval_start`, and either a `bucket` with its `n`, or a null bucket and the
statistics of all records: `n`, `min_ms`, `max_ms`, `sum_ms`, `negative_n`.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tidemark.semantics.buckets import value_of
from tidemark.spec.intervals import Grain, Interval

OPERATOR = ("topology", "sub_topology", "operator", "kind")
QUANTILES: Mapping[str, float] = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


def other_hours(stored: pl.LazyFrame, interval: Interval) -> pl.LazyFrame:
    """The hours among *stored* rollups that a rollup of *interval* leaves as they are, and needs for its days."""
    touched, days = interval.widened(Grain.HOUR), interval.widened(Grain.DAY)
    start_ms = pl.col("interval_start").dt.epoch("ms")
    in_days = start_ms.is_between(days.start_ms, days.end_ms, closed="left")
    is_touched = start_ms.is_between(touched.start_ms, touched.end_ms, closed="left")
    return stored.filter(pl.col("grain") == Grain.HOUR.value, in_days, ~is_touched)


def by_grain(minutes: pl.DataFrame, other_hours: pl.DataFrame) -> pl.DataFrame:
    """The measured rows of all grains: *minutes*, the hours they add up to, and the days of these and *other_hours*."""
    hours = _merged(minutes, Grain.HOUR)
    days = _merged(pl.concat([hours, other_hours.select(hours.columns)]), Grain.DAY)
    frames = {Grain.MINUTE: minutes.select(hours.columns), Grain.HOUR: hours, Grain.DAY: days}
    return pl.concat(
        frame.with_columns(
            grain=pl.lit(grain.value), interval_end=pl.col("interval_start").dt.offset_by(_LENGTH[grain])
        )
        for grain, frame in frames.items()
    )


def buckets(measured: pl.DataFrame) -> pl.DataFrame:
    """The *measured* rows of buckets."""
    return measured.filter(pl.col("bucket").is_not_null())


def latencies(measured: pl.DataFrame) -> pl.DataFrame:
    """The statistics of *measured* rows, one per operator and interval, with the average and percentiles."""
    interval = [*OPERATOR, "grain", "interval_start", "interval_end"]
    statistics = measured.filter(pl.col("bucket").is_null()).with_columns(avg_ms=pl.col("sum_ms") / pl.col("n"))
    return statistics.join(percentiles(buckets(measured), interval), on=interval, how="left", nulls_equal=True)


def percentiles(counts: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """One row per *by* with the quantiles that QUANTILES names, of the rank of `buckets.quantile`: ⌊q · (N − 1)⌋."""
    stands_for = {bucket: value_of(bucket) for bucket in counts["bucket"].unique()}
    value_ms = pl.col("bucket").replace_strict(stands_for, return_dtype=pl.Float64)
    up_to, total = pl.col("n").cum_sum(), pl.col("n").sum()
    quantiles = {name: value_ms.filter(up_to > (q * (total - 1)).floor()).min() for name, q in QUANTILES.items()}
    return counts.sort("bucket").group_by(by).agg(**quantiles)


_LENGTH: Mapping[Grain, str] = {Grain.MINUTE: "1m", Grain.HOUR: "1h", Grain.DAY: "1d"}


def _merged(measured: pl.DataFrame, grain: Grain) -> pl.DataFrame:
    return measured.group_by(*OPERATOR, pl.col("interval_start").dt.truncate(_LENGTH[grain]), "bucket").agg(
        pl.sum("n"), pl.min("min_ms"), pl.max("max_ms"), _sum("sum_ms"), _sum("negative_n")
    )


def _sum(column: str) -> pl.Expr:
    """The sum; null where nothing was measured, as in rows of buckets."""
    return pl.when(pl.col(column).count() > 0).then(pl.sum(column))
