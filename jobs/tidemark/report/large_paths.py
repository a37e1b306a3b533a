"""Finds critical paths on Spark's executors, an hour at a time, where they are too many for one process (ring 2)."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.report.promises import Promises
from tidemark.report.window_paths import Known, looks_back_ms, window_paths
from tidemark.spec.intervals import Grain, Interval
from tidemark.spec.tables import Table
from tidemark.spec.topology import Topology

HOUR_MS = Grain.HOUR.length_ms


def by_executors(
    operator_windows: DataFrame, topology: Topology, promises: Promises, interval: Interval, known: Known
) -> dict[Table, pl.DataFrame]:
    """As `window_paths`; each hour is worked on with the rows that its first averages look back to."""
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    end_ms = F.unix_millis("window_end") - interval.start_ms
    first, last = F.floor(end_ms / HOUR_MS), F.floor((end_ms + looks_back_ms(topology)) / HOUR_MS)
    hours = operator_windows.where(averaged.holds("window_end")).withColumn("hour", F.explode(F.sequence(first, last)))
    hours = hours.where((F.col("hour") >= 0) & (F.col("hour") < interval.length_ms / HOUR_MS))
    found = hours.groupBy("hour").applyInArrow(_finding(topology, promises, interval, known), "found binary").collect()
    parts = [pickle.loads(row["found"]) for row in found]
    none = window_paths(pl.DataFrame(operator_windows.limit(0).toArrow()), topology, promises, interval)
    return {table: pl.concat([rows, *(part[table] for part in parts)]) for table, rows in none.items()}


def _finding(
    topology: Topology, promises: Promises, interval: Interval, known: Known
) -> Callable[[pa.Table], pa.Table]:
    def find(rows: pa.Table) -> pa.Table:
        start_ms = interval.start_ms + rows["hour"][0].as_py() * HOUR_MS
        hour = Interval(max(start_ms, interval.start_ms), min(start_ms + HOUR_MS, interval.end_ms))
        of_hour = window_paths(pl.DataFrame(rows.drop_columns("hour")), topology, promises, hour, known)
        return pa.table({"found": pa.array([pickle.dumps(of_hour)], pa.binary())})

    return find
