"""Facts about one batch of one operator: latency per task, its histogram, and records per streaming window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import polars as pl

from tidemark.kernels.buckets import bucket_of
from tidemark.kernels.windows import window_start
from tidemark.semantics.latency import Times, latency_at

TIMES: Mapping[str, pl.DataType] = {
    "_timestamp_ms": pl.Int64(),
    "_newest_ms": pl.Int64(),
    "_task": pl.Int32(),
    "n": pl.UInt32(),
}
"""What is kept of finished records: how many have a record time, a newest record, and the task that had them."""


def times_of(records: pl.DataFrame) -> pl.DataFrame:
    """*records* counted by their times and task; what only repeats others is no record that was finished."""
    fresh = records.filter(~pl.col("_repeated")) if "_repeated" in records.columns else records
    per_time = _with_newest(fresh.lazy()).group_by("_timestamp_ms", "_newest_ms", "_task").agg(n=pl.len())
    return per_time.select(*TIMES).collect()


def _with_newest(times: pl.LazyFrame) -> pl.LazyFrame:
    """*times* of which it is not known whether they reflect others: each reflects itself."""
    is_known = "_newest_ms" in times.collect_schema()
    return times if is_known else times.with_columns(_newest_ms="_timestamp_ms")


def latency_stats(times: pl.DataFrame | pl.LazyFrame, *, finished_at_ms: int) -> dict[int, dict[str, int | None]]:
    """By `_task`: n, min_ms, max_ms, sum_ms of the latencies at *finished_at_ms*, and negative_n of them (KIP-613).

    That of a result is the latency of the newest record that it reflects.
    """
    timestamp, n = pl.col("_newest_ms"), pl.col("n").cast(pl.Int64)
    per_task = (
        _with_newest(times.lazy())
        .group_by("_task")
        .agg(
            n.sum(),
            negative_n=n.filter(timestamp > finished_at_ms).sum(),
            min_ms=timestamp.min(),
            max_ms=timestamp.max(),
            # Epoch times of some million records do not add up in 64 bits.
            ahead_ms=((timestamp - finished_at_ms) * n).sum(),
        )
    )
    stats: dict[int, dict[str, int | None]] = {}
    for row in per_task.sort("_task").collect(engine="streaming").iter_rows(named=True):
        sum_ms = row["ahead_ms"] + finished_at_ms * row["n"]
        known = Times(n=row["n"], min_ms=row["min_ms"], max_ms=row["max_ms"], sum_ms=sum_ms)
        latency = latency_at(known, finished_at_ms=finished_at_ms)
        stats[row["_task"]] = {"negative_n": row["negative_n"], **asdict(latency)}
    return stats


def latency_histogram(times: pl.DataFrame | pl.LazyFrame, *, finished_at_ms: int) -> pl.DataFrame:
    """Per `_task` and bucket: n records whose latency falls in it."""
    latency = _with_newest(times.lazy()).select("_task", "n", bucket=bucket_of(finished_at_ms - pl.col("_newest_ms")))
    per_bucket = latency.group_by("_task", "bucket").agg(pl.col("n").sum())
    return per_bucket.sort("_task", "bucket").collect(engine="streaming")


def records_per_window(times: pl.DataFrame, *, window_ms: int) -> dict[int, int]:
    """Records per streaming window, by the window's start (epoch ms)."""
    return dict(times.group_by(_window_start(window_ms)).agg(pl.col("n").sum()).iter_rows())


def windows_of(records: pl.DataFrame, *, window_ms: int) -> frozenset[int]:
    """The starts of the streaming windows that *records* are in."""
    return frozenset(records.select(_window_start(window_ms).unique()).to_series())


def _window_start(window_ms: int) -> pl.Expr:
    return window_start(pl.col("_timestamp_ms"), size_ms=window_ms).alias("start")
