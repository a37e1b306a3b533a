"""Facts about one batch of one operator: latency per task, its histogram, and records per streaming window."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tidemark.kernels.buckets import bucket_of

TIMES: Mapping[str, pl.DataType] = {"_timestamp_ms": pl.Int64(), "_task": pl.Int32()}
"""What latency needs to know of a record: its time, and the task that had it."""


def latency_stats(times: pl.DataFrame, *, finished_at_ms: int) -> pl.DataFrame:
    """Per `_task`: n, min_ms, max_ms, sum_ms and negative_n of *finished_at_ms* − record time (KIP-613, signed)."""
    latency = finished_at_ms - pl.col("_timestamp_ms")
    stats = times.group_by("_task").agg(
        n=pl.len(),
        min_ms=latency.min(),
        max_ms=latency.max(),
        sum_ms=latency.sum(),
        negative_n=(latency < 0).sum(),
    )
    return stats.sort("_task")


def latency_histogram(times: pl.DataFrame, *, finished_at_ms: int) -> pl.DataFrame:
    """Per `_task` and bucket: n records whose latency falls in it."""
    latency = times.select("_task", bucket=bucket_of(finished_at_ms - pl.col("_timestamp_ms")))
    return latency.group_by("_task", "bucket").agg(n=pl.len()).sort("_task", "bucket")


def records_per_window(times: pl.DataFrame, *, window_ms: int) -> dict[int, int]:
    """Records per streaming window, by the window's start (epoch ms)."""
    start = pl.col("_timestamp_ms").floordiv(window_ms) * window_ms
    return dict(times.group_by(start.alias("start")).agg(n=pl.len()).iter_rows())
