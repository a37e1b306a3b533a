"""Finds the critical paths of a topology's windows, across its sub-topologies.

These are the windows that were open at any time in [--from, --to): those that end in it, and with their hours those of
the day before that an operator finished later, or has not finished yet. So a driver that was down over night appears in
the report of the day that it worked on later.

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
from tidemark.model.tables.catalog import (
    BATCHES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    HEARTBEATS,
    OPERATOR_WINDOWS,
    Table,
)
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import interval_parser, load_usable_slas, parse, report_lock
from tidemark.reports.pages.interval_page import write_pages
from tidemark.reports.paths.path_groups import PathGroups
from tidemark.reports.paths.window_paths import DriverFacts, looks_back_ms
from tidemark.reports.paths.window_verdicts import with_verdicts
from tidemark.reports.paths.windows import PassedWindows
from tidemark.reports.promises import promises
from tidemark.semantics.critical_path import STANDS_STILL, LatencyState
from tidemark.storage.delta.report_tables import replace_rows
from tidemark.storage.location import location

log = logging.getLogger("tidemark.critical_path")
PASSES_WITHIN_MS = 7 * Grain.DAY.length_ms
"""Record time after a window that is searched for its pass.

A driver without a record in the window passes it with a later batch.
"""
UNFINISHED = frozenset({LatencyState.NO_WINDOW_YET, *STANDS_STILL})
"""States of paths of windows that an operator has not finished."""
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
    """Replaces the paths and steps of windows that were open in *interval*: those that end in it, and earlier hours.

    The paths are written last, so a path that is there has its steps.

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
    earlier = list(_open_before(layout, topology, interval))
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
    first_ms, newest_ms = _first_and_newest(scan, averaged)
    history = DriverFacts(
        _passed_windows(scan, topology, averaged), first_ms, newest_ms, _newest_sign_ms(scan, averaged)
    )
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


def _newest_sign_ms(scan: Scan, averaged: Interval) -> int:
    """Returns when a driver last finished a window or wrote a heartbeat, epoch ms; 0: not since *averaged* began.

    So long do the facts know of windows that an operator has not finished.
    """
    since, signs = utc(averaged.start_ms), [(OPERATOR_WINDOWS, "ewt_adjusted_at"), (HEARTBEATS, "beat_at")]
    times = [scan(table, where=[pl.col(at) >= since]).select(pl.col(at).dt.epoch("ms").max()) for table, at in signs]
    return max(newest.collect().item() or 0 for newest in times)


def _passed_windows(scan: Scan, topology: Topology, interval: Interval) -> PassedWindows:
    """Returns when each driver passed the windows of *interval*."""
    passed = Interval(interval.start_ms - topology.window_ms, interval.end_ms + PASSES_WITHIN_MS)
    since = (pl.col("batch_id") == 0) | lies_in("watermark", passed)
    columns = ["sub_topology", "batch_id", "watermark", "started_at", "finished_at"]
    return PassedWindows(scan(BATCHES, where=[since]).select(columns).collect())


def _open_before(layout: Layout, topology: Topology, interval: Interval) -> Iterator[Interval]:
    """Yields the hours before *interval* with windows that were open in it.

    An operator has finished such a window since *interval* began, or not yet. It ended in the day before, or if it is
    finished, since the oldest window that was ever reported.
    """
    hour_ms, start = Grain.HOUR.length_ms, utc(interval.start_ms)
    hour = (pl.col("window_end").dt.epoch("ms") // hour_ms * hour_ms).alias("hour")
    day_before = utc(interval.start_ms - Grain.DAY.length_ms)
    is_before, is_of_day = pl.col("window_end") < start, pl.col("window_end") >= day_before
    reported = report_rows(layout, topology.name, CRITICAL_PATHS, is_before, columns=["window_end", "state"])
    had_no_path = reported.filter(is_of_day, pl.col("state").is_in([*UNFINISHED]))
    since = min([day_before, *reported["window_end"].dt.convert_time_zone("UTC")])
    is_later = pl.col("ewt_adjusted_at") >= start
    finished = tables_of(layout, topology.name)(OPERATOR_WINDOWS, where=[is_before, is_later | is_of_day])
    rows = finished.filter(pl.col("window_end") >= since).select("window_end", "operator", is_later=is_later).collect()
    # Of hours without a report it is not known which operators were behind, but an operator with older windows only is.
    newest = rows.filter(is_of_day).group_by("operator").agg(pl.col("window_end").max())
    is_behind = pl.col("window_end") > pl.lit(newest["window_end"].min())
    unreported = rows.filter(is_of_day, is_behind).select(hour).join(reported.select(hour), on="hour", how="anti")
    hours = pl.concat([had_no_path.select(hour), rows.filter("is_later").select(hour), unreported])
    for start_ms in hours["hour"].unique().sort():
        yield Interval(start_ms, min(start_ms + hour_ms, interval.start_ms))


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
