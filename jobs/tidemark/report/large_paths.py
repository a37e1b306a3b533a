"""Finds critical paths an hour at a time, where there are too many rows for one process: Spark reads them (ring 2)."""

from __future__ import annotations

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.kernels.schemas import rows_of
from tidemark.report.promises import Promises
from tidemark.report.window_paths import Known, Paths, looks_back_ms, window_paths
from tidemark.spec.intervals import Grain, Interval
from tidemark.spec.tables import OPERATOR_WINDOWS
from tidemark.spec.topology import Topology


def by_hours(
    operator_windows: DataFrame, topology: Topology, promises: Promises, interval: Interval, known: Known
) -> Paths:
    """As `window_paths`; of the rows only those of an hour, and those that its averages look back to, come here.

    Hours of *interval* without a row, of which there may be any number, cost nothing.
    """
    hour_ms = Grain.HOUR.length_ms
    of = F.floor((F.unix_millis("window_end") - interval.start_ms) / hour_ms).alias("hour")
    hours = operator_windows.where(interval.holds("window_end")).select(of).distinct().collect()
    parts = [window_paths(pl.DataFrame(rows_of(OPERATOR_WINDOWS, [])), topology, promises, interval, known)]
    for start_ms in sorted(interval.start_ms + row["hour"] * hour_ms for row in hours):
        hour = Interval(start_ms, min(start_ms + hour_ms, interval.end_ms))
        averaged = Interval(start_ms - looks_back_ms(topology), hour.end_ms)
        rows = pl.DataFrame(operator_windows.where(averaged.holds("window_end")).toArrow())
        parts.append(window_paths(rows, topology, promises, hour, known))
    tables = {table: pl.concat(part.tables[table] for part in parts) for table in parts[0].tables}
    return Paths(tables, pl.concat(part.finished for part in parts))
