"""Reads facts in Spark's tasks, for reports that would need too much memory in one process.

Rows that are still in a journal are not among them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.kernels.reports import rollups
from tidemark.kernels.reports.rollups import FACTS, NO_TASKS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.tables.catalog import LATENCY_MINUTES, OPERATOR_WINDOWS
from tidemark.query.spark import read_table, rows_of
from tidemark.spark_session import in_groups, session


def by_minute(files: Sequence[str], minutes: Collection[Interval]) -> pl.DataFrame:
    """Returns the latencies of each operator and minute, as `kernels.reports.rollups.by_minute` does.

    A task reads the rows of one operator and minute at a time. A column that a file lacks is null. Spark is started,
    and left running.

    Args:
        files: paths of data files of `latency_minutes`.
        minutes: the minutes of the finish clock that are counted.
    """
    spark = session("tidemark-rollup")
    schema = rows_of(spark, LATENCY_MINUTES.name, ()).schema
    # Spark reads paths as patterns.
    escaped = [re.sub(r"([][{}*?\\])", r"\\\1", path) for path in files]
    is_counted = " or ".join(minute.holds("finished_at") for minute in minutes)
    facts = spark.read.schema(schema).parquet(*escaped).where(is_counted)
    by = [F.col("operator"), F.date_trunc(Grain.MINUTE.value, "finished_at")]

    def counted(rows: pl.DataFrame) -> pl.DataFrame:
        return rollups.by_minute(rows.lazy(), minutes).cast(NO_TASKS.schema)

    return pl.concat([NO_TASKS, *in_groups(facts.select(*FACTS), by, counted)])


def finished_windows(layout: Layout, topology: str, ends: Interval) -> DataFrame:
    """Returns the rows of `operator_windows` whose window ends in *ends*. Spark is started, and left running."""
    windows = read_table(session("tidemark-critical-path"), layout, topology, OPERATOR_WINDOWS)
    return windows.where(ends.holds("window_end"))
