"""Computes the measurements of one operator in a batch: latency per task and streaming window, records per window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from tidemark.kernels.aggregates.windows import in_windows, window_start
from tidemark.kernels.columns.buckets import STATISTICS, bucket_of, merged
from tidemark.model.settings.windows import Shape, Windows
from tidemark.selection import outside
from tidemark.semantics.completeness import DAY_MS, IntervalCount, Intervals
from tidemark.semantics.latency import Times, latency_at

TIMES: Mapping[str, pl.DataType] = {
    "_timestamp_ms": pl.Int64(),
    "_newest_ms": pl.Int64(),
    "_task": pl.Int32(),
    "n": pl.UInt32(),
}
"""Counts of finished records, by record time, newest record and task."""


def times_of(records: pl.DataFrame) -> pl.DataFrame:
    """Counts *records* by their times and task, without repeated ones, which have been measured before.

    Records that a source has just read may lack `_newest_ms` and `_repeated`: the newest record that each reflects is
    itself, and none is repeated.
    """
    if "_newest_ms" not in records.columns:
        records = records.with_columns(_newest_ms="_timestamp_ms", _repeated=pl.lit(value=False))
    fresh = records.select("_timestamp_ms", "_newest_ms", "_task", "_repeated").filter(~pl.col("_repeated"))
    # Times in the order of their records take a third of the bytes in a journal entry.
    by_time = fresh.group_by("_timestamp_ms", "_newest_ms", "_task", maintain_order=True)
    return by_time.agg(n=pl.len()).select(*TIMES)


def latency_stats(times: pl.DataFrame | pl.LazyFrame, *, finished_at_ms: int) -> dict[int, dict[str, int | None]]:
    """Returns, by task, n, min_ms, max_ms, sum_ms and negative_n of the latencies at *finished_at_ms* (KIP-613).

    A result has the latency of the newest record that it reflects. negative_n counts latencies below 0.
    """
    timestamp, n = pl.col("_newest_ms"), pl.col("n").cast(pl.Int64)
    per_task = (
        times.lazy()
        .group_by("_task")
        .agg(
            n.sum(),
            negative_n=n.filter(timestamp > finished_at_ms).sum(),
            min_ms=timestamp.min(),
            max_ms=timestamp.max(),
            # The sum of epoch times of some million records exceeds 64 bits, the sum of differences does not.
            ahead_ms=((timestamp - finished_at_ms) * n).sum(),
        )
    )
    stats: dict[int, dict[str, int | None]] = {}
    for row in _collected(per_task.sort("_task"), times).iter_rows(named=True):
        sum_ms = row["ahead_ms"] + finished_at_ms * row["n"]
        task_times = Times(n=row["n"], min_ms=row["min_ms"], max_ms=row["max_ms"], sum_ms=sum_ms)
        latency = latency_at(task_times, finished_at_ms=finished_at_ms)
        stats[row["_task"]] = {"negative_n": row["negative_n"], **asdict(latency)}
    return stats


def over_all_tasks(stats: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Merges the latency *stats* of the tasks of an operator; empty without any."""
    if not stats:
        return {}
    sums = {name: sum(task[name] for task in stats) for name in ("n", "sum_ms", "negative_n")}
    return {**sums, "min_ms": min(task["min_ms"] for task in stats), "max_ms": max(task["max_ms"] for task in stats)}


def latency_buckets(times: pl.DataFrame | pl.LazyFrame, *, finished_at_ms: int, window_ms: int) -> pl.DataFrame:
    """Returns n, min_ms, max_ms and sum_ms of latencies by `_task`, `window_start` (epoch ms) and `bucket`.

    The window is that of the newest record that a result reflects, as the latency is.
    """
    latency_ms, n = finished_at_ms - pl.col("_newest_ms"), pl.col("n").cast(pl.Int64())
    start_ms = window_start(pl.col("_newest_ms"), size_ms=window_ms)
    per_bucket = (
        times.lazy()
        .select("_task", n=n, window_start=start_ms, latency_ms=latency_ms, bucket=bucket_of(latency_ms))
        .group_by("_task", "window_start", "bucket")
        .agg(
            pl.col("n").sum(),
            min_ms=pl.col("latency_ms").min(),
            max_ms=pl.col("latency_ms").max(),
            sum_ms=(pl.col("latency_ms") * pl.col("n")).sum(),
        )
    )
    return _collected(per_bucket, times)


def _collected(of_times: pl.LazyFrame, times: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """Returns the rows of *of_times*, which are made of *times*."""
    # Times that are not in memory may be too many for it. The streaming engine starts threads of its own.
    return of_times.collect(engine="streaming" if isinstance(times, pl.LazyFrame) else "in-memory")


def add_up(minutes: pl.DataFrame) -> pl.DataFrame:
    """Merges rows of `latency_minutes` from several batches into one for each minute, window and task.

    The merged row has the last of their batches. Rows of a source from a batch that closed windows are not merged: they
    show with which record the windows could close.
    """
    of_batch = ("batch_id", "decided_at", "finished_at")
    same = [*outside(minutes.columns, {*of_batch, *STATISTICS, "buckets"}), "_minute", "_alone"]
    in_order = minutes.lazy().sort("batch_id", maintain_order=True).with_columns(
        _minute=pl.col("finished_at").dt.epoch("ms") // 60_000, _alone=pl.when("closed_windows").then("batch_id")
    )  # fmt: skip
    rows = merged(in_order, same, pl.col(of_batch).last()).select(minutes.columns)
    return rows.sort("operator", "task_id", "window_start", "batch_id")


def records_per_window(times: pl.DataFrame, *, window_ms: int) -> dict[int, int]:
    """Counts records per streaming window, by the window's start (epoch ms)."""
    return dict(times.group_by(_window_start(window_ms)).agg(pl.col("n").sum()).iter_rows())


def per_interval(times: pl.DataFrame, results: pl.DataFrame, intervals: Intervals) -> dict[int, IntervalCount]:
    """Counts records and results of a table per interval, by the interval's start (epoch ms).

    Args:
        times: counts of the records that the table's operator finished, as `times_of` returns them.
        results: the rows that it sends on or writes. Repeated rows are skipped, because they were counted before.
        intervals: the intervals of the table.
    """
    fresh = results.filter(~pl.col("_repeated"))
    first = pl.struct("_partition", "_offset").sort_by("_partition", "_offset").first()
    emitted = (
        _in_intervals(fresh.select("_timestamp_ms", "_partition", "_offset"), intervals)
        .group_by("start")
        .agg(emitted=pl.len(), first=first)
    )
    finished = _in_intervals(times, intervals).group_by("start").agg(records=pl.col("n").sum())
    counts: dict[int, IntervalCount] = {}
    for row in finished.join(emitted, on="start", how="full", coalesce=True).iter_rows(named=True):
        first = row["first"]
        counts[row["start"]] = IntervalCount(
            row["records"] or 0, row["emitted"] or 0, first and (first["_partition"], first["_offset"])
        )
    return counts


def _in_intervals(rows: pl.DataFrame, intervals: Intervals) -> pl.DataFrame:
    """Returns *rows* with the `start` of their interval."""
    every_ms, start = intervals.every_ms, pl.col("window_start")
    # In a zone, parts of days are counted from midnight; all others are windows.
    in_days = intervals.timezone is not None and every_ms < DAY_MS
    size_ms = DAY_MS if in_days else every_ms
    windows = Windows(shape=Shape.TUMBLING, size_ms=size_ms, hop_ms=size_ms, timezone=intervals.timezone)
    since = pl.col("_timestamp_ms") - start
    return in_windows(rows, windows).with_columns(start=start + since // every_ms * every_ms if in_days else start)


def windows_of(records: pl.DataFrame, *, window_ms: int) -> frozenset[int]:
    """Returns the starts of the streaming windows that *records* are in."""
    return frozenset(records.select(_window_start(window_ms).unique()).to_series())


def _window_start(window_ms: int) -> pl.Expr:
    return window_start(pl.col("_timestamp_ms"), size_ms=window_ms).alias("start")
