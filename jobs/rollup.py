"""Rolls the latencies of a topology up by minute, hour and day, for every interval that [--from, --to) touches.

Running it again puts the same rows in place of themselves.
"""

from __future__ import annotations

import polars as pl
from pyspark.sql import SparkSession

from tidemark.delta import again_after_others
from tidemark.kernels.rollups import buckets, by_grain, latencies, other_hours
from tidemark.report.batch_job import interval_parser
from tidemark.report.report_tables import opened, replace_in, rows_in
from tidemark.report.rollup import minutes
from tidemark.spark import read_table, session
from tidemark.spec.intervals import Grain, Interval
from tidemark.spec.layout import Layout
from tidemark.spec.tables import LATENCY_BUCKET_ROLLUP, LATENCY_BUCKETS, LATENCY_ROLLUP, OPERATOR_LATENCY

ROLLUPS = (LATENCY_BUCKET_ROLLUP, LATENCY_ROLLUP)


def main() -> None:
    """Run as the command line says."""
    given = interval_parser(__doc__).parse_args()
    interval = Interval(given.start_ms, given.end_ms)
    with session("tidemark-rollup") as spark:
        run(spark, given.warehouse, given.topology.name, interval)


def run(spark: SparkSession, layout: Layout, topology: str, interval: Interval) -> None:
    """Replace both rollups of what *interval* touches; where another rollup did meanwhile, on top of that one."""
    again_after_others(lambda: _replace(spark, layout, topology, interval))


def _replace(spark: SparkSession, layout: Layout, topology: str, interval: Interval) -> None:
    buckets_of, latencies_of = (read_table(spark, layout, topology, t) for t in (LATENCY_BUCKETS, OPERATOR_LATENCY))
    tables = {table: opened(table, layout.report_table(topology, table.name)) for table in ROLLUPS}
    stored = pl.concat([rows_in(table) for table in tables.values()], how="diagonal")
    new = pl.DataFrame(minutes(buckets_of, latencies_of, interval.widened(Grain.HOUR)).toArrow())
    measured = by_grain(new, other_hours(stored, interval).collect())
    rollups = {LATENCY_BUCKET_ROLLUP: buckets(measured), LATENCY_ROLLUP: latencies(measured)}
    for table, rows in rollups.items():
        replace_in(tables[table], rows.select(table.names), table, where=interval.rolled_up())


if __name__ == "__main__":
    main()
