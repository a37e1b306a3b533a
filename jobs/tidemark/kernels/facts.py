"""Facts about one batch of one operator: latency per task, its histogram, and records per streaming window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import polars as pl

from tidemark.kernels.buckets import bucket_of
from tidemark.kernels.windows import window_start
from tidemark.semantics.latency import Times, latency_at

TIMES: Mapping[str, pl.DataType] = {"_timestamp_ms": pl.Int64(), "_task": pl.Int32()}
"""What latency needs to know of a record: its time, and the task that had it."""


def latency_stats(times: pl.DataFrame | pl.LazyFrame, *, finished_at_ms: int) -> dict[int, dict[str, int | None]]:
    """By `_task`: n, min_ms, max_ms, sum_ms of the latencies at *finished_at_ms*, and negative_n of them (KIP-613)."""
    timestamp = pl.col("_timestamp_ms")
    per_task = (
        times.lazy()
        .group_by("_task")
        .agg(
            pl.len(),
            negative_n=(timestamp > finished_at_ms).sum(),
            known=pl.struct(min_ms=timestamp.min(), max_ms=timestamp.max(), sum_ms=timestamp.sum()),
        )
    )
    return {
        task: {"negative_n": negative_n, **asdict(latency_at(Times(n=n, **known), finished_at_ms=finished_at_ms))}
        for task, n, negative_n, known in per_task.sort("_task").collect(engine="streaming").iter_rows()
    }


def latency_histogram(times: pl.DataFrame | pl.LazyFrame, *, finished_at_ms: int) -> pl.DataFrame:
    """Per `_task` and bucket: n records whose latency falls in it."""
    latency = times.lazy().select("_task", bucket=bucket_of(finished_at_ms - pl.col("_timestamp_ms")))
    per_bucket = latency.group_by("_task", "bucket").agg(n=pl.len())
    return per_bucket.sort("_task", "bucket").collect(engine="streaming")


def records_per_window(times: pl.DataFrame, *, window_ms: int) -> dict[int, int]:
    """Records per streaming window, by the window's start (epoch ms)."""
    start = window_start(pl.col("_timestamp_ms"), size_ms=window_ms)
    return dict(times.group_by(start.alias("start")).agg(n=pl.len()).iter_rows())
