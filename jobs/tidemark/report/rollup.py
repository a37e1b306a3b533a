"""Latency by minute of the finish clock, as a Spark frame: the part of a rollup that reads facts (ring 1).

The rest is merging, which `kernels.rollups` does on what is small by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.kernels.rollups import TASK
from tidemark.spec.intervals import Grain, Interval, is_text

STATISTICS = {"min_ms": F.min, "max_ms": F.max, "sum_ms": F.sum, "negative_n": F.sum}


def by_minute(buckets: DataFrame, latencies: DataFrame, intervals: Collection[Interval]) -> DataFrame:
    """Measured rows by minute, of the rows of latency_buckets and operator_latency that finished in *intervals*.

    One row per task, minute and bucket, and one with a null bucket for the statistics of all records.
    """
    facts = buckets.unionByName(latencies, allowMissingColumns=True).where(any_holds(intervals, "finished_at"))
    minute = F.date_trunc("minute", "finished_at").alias("interval_start")
    merged = (merge(name).alias(name) for name, merge in STATISTICS.items())
    return facts.groupBy(*TASK, minute, "bucket").agg(F.sum("n").alias("n"), *merged)


def replaced(intervals: Collection[Interval], hour: Interval) -> str:
    """A predicate: the row is one that a rollup of the minutes in *intervals*, which lie in *hour*, replaces."""
    starts = {Grain.MINUTE: intervals, Grain.HOUR: [hour], Grain.DAY: [hour.widened(Grain.DAY)]}
    each = (f"({is_text('grain', g)} and {any_holds(within, 'interval_start')})" for g, within in starts.items())
    return f"({' or '.join(each)})"


def any_holds(intervals: Iterable[Interval], column: str) -> str:
    """A predicate: the timestamp *column* lies in one of *intervals*."""
    return f"({' or '.join(interval.holds(column) for interval in intervals) or 'false'})"
