"""Finds the critical path of every window of a topology that ends in [--from, --to), across its sub-topologies.

Hours before that are found again where an operator finished a window of theirs since --from, or a window of the day
before had no path yet: so a driver that was down over night is in the report of the day that it worked on later.

Running it again puts the windows as they are known by then in place of themselves, unless facts about one are gone
that had its path: then it refuses. With --html it also writes a page about the interval, from the tables as they are
then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.cli.sql import Warehouse
from tidemark.clock import wall_clock_ms
from tidemark.datasets import dataset_of
from tidemark.errors import InvalidArgument
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.place import location
from tidemark.report.batch_job import interval_parser, promised, told, writing
from tidemark.report.large_paths import by_hours
from tidemark.report.page import write_pages
from tidemark.report.page_facts import READS
from tidemark.report.promises import promises
from tidemark.report.report_tables import lies_in, opened, replace_rows, rows_in
from tidemark.report.window_graph import Passed
from tidemark.report.window_paths import STANDS_STILL, Known, looks_back_ms, window_paths
from tidemark.report.window_verdicts import with_verdicts
from tidemark.semantics.critical_path import State
from tidemark.spark import read_table, session, stream_tables
from tidemark.spec.intervals import Grain, Interval, iso, utc
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.tables import BATCHES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS, Table
from tidemark.spec.topology import Topology

log = logging.getLogger("tidemark.critical_path")
PASSES_WITHIN_MS = 7 * Grain.DAY.length_ms
"""A driver without a record in a window is looked for so long after it, in record time."""
NO_WINDOWS = pl.DataFrame(schema={"operator": pl.String(), "window_end": pl.Datetime("us", "UTC")})
SPARK_ABOVE = 1_000_000
"""Rows of operator_windows that one process still looks through at once."""


def main() -> None:
    """Run as the command line says."""
    arguments = interval_parser(__doc__)
    arguments.add_argument(
        "--html",
        type=told(location),
        metavar="FILE|FOLDER",
        help="write the page there; in a folder also that of the day",
    )
    spark_above = "rows of operator_windows above which Spark reads them, an hour at a time (%(default)s)"
    arguments.add_argument("--spark-above", type=int, default=SPARK_ABOVE, metavar="ROWS", help=spark_above)
    given = arguments.parse_args()
    interval, specs = Interval(given.start_ms, given.end_ms), promised(given.topology)
    with writing(given.warehouse, given.topology.name):
        found = run(given.warehouse, given.topology, specs, interval, spark_above=given.spark_above)
    if given.html:
        tables = Warehouse(given.warehouse.warehouse, READS)
        others = [] if given.html.suffix == ".html" else found
        for each in dict.fromkeys([*others, interval]):
            write_pages(tables, given.topology, each, given.html, now_ms=wall_clock_ms())


def run(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    interval: Interval,
    *,
    spark_above: int = SPARK_ABOVE,
) -> list[Interval]:
    """Replace the paths, steps and leaves of the windows that end in *interval*; *specs* are what is promised.

    So it does in earlier hours that have windows which were finished since; these are returned. Spark reads an hour at
    a time where there are more rows of operator_windows than *spark_above*. The paths come last: one that is there has
    its steps.

    Raises:
        InvalidArgument: a window has a path that the facts that are left do not give; nothing of it was written.
    """
    earlier = list(_finished_later(layout, topology, interval))
    for hour in earlier:
        try:
            _replace(layout, topology, specs, hour, spark_above)
        except InvalidArgument as error:
            log.warning("what is stored stays: %s", error)
    _replace(layout, topology, specs, interval, spark_above)
    return earlier


def _replace(
    layout: Layout, topology: Topology, specs: Sequence[SlaSpec], interval: Interval, spark_above: int
) -> None:
    """Find and replace the paths of the windows that end in *interval*."""
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    facts = [DeltaTable(str(path)) for path in stream_tables(layout, topology.name, OPERATOR_WINDOWS.name)]
    ends = lies_in("window_end", averaged)
    known = Known(_passed(layout, topology, averaged), _newest(facts, interval))
    if sum(dataset_of(table).count_rows(filter=ends) for table in facts) > spark_above:
        finished = read_table(session("tidemark-critical-path"), layout, topology.name, OPERATOR_WINDOWS)
        paths = by_hours(finished, topology, promises(specs), interval, known)
    else:
        paths = window_paths(_rows(facts, ends), topology, promises(specs), interval, known)
    found = with_verdicts(paths, layout, topology, promises(specs), interval)
    stored = {table: opened(table, layout.report_table(topology.name, table.name)) for table in found}
    kept = _kept(stored, found, facts, interval)
    for table, of_table in found.items():
        path = layout.report_table(topology.name, table.name)
        rows = pl.concat([of_table, kept[table]], how="diagonal_relaxed") if table in kept else of_table
        replace_rows(rows, table, path, where=interval.holds("window_end"))


def _rows(facts: Sequence[DeltaTable], where: pc.Expression) -> pl.DataFrame:
    none = arrow_schema(OPERATOR_WINDOWS).empty_table()
    return pl.DataFrame(
        pa.concat_tables([none, *(rows_of(OPERATOR_WINDOWS, rows_in(table, where)) for table in facts)])
    )


def _newest(facts: Sequence[DeltaTable], interval: Interval) -> dict[str, int]:
    """The end of the newest window that each operator has finished, of those from *interval* on."""
    later = pc.field("window_end") >= utc(interval.start_ms)
    rows = (rows_in(table, later, columns=["operator", "window_end"]) for table in facts)
    newest = pl.concat([NO_WINDOWS, *rows], how="vertical_relaxed").group_by("operator")
    return dict(newest.agg(pl.col("window_end").max().dt.epoch("ms")).iter_rows())


def _passed(layout: Layout, topology: Topology, interval: Interval) -> Passed:
    """When each driver passed the windows of *interval*."""
    passed = Interval(interval.start_ms - topology.window_ms, interval.end_ms + PASSES_WITHIN_MS)
    since = (pc.field("batch_id") == 0) | lies_in("watermark", passed)
    tables = (DeltaTable(str(path)) for path in stream_tables(layout, topology.name, BATCHES.name))
    columns = ["sub_topology", "batch_id", "watermark", "started_at", "finished_at"]
    rows = [rows_in(table, since, columns=columns) for table in tables]
    return Passed(pl.concat(rows, how="vertical_relaxed") if rows else None)


def _finished_later(layout: Layout, topology: Topology, interval: Interval) -> Iterator[Interval]:
    """The hours before *interval* of windows that were finished since it began, or had no path the day before.

    What is before the oldest window that was ever reported is not looked at.
    """
    paths = opened(CRITICAL_PATHS, layout.report_table(topology.name, CRITICAL_PATHS.name))
    before = pc.field("window_end") < utc(interval.start_ms)
    oldest_ms = rows_in(paths, before, columns=["window_end"])["window_end"].dt.epoch("ms").min()
    if not isinstance(oldest_ms, int):
        return
    finished = before & (pc.field("ewt_adjusted_at") >= utc(interval.start_ms))
    facts = (DeltaTable(str(path)) for path in stream_tables(layout, topology.name, OPERATOR_WINDOWS.name))
    late = [rows_in(table, finished, columns=["window_end"]) for table in facts]
    day_before = pc.field("window_end") >= utc(interval.start_ms - Grain.DAY.length_ms)
    open_ = pc.field("state").isin([State.NO_WINDOW_YET.value, State.STUCK.value, State.ESTIMATED.value])
    late.append(rows_in(paths, before & day_before & open_, columns=["window_end"]))
    hour_ms = Grain.HOUR.length_ms
    ends_ms = {end_ms for rows in late for end_ms in rows["window_end"].dt.epoch("ms")}
    for start_ms in sorted({end_ms // hour_ms * hour_ms for end_ms in ends_ms if end_ms >= oldest_ms}):
        yield Interval(max(start_ms, oldest_ms), min(start_ms + hour_ms, interval.start_ms))


def _kept(
    stored: Mapping[Table, DeltaTable],
    found: dict[Table, pl.DataFrame],
    facts: Sequence[DeltaTable],
    interval: Interval,
) -> dict[Table, pl.DataFrame]:
    """The *stored* rows of windows that have a path and none in what was *found*, since the topology has changed.

    Raises InvalidArgument where it is since *facts* are gone.
    """
    in_interval = lies_in("window_end", interval)
    paths = rows_in(stored[CRITICAL_PATHS], in_interval & pc.field("latency_ms").is_valid())
    has_path = found[CRITICAL_PATHS].filter(pl.col("latency_ms").is_not_null())
    lost = paths.join(has_path, on="window_end", how="anti")
    if lost.is_empty():
        return {}
    rows = {table: rows_in(each, in_interval) for table, each in stored.items()}
    was_finished = pl.col("latency_ms").is_not_null() & ~pl.col("state").is_in([*STANDS_STILL])
    steps = rows[CRITICAL_PATH_STEPS].filter(was_finished)
    gone = steps.join(lost, on="window_end", how="semi").join(
        _rows(facts, in_interval), on=["window_end", "operator"], how="anti"
    )
    if gone.height:
        lost_ms = sorted(set(gone["window_end"].dt.epoch("ms")))
        msg = (
            f"{len(lost_ms)} windows that end from {iso(lost_ms[0])} to {iso(lost_ms[-1])} have a path that facts "
            "do not give any more, since some are gone; choose another interval, or delete the windows' rows from "
            f"{CRITICAL_PATHS.name} if they are to go"
        )
        raise InvalidArgument(msg)
    for table, frame in found.items():
        found[table] = frame.join(lost, on="window_end", how="anti")
    return {table: each.join(lost, on="window_end", how="semi") for table, each in rows.items()}


if __name__ == "__main__":
    main()
