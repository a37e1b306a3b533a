"""Makes the report of a topology's critical paths: from the facts of all its drivers to the rows of three tables.

`windows` says which operators finished a window, `solver` measures their latencies, and `window_paths` makes rows of
these. `physical_path` adds shards and input partitions. `window_ages` divides the age of a window among its owners.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import polars as pl

from tidemark.account.warehouse import AccountTables
from tidemark.errors import InvalidArgument
from tidemark.facts.fact_tables import Stored
from tidemark.facts.report_rows import lies_in, report_rows
from tidemark.facts.topology_tables import BatchRows, Scan, batch_rows, tables_of
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.operator_tasks import NEEDED, measured_tasks, spark_tasks
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval, iso, utc
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import (
    BATCHES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    HEARTBEATS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    WINDOW_PARTS,
    Table,
)
from tidemark.model.topology import Topology
from tidemark.reports.paths.path_groups import PathGroups, paths_on_spark
from tidemark.reports.paths.physical_path import (
    BatchClocks,
    closed_at_sources,
    last_partitions,
    partition_ends,
    passing_batches,
    with_errors_of_tasks,
    with_tasks,
)
from tidemark.reports.paths.window_ages import kept_before, kept_its_slas, ledger_over, window_ages, with_usual
from tidemark.reports.paths.window_paths import DriverFacts, Paths, looks_back_ms
from tidemark.reports.paths.window_verdicts import judge_records, with_window_verdicts
from tidemark.reports.paths.windows import PassedWindows
from tidemark.reports.promises import Promises, promises
from tidemark.selection import names_in
from tidemark.semantics.critical_path import STANDS_STILL, LatencyState
from tidemark.storage.delta.report_tables import replace_rows

log = logging.getLogger("tidemark.critical_path")
PASSES_WITHIN_MS = 7 * Grain.DAY.length_ms
"""A driver without a record in a window passes it with a later batch, which is searched for this far ahead, ms."""
UNFINISHED = frozenset({LatencyState.NO_WINDOW_YET, *STANDS_STILL})
"""The states of paths of windows that some operator has not finished."""
SPARK_ABOVE = 1_000_000
"""With more rows of operator_windows than this, Spark finds the paths instead of this process."""


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
    scan = tables_of(layout, topology.name)
    groups, windows = _groups(scan, topology, specs, interval)
    if windows.select(pl.len()).collect().item() > spark_above:
        paths = paths_on_spark(groups, layout)
    else:
        paths = groups.paths(windows.collect())
    frames = _with_verdicts(paths, layout, topology, promises(specs), interval)
    kept = _kept_rows(layout, topology, scan, frames, interval)
    # The paths are the last of these: a reader who sees one sees its steps.
    for table, of_table in frames.items():
        path = layout.report_table(topology.name, table.name)
        rows = pl.concat([of_table, kept[table]], how="diagonal_relaxed") if table in kept else of_table
        replace_rows(rows, table, path, where=interval.holds("window_end"))


def paths_now(
    layout: Layout, topology: Topology, specs: Sequence[SlaSpec], interval: Interval
) -> dict[Table, pl.DataFrame]:
    """Returns the paths of the windows that end in *interval*, and their steps, and stores nothing.

    They have no verdicts, and nothing about shards and input partitions.
    """
    groups, windows = _groups(tables_of(layout, topology.name), topology, specs, interval)
    return dict(groups.paths(windows.collect()).tables)


def _groups(
    scan: Scan, topology: Topology, specs: Sequence[SlaSpec], interval: Interval
) -> tuple[PathGroups, pl.LazyFrame]:
    """Returns what finds the paths of windows that end in *interval*, and the rows of operator_windows that it
    needs.
    """
    averaged = Interval(interval.start_ms - looks_back_ms(topology), interval.end_ms)
    windows = scan(OPERATOR_WINDOWS, where=[lies_in("window_end", averaged)])
    return PathGroups(topology, promises(specs), interval, _driver_facts(scan, topology, averaged)), windows


def _driver_facts(scan: Scan, topology: Topology, averaged: Interval) -> DriverFacts:
    """Returns what is known of drivers for windows that end in *averaged*.

    `now_ms` is the newest heartbeat, or the newest instant at which an operator finished a window. Until then it is
    known which windows an operator has not finished.
    """
    since, end_ms = utc(averaged.start_ms), pl.col("window_end").dt.epoch("ms")
    later = scan(OPERATOR_WINDOWS, where=[pl.col("window_end") >= since])
    ewt_ms = pl.col("ewt_adjusted_at").dt.epoch("ms").max()
    ends = later.group_by("operator").agg(first=end_ms.min(), newest=end_ms.max(), ewt=ewt_ms).collect()
    first_ms, newest_ms = (dict(ends.select("operator", of).iter_rows()) for of in ("first", "newest"))
    beats = scan(HEARTBEATS, where=[pl.col("beat_at") >= since]).select(pl.col("beat_at").dt.epoch("ms").max())
    now_ms = max([0, *ends["ewt"], *beats.collect()["beat_at"].drop_nulls()])
    decided = Interval(averaged.start_ms - topology.window_ms, averaged.end_ms + PASSES_WITHIN_MS)
    passed = scan(BATCHES, where=[(pl.col("batch_id") == 0) | lies_in("watermark", decided)])
    columns = ["sub_topology", "batch_id", "watermark", "started_at", "finished_at"]
    return DriverFacts(PassedWindows(passed.select(columns).collect()), first_ms, newest_ms, now_ms)


def _open_before(layout: Layout, topology: Topology, interval: Interval) -> Iterator[Interval]:
    """Yields the hours before *interval* with windows that were still open when it began.

    Some operator has finished such a window since, or has still not finished it. Unfinished windows go back one day,
    and finished ones to the oldest window that was ever reported.
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
    """Returns the stored rows of windows of *interval* that have a stored path and no new one, to be kept.

    *frames* has the new rows of each table of the report. Rows of these windows are removed from it.

    Raises:
        InvalidArgument: a path would be lost because facts that *scan* reads were deleted.
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


def _with_verdicts(
    of_paths: Paths, layout: Layout, topology: Topology, promises: Promises, interval: Interval
) -> dict[Table, pl.DataFrame]:
    """Adds `window_parts` and the verdicts to the tables of critical paths.

    Args:
        of_paths: the critical paths of windows that end in *interval*.
        layout: where the tables of the topology are.
        topology: the topology that has the windows.
        promises: the promises about its windows.
        interval: the interval of the report, record time.
    """
    finished = of_paths.finished
    if finished.is_empty():
        return {**of_paths.tables, WINDOW_PARTS: pl.DataFrame(rows_of(WINDOW_PARTS, []))}
    paths, steps = of_paths.tables[CRITICAL_PATHS], of_paths.tables[CRITICAL_PATH_STEPS]
    tables = AccountTables(layout, topology, Stored())
    scan = tables.of_all_streams
    ended = finished["ewt_ms"]
    first_ms, last_ms = (
        min([*finished["began_ms"].drop_nulls(), *ended]) - Grain.HOUR.length_ms,
        max(ended) + Grain.DAY.length_ms,
    )
    read = Interval(first_ms, last_ms)
    sources = names_in(topology.outside_sources)
    batches = batch_rows(scan, read, closed_in=finished["batch_id"].unique(), sources=sources)
    steps = _steps_with_tasks(steps, finished, topology, scan, batches, read)
    paths = with_errors_of_tasks(paths, steps)
    judged_minutes = [lies_in("finished_at", read), pl.col("operator").is_in([*promises.records])]
    judged = judge_records(scan(LATENCY_MINUTES, where=judged_minutes).collect(), promises)
    paths = with_window_verdicts(paths, steps, judged, promises)
    aged = paths.filter(pl.col("latency_ms").is_not_null(), ~pl.col("state").is_in([*STANDS_STILL]))
    aged = aged.with_columns(age_ms=pl.col("before_source_ms") + pl.col("latency_ms"))
    parts = window_ages(ledger_over(tables, paths["window_end"], at_ms=last_ms), aged)
    kept = pl.concat([kept_before(tables, interval.start_ms), parts.filter(kept_its_slas())])
    return {
        CRITICAL_PATH_STEPS: steps,
        WINDOW_PARTS: pl.DataFrame(rows_of(WINDOW_PARTS, with_usual(parts, kept), topology=topology.name)),
        CRITICAL_PATHS: paths,
    }


def _steps_with_tasks(
    steps: pl.DataFrame,
    finished: pl.DataFrame,
    topology: Topology,
    scan: Scan,
    batches: BatchRows,
    over: Interval,
) -> pl.DataFrame:
    """Returns *steps* with their shards and input partitions.

    *batches* are rows about the batches that *finished* the windows, and about batches of the day before. All of them
    finished in the interval *over*.
    """
    passes = passing_batches(closed_at_sources(steps, finished, topology), batches.partitions)
    batch_ids = pl.concat([finished["batch_id"], passes["passed_in"]]).unique()
    of_batches = scan(OPERATOR_BATCHES, where=[pl.col("batch_id").is_in(batch_ids.implode())])
    tasks = spark_tasks(of_batches.select(NEEDED)).collect()
    of_sources = scan(OPERATOR_BATCHES, where=[lies_in("finished_at", over), pl.col("kind") == Source.kind])
    sources = measured_tasks(of_sources.select(NEEDED)).collect()
    clocks = BatchClocks(tasks, sources, batches.batches, batches.latencies)
    return with_tasks(steps, finished, tasks, last_partitions(partition_ends(passes, clocks)))
