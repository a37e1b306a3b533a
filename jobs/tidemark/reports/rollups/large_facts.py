"""Counts facts about latency in Spark's tasks.

The reports do so where there are too many for one process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.kernels.reports import rollups
from tidemark.kernels.reports.operator_tasks import LATENCY, OPERATOR
from tidemark.kernels.reports.rollups import FACTS, NO_TASKS
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.tables.catalog import Table
from tidemark.query.spark import rows_of
from tidemark.spark_session import in_groups, session


def by_minute(files: Mapping[Table, Sequence[str]], minutes: Collection[Interval], newest: int) -> pl.DataFrame:
    """Returns `kernels.reports.rollups.by_minute` of the rows in *files*.

    A task has the rows of one operator and minute at a time. Spark is started, and left running.

    Args:
        files: paths of data files, by table.
        minutes: of the finish clock, that are counted.
        newest: the last batch whose rows are counted.
    """
    spark = session("tidemark-rollup")
    buckets, operators = (_rows(spark, table, paths) for table, paths in files.items())
    of_operators = (*OPERATOR, "finished_at")
    tasks = operators.select(*of_operators, F.explode("tasks").alias("task"))
    latencies = tasks.select(*of_operators, *(F.col(f"task.{name}") for name in LATENCY)).where("n is not null")
    is_counted = " or ".join(minute.holds("finished_at") for minute in minutes)
    facts = buckets.unionByName(latencies, allowMissingColumns=True).where(f"batch_id <= {newest} and ({is_counted})")
    by = [F.col("operator"), F.date_trunc(Grain.MINUTE.value, "finished_at")]

    def counted(rows: pl.DataFrame) -> pl.DataFrame:
        return rollups.by_minute(rows.lazy(), minutes).collect().cast(NO_TASKS.schema)

    return pl.concat([NO_TASKS, *in_groups(facts.select(*FACTS), by, counted)])


def _rows(spark: SparkSession, table: Table, paths: Sequence[str]) -> DataFrame:
    """Reads the rows in the files *paths* of *table*.

    A column that a file lacks is null.
    """
    none = rows_of(spark, table.name, ())
    # Spark reads paths as patterns.
    escaped = [re.sub(r"([][{}*?\\])", r"\\\1", path) for path in paths]
    return spark.read.schema(none.schema).parquet(*escaped) if paths else none
