"""Counts facts about latency in Spark, where they are too many for one process (ring 2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.kernels.rollups import NO_TASKS, TASK
from tidemark.spark import no_rows
from tidemark.spec.intervals import Grain, Interval
from tidemark.spec.tables import Table


def by_minute(
    spark: SparkSession, files: Mapping[Table, Sequence[str]], minutes: Collection[Interval], newest: int
) -> pl.DataFrame:
    """As `kernels.rollups.by_minute`, of the rows in *files* of the batches up to *newest*."""
    buckets, latencies = (_rows(spark, table, paths) for table, paths in files.items())
    is_counted = " or ".join(minute.holds("finished_at") for minute in minutes)
    facts = buckets.unionByName(latencies, allowMissingColumns=True).where(f"batch_id <= {newest} and ({is_counted})")
    minute = F.date_trunc(Grain.MINUTE.value, "finished_at").alias("interval_start")
    merges = {"n": F.sum, "min_ms": F.min, "max_ms": F.max, "sum_ms": F.sum, "negative_n": F.sum}
    merged = (merge(column).alias(column) for column, merge in merges.items())
    counted = facts.groupBy(*TASK, minute, "bucket").agg(*merged).select(*NO_TASKS.columns)
    return pl.DataFrame(counted.toArrow()).cast(NO_TASKS.schema)


def _rows(spark: SparkSession, table: Table, paths: Sequence[str]) -> DataFrame:
    """The rows in the files *paths* of *table*; a column that a file lacks is null."""
    none = no_rows(spark, table)
    as_written = [re.sub(r"([][{}*?\\])", r"\\\1", path) for path in paths]  # Spark takes paths for patterns
    return spark.read.schema(none.schema).parquet(*as_written) if paths else none
