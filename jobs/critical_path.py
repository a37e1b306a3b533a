"""Finds the critical path of every window of a topology that ends in [--from, --to), across its sub-topologies.

Running it again puts the windows as they are known by then in place of themselves, unless facts about one are gone
that had its path: then it refuses. With --html it also writes a page about the interval, from the tables as they are
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tidemark.cli.sql import Warehouse
from tidemark.errors import InvalidArgument
from tidemark.place import location
from tidemark.report.batch_job import interval_parser, told, writing
from tidemark.report.critical_paths import critical_windows, looks_back_ms
from tidemark.report.dag_columns import WINDOW
from tidemark.report.page import write_pages
from tidemark.report.page_facts import READS
from tidemark.report.promises import promises
from tidemark.report.report_tables import lies_in, opened, replace_rows, rows_in
from tidemark.spark import PROJECT, read_table, session
from tidemark.spec.intervals import Interval, iso
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import SlaSpec, load
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS
from tidemark.spec.topology import Topology

SLAS = PROJECT / "expectations" / "slas.toml"


def main() -> None:
    """Run as the command line says."""
    arguments = interval_parser(__doc__)
    arguments.add_argument(
        "--html",
        type=told(location),
        metavar="FILE|FOLDER",
        help="write the page there; in a folder also that of the day",
    )
    given = arguments.parse_args()
    interval = Interval(given.start_ms, given.end_ms)
    with session("tidemark-critical-path") as spark, writing(given.warehouse, given.topology.name):
        run(spark, given.warehouse, given.topology, load(SLAS, given.topology), interval)
    if given.html:
        write_pages(Warehouse(given.warehouse.warehouse, READS), given.topology, interval, given.html)


def run(spark: SparkSession, layout: Layout, topology: Topology, specs: Sequence[SlaSpec], interval: Interval) -> None:
    """Replace the paths, steps and leaves of the windows that end in *interval*; *specs* are what is promised.

    The paths come last: one that is there has its steps.

    Raises:
        InvalidArgument: a window has a path that the facts that are left do not give; nothing was written.
    """
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    finished = read_table(spark, layout, topology.name, OPERATOR_WINDOWS).where(averaged.holds("window_end"))
    found = critical_windows(finished, topology, promises(specs)).where(interval.holds("window_end"))
    windows = pl.DataFrame(found.toArrow())
    _check_none_is_lost(layout.report_table(topology.name, CRITICAL_PATHS.name), windows, interval)
    tables = {
        CRITICAL_PATH_STEPS: _each(windows, "steps"),
        CRITICAL_PATH_LEAVES: _each(windows, "leaves"),
        CRITICAL_PATHS: windows.drop("steps", "leaves"),
    }
    for table, rows in tables.items():
        path = layout.report_table(topology.name, table.name)
        replace_rows(rows, table, path, where=interval.holds("window_end"))


def _check_none_is_lost(paths: Path, windows: pl.DataFrame, interval: Interval) -> None:
    """Raise InvalidArgument when a window of *interval* has a path among the stored *paths* and none in *windows*."""
    has_path = pc.field("latency_ms").is_valid()
    stored = rows_in(opened(CRITICAL_PATHS, paths), lies_in("window_end", interval) & has_path)
    stored_ms, found_ms = (
        set(rows["window_end"].dt.epoch("ms")) for rows in (stored, windows.filter(pl.col("latency_ms").is_not_null()))
    )
    if lost_ms := stored_ms - found_ms:
        msg = (
            f"{len(lost_ms)} windows that end from {iso(min(lost_ms))} to {iso(max(lost_ms))} have a path that facts "
            "do not give any more: some are gone, or the topology has changed; choose another interval, or delete the "
            f"windows' rows from {CRITICAL_PATHS.name} if they are to go"
        )
        raise InvalidArgument(msg)


def _each(windows: pl.DataFrame, what: str) -> pl.DataFrame:
    """One row for each of what the array column *what* of *windows* has."""
    return windows.select(*WINDOW, what).drop_nulls(what).explode(what).unnest(what)


if __name__ == "__main__":
    main()
