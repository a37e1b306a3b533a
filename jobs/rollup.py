"""Rolls the latencies of a topology up by minute, hour and day, for every interval that [--from, --to) touches.

Running it again puts the same rows in place of themselves.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.batch_job import interval_parser
from tidemark.intervals import Interval
from tidemark.layout import Layout
from tidemark.replace import replace_rows
from tidemark.rollup import bucket_rollup, latency_rollup, touched
from tidemark.spark import read_table, session
from tidemark.tables import LATENCY_BUCKET_ROLLUP, LATENCY_BUCKETS, LATENCY_ROLLUP, OPERATOR_LATENCY


def main() -> None:
    """Run as the command line says."""
    given = interval_parser(__doc__).parse_args()
    interval = Interval.parse(given.start, given.end)
    with session("tidemark-rollup") as spark:
        run(spark, given.warehouse, given.topology.name, interval)


def run(spark: SparkSession, layout: Layout, topology: str, interval: Interval) -> None:
    """Replace both rollups of what *interval* touches."""
    facts = {table: read_table(spark, layout, topology, table) for table in (LATENCY_BUCKETS, OPERATOR_LATENCY)}
    stored = {table: read_table(spark, layout, topology, table) for table in (LATENCY_BUCKET_ROLLUP, LATENCY_ROLLUP)}
    buckets = bucket_rollup(facts[LATENCY_BUCKETS], stored[LATENCY_BUCKET_ROLLUP], interval).cache()
    latencies = latency_rollup(facts[OPERATOR_LATENCY], stored[LATENCY_ROLLUP], buckets, interval)
    for table, rows in ((LATENCY_BUCKET_ROLLUP, buckets), (LATENCY_ROLLUP, latencies)):
        replace_rows(rows.toArrow(), table, layout.report_table(topology, table.name), where=touched(interval))


if __name__ == "__main__":
    main()
