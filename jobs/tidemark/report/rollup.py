"""Latency by minute of the finish clock, as a Spark frame: the part of a rollup that reads facts (ring 1).

The rest is merging, which `kernels.rollups` does on what is small by then.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.kernels.rollups import OPERATOR
from tidemark.spec.intervals import Interval

STATISTICS = {"min_ms": F.min, "max_ms": F.max, "sum_ms": F.sum, "negative_n": F.sum}


def minutes(buckets: DataFrame, latencies: DataFrame, interval: Interval) -> DataFrame:
    """Measured rows by minute, of the rows of latency_buckets and operator_latency that finished in *interval*.

    One row per operator, minute and bucket, and one with a null bucket for the statistics of all records.
    """
    facts = buckets.unionByName(latencies, allowMissingColumns=True).where(interval.holds("finished_at"))
    minute = F.date_trunc("minute", "finished_at").alias("interval_start")
    merged = (merge(name).alias(name) for name, merge in STATISTICS.items())
    return facts.groupBy(*OPERATOR, minute, "bucket").agg(F.sum("n").alias("n"), *merged)
