"""Judges windows by the latency of their records.

It reads the facts that this needs.
"""

from __future__ import annotations

import polars as pl

from tidemark.collecting import names_in, present
from tidemark.facts.report_rows import lies_in, report_rows
from tidemark.facts.topology_tables import BatchRows, Scan, batch_rows, tables_of
from tidemark.kernels.columns.buckets import in_rows
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.operator_tasks import NEEDED, measured_tasks, spark_tasks
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    WINDOW_PARTS,
    Table,
)
from tidemark.model.topology import Topology
from tidemark.reports.paths.ages.batch_facts import BatchFacts
from tidemark.reports.paths.ages.window_parts import RecordVerdicts, WindowParts, with_window_verdicts
from tidemark.reports.paths.partition_ends import (
    BatchClocks,
    closed_at_sources,
    last_partitions,
    partition_ends,
    passing_batches,
)
from tidemark.reports.paths.physical_steps import with_errors_of_tasks, with_tasks
from tidemark.reports.paths.window_paths import Paths
from tidemark.reports.promises import Promises, WindowVerdict
from tidemark.semantics.blame import HISTORY_MS

HOUR_MS = 3_600_000
"""Time before the first closing batch from which facts are read."""


def with_verdicts(
    of_paths: Paths, layout: Layout, topology: Topology, promises: Promises, interval: Interval
) -> dict[Table, pl.DataFrame]:
    """Adds `window_parts` and the verdicts to the tables of critical paths.

    Args:
        of_paths: the critical paths of windows that end in *interval*.
        layout: of the warehouse.
        topology: whose windows they are.
        promises: about its windows.
        interval: of the report.
    """
    finished = of_paths.finished
    if finished.is_empty():
        return {**of_paths.tables, WINDOW_PARTS: pl.DataFrame(rows_of(WINDOW_PARTS, []))}
    paths, steps = of_paths.tables[CRITICAL_PATHS], of_paths.tables[CRITICAL_PATH_STEPS]
    scan = tables_of(layout, topology.name)
    ended = finished["ewt_ms"]
    first_ms, last_ms = min([*finished["began_ms"].drop_nulls(), *ended]) - HOUR_MS, max(ended) + HISTORY_MS
    read = Interval(first_ms, last_ms)
    sources = names_in(topology.outside_sources)
    batches = batch_rows(scan, read, closed_in=finished["batch_id"].unique(), sources=sources)
    steps = _steps_with_tasks(steps, finished, topology, scan, batches, read)
    paths = with_errors_of_tasks(paths, steps)
    judged_minutes = [lies_in("finished_at", read), pl.col("operator").is_in([*promises.records])]
    judged = judge_records(scan(LATENCY_MINUTES, where=judged_minutes).collect(), promises)
    parts = WindowParts(
        topology,
        promises,
        BatchFacts(batches, trigger_ms=topology.trigger_ms, of_jobs=bool(topology.jobs)),
        judged,
        _kept_windows(layout, topology, interval),
    )
    return {
        **{table: rows for table, rows in of_paths.tables.items() if table is not CRITICAL_PATHS},
        CRITICAL_PATH_STEPS: steps,
        WINDOW_PARTS: parts.rows(steps, paths, finished),
        CRITICAL_PATHS: with_window_verdicts(paths, steps, judged, promises),
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

    *batches* are rows about the batches that *finished* the windows, and about those of the day before. They finished
    in the interval *over*.
    """
    passes = passing_batches(closed_at_sources(steps, finished, topology), batches.partitions)
    batch_ids = pl.concat([finished["batch_id"], passes["passed_in"]]).unique()
    of_batches = scan(OPERATOR_BATCHES, where=[pl.col("batch_id").is_in(batch_ids.implode())])
    tasks = spark_tasks(of_batches.select(NEEDED)).collect()
    of_sources = scan(OPERATOR_BATCHES, where=[lies_in("finished_at", over), pl.col("kind") == Source.kind])
    sources = measured_tasks(of_sources.select(NEEDED)).collect()
    clocks = BatchClocks(tasks, sources, batches.batches, batches.latencies)
    return with_tasks(steps, finished, tasks, last_partitions(partition_ends(passes, clocks)))


def _kept_windows(layout: Layout, topology: Topology, interval: Interval) -> pl.DataFrame:
    """Returns the parts of windows that kept a promise before *interval*."""
    day = lies_in("window_end", Interval(interval.start_ms - HISTORY_MS, interval.start_ms))
    return report_rows(layout, topology.name, WINDOW_PARTS, day, ~pl.col("over_sla"))


def judge_records(minutes: pl.DataFrame, promises: Promises) -> RecordVerdicts:
    """Returns the verdicts on the records of windows, by operator and start of window.

    *minutes* are rows of `latency_minutes`.
    """
    start_ms = pl.col("window_start").dt.epoch("ms")
    lists = minutes.lazy().select("operator", "buckets", "min_ms", "max_ms", start_ms=start_ms)
    extremes = pl.min("min_ms"), pl.max("max_ms")
    counted = in_rows(lists).group_by("operator", "start_ms").agg("bucket", "n", *extremes).collect()
    judged: dict[tuple[str, int], tuple[WindowVerdict, ...]] = {}
    for operator, start_ms, bucket, n, min_ms, max_ms in counted.iter_rows():
        counts = list(zip(bucket, n, strict=True))
        verdicts = (
            promise.judge_records(operator, counts, min_ms=min_ms, max_ms=max_ms)
            for promise in promises.records[operator]
        )
        judged[operator, start_ms] = tuple(present(verdicts))
    return judged
