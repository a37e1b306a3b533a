"""Finds the critical paths of a topology's windows, across its sub-topologies.

These are the windows that end in [--from, --to). An earlier hour is computed again if an operator finished one of its
windows since --from, or if a window of the day before had no path yet. So a driver that was down over night appears
in the report of the day that it worked on later.

A second run replaces the windows by their current state. It fails if the facts of a window that had a path were
removed. With --html it also writes a page about the interval, from the tables after the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import polars as pl

import tidemark.arrow  # noqa: F401 - first, before others import pandas
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, argument_type
from tidemark.facts.answers import answers_over
from tidemark.facts.report_rows import lies_in, report_rows
from tidemark.facts.topology_tables import Scan, tables_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval, iso, utc
from tidemark.model.sla_spec import SlaSpec
from tidemark.model.tables.catalog import BATCHES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, OPERATOR_WINDOWS, Table
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import interval_parser, load_usable_slas, parse, report_lock
from tidemark.reports.pages.interval_page import write_pages
from tidemark.reports.paths.path_groups import PathGroups
from tidemark.reports.paths.window_paths import DriverFacts, looks_back_ms
from tidemark.reports.paths.window_verdicts import with_verdicts
from tidemark.reports.paths.windows.passed_windows import PassedWindows
from tidemark.reports.promises import promises
from tidemark.semantics.critical_path import STANDS_STILL, LatencyState
from tidemark.storage.delta.report_tables import replace_rows
from tidemark.storage.location import location

log = logging.getLogger("tidemark.critical_path")
PASSES_WITHIN_MS = 7 * Grain.DAY.length_ms
"""Record time after a window that is searched for its pass.

A driver without a record in the window passes it with a later batch.
"""
SPARK_ABOVE = 1_000_000
"""Rows of operator_windows that one process still reads at once."""


def main() -> None:
    """Replaces the paths that the command line asks for."""
    parser = interval_parser(__doc__)
    parser.add_argument(
        "--html",
        type=argument_type(location),
        metavar="FILE|FOLDER",
        help="write a page to this place; to a folder also the page of the day",
    )
    spark_above = "rows of operator_windows above which Spark reads them by hour (default: %(default)s)"
    parser.add_argument("--spark-above", type=int, default=SPARK_ABOVE, metavar="ROWS", help=spark_above)
    arguments = parse(parser)
    interval, specs = Interval(arguments.start_ms, arguments.end_ms), load_usable_slas(arguments.topology)
    with report_lock(arguments.warehouse, arguments.topology.name):
        earlier_hours = run(arguments.warehouse, arguments.topology, specs, interval, spark_above=arguments.spark_above)
    if arguments.html:
        tables = answers_over(arguments.warehouse.warehouse, arguments.topology.name)
        others = [] if arguments.html.suffix == ".html" else earlier_hours
        for each in dict.fromkeys([*others, interval]):
            write_pages(tables, arguments.topology, each, arguments.html, now_ms=wall_clock_ms())


def run(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    interval: Interval,
    *,
    spark_above: int = SPARK_ABOVE,
) -> list[Interval]:
    """Replaces the paths and steps of windows that end in *interval*.

    It does the same for earlier hours with windows that were finished since. The paths are written last, so a path
    that is there has its steps.

    Args:
        layout: the warehouse.
        topology: the topology, with all its sub-topologies.
        specs: the SLAs that the verdicts use.
        interval: ends of windows, record time.
        spark_above: rows of operator_windows above which Spark reads them, an hour at a time.

    Returns:
        The earlier hours.

    Raises:
        InvalidArgument: a window of *interval* has a path that the facts that are left do not give; nothing of
            *interval* was written. For an earlier hour this is logged, and its rows stay.
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
    """Computes and replaces the paths of the windows that end in *interval*."""
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    scan = tables_of(layout, topology.name)
    windows = scan(OPERATOR_WINDOWS, where=[lies_in("window_end", averaged)])
    history = DriverFacts(_passed_windows(scan, topology, averaged), *_first_and_newest(scan, averaged))
    groups = PathGroups(topology, promises(specs), interval, history)
    if windows.select(pl.len()).collect().item() > spark_above:
        from tidemark.reports.paths.large_paths import paths_on_spark  # it imports pyspark, which most jobs do not need

        paths = paths_on_spark(groups, layout)
    else:
        paths = groups.paths(windows.collect())
    frames = with_verdicts(paths, layout, topology, promises(specs), interval)
    kept = _kept_rows(layout, topology, scan, frames, interval)
    # The paths are the last of these: a reader who sees one sees its steps.
    for table, of_table in frames.items():
        path = layout.report_table(topology.name, table.name)
        rows = pl.concat([of_table, kept[table]], how="diagonal_relaxed") if table in kept else of_table
        replace_rows(rows, table, path, where=interval.holds("window_end"))


def _first_and_newest(scan: Scan, averaged: Interval) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the ends of each operator's first and newest finished windows.

    They are epoch ms by operator, of windows that end from the start of *averaged* on.
    """
    later = scan(OPERATOR_WINDOWS, where=[pl.col("window_end") >= utc(averaged.start_ms)])
    end_ms = pl.col("window_end").dt.epoch("ms")
    ends = later.group_by("operator").agg(first=end_ms.min(), newest=end_ms.max()).collect()
    first, newest = (dict(ends.select("operator", of).iter_rows()) for of in ("first", "newest"))
    return first, newest


def _passed_windows(scan: Scan, topology: Topology, interval: Interval) -> PassedWindows:
    """Returns when each driver passed the windows of *interval*."""
    passed = Interval(interval.start_ms - topology.window_ms, interval.end_ms + PASSES_WITHIN_MS)
    since = (pl.col("batch_id") == 0) | lies_in("watermark", passed)
    columns = ["sub_topology", "batch_id", "watermark", "started_at", "finished_at"]
    return PassedWindows(scan(BATCHES, where=[since]).select(columns).collect())


def _finished_later(layout: Layout, topology: Topology, interval: Interval) -> Iterator[Interval]:
    """Yields the hours before *interval* that need new paths.

    A window of theirs was finished since *interval* began, or had no path the day before. Hours before the oldest
    window that was ever reported are left out.
    """
    ends = partial(report_rows, layout, topology.name, CRITICAL_PATHS, columns=["window_end"])
    before = pl.col("window_end") < utc(interval.start_ms)
    oldest_ms = ends(before)["window_end"].dt.epoch("ms").min()
    if not isinstance(oldest_ms, int):
        return
    is_later = pl.col("ewt_adjusted_at") >= utc(interval.start_ms)
    finished = tables_of(layout, topology.name)(OPERATOR_WINDOWS, where=[before, is_later])
    day_before = pl.col("window_end") >= utc(interval.start_ms - Grain.DAY.length_ms)
    open_ = pl.col("state").is_in(
        [LatencyState.NO_WINDOW_YET.value, LatencyState.STUCK.value, LatencyState.ESTIMATED.value]
    )
    late = [finished.select("window_end").collect(), ends(before, day_before, open_)]
    hour_ms = Grain.HOUR.length_ms
    ends_ms = pl.concat(rows["window_end"].dt.epoch("ms") for rows in late)
    starts_ms = ends_ms.filter(ends_ms >= oldest_ms) // hour_ms * hour_ms
    for start_ms in starts_ms.unique().sort():
        yield Interval(max(start_ms, oldest_ms), min(start_ms + hour_ms, interval.start_ms))


def _kept_rows(
    layout: Layout, topology: Topology, scan: Scan, frames: dict[Table, pl.DataFrame], interval: Interval
) -> dict[Table, pl.DataFrame]:
    """Returns the stored rows of windows of *interval* whose path is not in *frames*.

    Their windows are removed from *frames*, the new rows of each table of the report, which is changed in place.

    Raises:
        InvalidArgument: a path is lost because facts that *scan* reads are gone.
    """
    stored, in_interval = partial(report_rows, layout, topology.name), lies_in("window_end", interval)
    paths = stored(CRITICAL_PATHS, in_interval, pl.col("latency_ms").is_not_null())
    has_path = frames[CRITICAL_PATHS].filter(pl.col("latency_ms").is_not_null())
    # If their facts exist, the topology has changed since, and these facts give no path any more.
    lost = paths.join(has_path, on="window_end", how="anti")
    if lost.is_empty():
        return {}
    rows = {table: stored(table, in_interval) for table in frames}
    was_finished = pl.col("latency_ms").is_not_null() & ~pl.col("state").is_in([*STANDS_STILL])
    steps = rows[CRITICAL_PATH_STEPS].filter(was_finished)
    known = scan(OPERATOR_WINDOWS, where=[in_interval]).collect()
    gone = steps.join(lost, on="window_end", how="semi").join(known, on=["window_end", "operator"], how="anti")
    if gone.height:
        lost_ms = sorted(set(gone["window_end"].dt.epoch("ms")))
        msg = (
            f"{len(lost_ms)} windows that end from {iso(lost_ms[0])} to {iso(lost_ms[-1])} have a path, but some of "
            "their facts were removed, so the path cannot be computed again; choose another interval, or first "
            f"delete the rows of these windows from {CRITICAL_PATHS.name}"
        )
        raise InvalidArgument(msg)
    for table, frame in frames.items():
        frames[table] = frame.join(lost, on="window_end", how="anti")
    return {table: each.join(lost, on="window_end", how="semi") for table, each in rows.items()}


if __name__ == "__main__":
    main()
