"""Finds the critical path of every window of a topology that ends in [--from, --to), across its sub-topologies.

Running it again puts the windows as they are known by then in place of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from pyspark.sql import SparkSession

from tidemark.report.batch_job import interval_parser
from tidemark.report.critical_paths import critical_windows, looks_back_ms
from tidemark.report.dag_columns import WINDOW
from tidemark.report.promises import promises
from tidemark.report.report_tables import replace_rows
from tidemark.spark import PROJECT, read_table, session
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import SlaSpec, load
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS
from tidemark.spec.topology import Topology

SLAS = PROJECT / "expectations" / "slas.toml"


def main() -> None:
    """Run as the command line says."""
    given = interval_parser(__doc__).parse_args()
    interval = Interval(given.start_ms, given.end_ms)
    with session("tidemark-critical-path") as spark:
        run(spark, given.warehouse, given.topology, load(SLAS, given.topology), interval)


def run(spark: SparkSession, layout: Layout, topology: Topology, specs: Sequence[SlaSpec], interval: Interval) -> None:
    """Replace the paths, steps and leaves of the windows that end in *interval*; *specs* are what is promised.

    The paths come last: one that is there has its steps.
    """
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    finished = read_table(spark, layout, topology.name, OPERATOR_WINDOWS).where(averaged.holds("window_end"))
    found = critical_windows(finished, topology, promises(specs)).where(interval.holds("window_end"))
    windows = pl.DataFrame(found.toArrow())
    tables = {
        CRITICAL_PATH_STEPS: _each(windows, "steps"),
        CRITICAL_PATH_LEAVES: _each(windows, "leaves"),
        CRITICAL_PATHS: windows.drop("steps", "leaves"),
    }
    for table, rows in tables.items():
        path = layout.report_table(topology.name, table.name)
        replace_rows(rows, table, path, where=interval.holds("window_end"))


def _each(windows: pl.DataFrame, what: str) -> pl.DataFrame:
    """One row for each of what the array column *what* of *windows* has."""
    return windows.select(*WINDOW, what).drop_nulls(what).explode(what).unnest(what)


if __name__ == "__main__":
    main()
