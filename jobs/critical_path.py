"""Finds the critical path of every window of a topology that ends in [--from, --to), across its sub-topologies.

Running it again puts the windows as they are known by then in place of themselves. With --html it also writes a page
about the interval, from the tables as they are then.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from pyspark.sql import SparkSession

from tidemark.cli.sql import Warehouse
from tidemark.report.batch_job import interval_parser
from tidemark.report.critical_paths import critical_windows
from tidemark.report.page import write_pages
from tidemark.report.report_tables import replace_rows
from tidemark.semantics.critical_path import Upstreams
from tidemark.spark import read_table, session
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.tables import CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS


def main() -> None:
    """Run as the command line says."""
    arguments = interval_parser(__doc__)
    arguments.add_argument(
        "--html", type=Path, metavar="FILE|FOLDER", help="write the page there; in a folder also that of the day"
    )
    given = arguments.parse_args()
    interval = Interval(given.start_ms, given.end_ms)
    with session("tidemark-critical-path") as spark:
        run(spark, given.warehouse, given.topology.name, given.topology.upstreams, interval)
    if given.html:
        write_pages(Warehouse(given.warehouse.warehouse), given.topology, interval, given.html)


def run(spark: SparkSession, layout: Layout, topology: str, upstreams: Upstreams, interval: Interval) -> None:
    """Replace the paths and steps of the windows that end in *interval*."""
    finished = read_table(spark, layout, topology, OPERATOR_WINDOWS).where(interval.holds("window_end"))
    windows = pl.DataFrame(critical_windows(finished, upstreams).toArrow())
    steps = windows.select("topology", "window_start", "window_end", "steps").explode("steps").unnest("steps")
    for table, rows in ((CRITICAL_PATHS, windows.drop("steps")), (CRITICAL_PATH_STEPS, steps)):
        replace_rows(rows, table, layout.report_table(topology, table.name), where=interval.holds("window_end"))


if __name__ == "__main__":
    main()
