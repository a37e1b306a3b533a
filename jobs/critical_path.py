"""Finds the critical path of every window of a topology that ends in [--from, --to), across its sub-topologies.

Running it again puts the windows as they are known by then in place of themselves, unless facts about one are gone
that had its path: then it refuses. With --html it also writes a page about the interval, from the tables as they are
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.cli.sql import Warehouse
from tidemark.errors import InvalidArgument
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.place import location
from tidemark.report.batch_job import interval_parser, promised, told, writing
from tidemark.report.critical_paths import critical_windows, looks_back_ms
from tidemark.report.dag_columns import WINDOW
from tidemark.report.page import write_pages
from tidemark.report.page_facts import READS
from tidemark.report.promises import promises
from tidemark.report.report_tables import lies_in, opened, replace_rows, rows_in
from tidemark.report.window_paths import window_paths
from tidemark.spark import read_table, session, stream_tables
from tidemark.spec.intervals import Interval, iso
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS, Table
from tidemark.spec.topology import Topology

SPARK_ABOVE = 1_000_000
"""Rows of operator_windows that one process still looks through by itself."""


def main() -> None:
    """Run as the command line says."""
    arguments = interval_parser(__doc__)
    arguments.add_argument(
        "--html",
        type=told(location),
        metavar="FILE|FOLDER",
        help="write the page there; in a folder also that of the day",
    )
    spark_above = "rows of operator_windows above which Spark finds the paths (%(default)s)"
    arguments.add_argument("--spark-above", type=int, default=SPARK_ABOVE, metavar="ROWS", help=spark_above)
    given = arguments.parse_args()
    interval, specs = Interval(given.start_ms, given.end_ms), promised(given.topology)
    with writing(given.warehouse, given.topology.name):
        run(given.warehouse, given.topology, specs, interval, spark_above=given.spark_above)
    if given.html:
        write_pages(Warehouse(given.warehouse.warehouse, READS), given.topology, interval, given.html)


def run(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    interval: Interval,
    *,
    spark_above: int = SPARK_ABOVE,
) -> None:
    """Replace the paths, steps and leaves of the windows that end in *interval*; *specs* are what is promised.

    Spark finds them where there are more rows of operator_windows than *spark_above*. The paths come last: one that is
    there has its steps.

    Raises:
        InvalidArgument: a window has a path that the facts that are left do not give; nothing was written.
    """
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    facts = [DeltaTable(str(path)) for path in stream_tables(layout, topology.name, OPERATOR_WINDOWS.name)]
    ends = lies_in("window_end", averaged)
    if sum(table.to_pyarrow_dataset().count_rows(filter=ends) for table in facts) > spark_above:
        spark = session("tidemark-critical-path")
        finished = read_table(spark, layout, topology.name, OPERATOR_WINDOWS).where(averaged.holds("window_end"))
        windows = critical_windows(finished, topology, promises(specs)).where(interval.holds("window_end"))
        found = _tables(pl.DataFrame(windows.toArrow()))
    else:
        none = arrow_schema(OPERATOR_WINDOWS).empty_table()
        rows = pa.concat_tables([none, *(rows_of(OPERATOR_WINDOWS, rows_in(table, ends)) for table in facts)])
        found = window_paths(pl.DataFrame(rows), topology, promises(specs), interval)
    _check_none_is_lost(layout.report_table(topology.name, CRITICAL_PATHS.name), found[CRITICAL_PATHS], interval)
    for table, of_table in found.items():
        path = layout.report_table(topology.name, table.name)
        replace_rows(of_table, table, path, where=interval.holds("window_end"))


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


def _tables(windows: pl.DataFrame) -> dict[Table, pl.DataFrame]:
    """What `critical_windows` says of *windows*, by table."""

    def each(what: str) -> pl.DataFrame:
        return windows.select(*WINDOW, what).drop_nulls(what).explode(what).unnest(what)

    paths = windows.drop("steps", "leaves")
    return {CRITICAL_PATH_STEPS: each("steps"), CRITICAL_PATH_LEAVES: each("leaves"), CRITICAL_PATHS: paths}


if __name__ == "__main__":
    main()
