"""Judges windows by the latency of their records.

It reads the facts that this needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.collecting import present
from tidemark.facts.report_rows import lies_in, rows_in
from tidemark.kernels.columns.buckets import in_rows
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.kernels.reports.operator_tasks import NEEDED, measured_tasks, spark_tasks
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import (
    BATCHES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    HEARTBEATS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    WINDOW_PARTS,
    Table,
)
from tidemark.model.topology import Topology
from tidemark.reports.paths.ages.batch_facts import BatchFacts, BatchRows
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
from tidemark.storage.delta.report_tables import open_report
from tidemark.storage.warehouse import stream_tables
from tidemark.stream.journal.unflushed import as_table, unflushed_of

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
    facts = _StreamReader(layout, topology)
    ended = finished["ewt_ms"]
    first_ms, last_ms = min([*finished["began_ms"].drop_nulls(), *ended]) - HOUR_MS, max(ended) + HISTORY_MS
    read = Interval(first_ms, last_ms)
    batches = facts.of_batches(read, closed_in=finished["batch_id"].unique())
    steps = _steps_with_tasks(steps, finished, topology, facts, batches, read)
    paths = with_errors_of_tasks(paths, steps)
    judged = facts.judged(promises, read)
    parts = WindowParts(
        topology,
        promises,
        BatchFacts(batches, trigger_ms=topology.trigger_ms),
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
    facts: _StreamReader,
    batches: BatchRows,
    over: Interval,
) -> pl.DataFrame:
    """Returns *steps* with their shards and input partitions.

    *batches* are rows about the batches that *finished* the windows, and about those of the day before. They finished
    in the interval *over*.
    """
    passes = passing_batches(closed_at_sources(steps, finished, topology), batches.partitions)
    batch_ids = pl.concat([finished["batch_id"], passes["passed_in"]]).unique()
    tasks = spark_tasks(facts.operators(pc.field("batch_id").isin(pa.array(batch_ids))))
    of_sources = lies_in("finished_at", over) & (pc.field("kind") == Source.kind)
    sources = measured_tasks(facts.operators(of_sources))
    clocks = BatchClocks(tasks, sources, batches.batches, batches.latencies)
    return with_tasks(steps, finished, tasks, last_partitions(partition_ends(passes, clocks)))


def _kept_windows(layout: Layout, topology: Topology, interval: Interval) -> pl.DataFrame:
    """Returns the parts of windows that kept a promise before *interval*."""
    day = lies_in("window_end", Interval(interval.start_ms - HISTORY_MS, interval.start_ms))
    stored = open_report(WINDOW_PARTS, layout.report_table(topology.name, WINDOW_PARTS.name))
    return rows_in(stored, day & ~pc.field("over_sla"))


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


class _StreamReader:
    """Reads facts of all streams of *topology*.

    It looks into the journal of each stream once, and opens each table once.
    """

    def __init__(self, layout: Layout, topology: Topology) -> None:
        self._layout, self._topology = layout, topology
        self._unflushed, self._stored = cache(unflushed_of), cache(lambda path: DeltaTable(str(path)))

    def rows(self, table: Table, where: pc.Expression, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns the rows of *table* for which *where* is true.

        They include rows in the journal that are not in the table yet. Only *columns* are read; None: all.
        """
        parts = [arrow_schema(table).empty_table()]
        for path in stream_tables(self._layout, self._topology.name, table.name):
            unflushed, stored = self._unflushed(path.parent), self._stored(path)
            newest, later = unflushed.of(path, stored)
            # Batches after the newest one of the table are read from the journal instead.
            own = where & (pc.field("batch_id") <= newest) if later else where
            parts += [rows_of(table, rows_in(stored, own, columns=columns))]
            parts += [rows_of(table, as_table(later)).filter(where)] if later else []
        return pl.DataFrame(pa.concat_tables(parts))

    def operators(self, where: pc.Expression) -> pl.DataFrame:
        """Returns the rows of `operator_batches` for which *where* is true, with the columns that tasks need."""
        return self.rows(OPERATOR_BATCHES, where, NEEDED)

    def of_batches(self, over: Interval, *, closed_in: pl.Series) -> BatchRows:
        """Returns the facts of batches that finished in the interval *over*.

        *closed_in* are the batches that closed windows.
        """
        ran, is_closing = lies_in("finished_at", over), pc.field("batch_id").isin(pa.array(closed_in))
        names = pa.array([source.name for source in self._topology.outside_sources], pa.string())
        of_sources = pc.field("closed_windows") & pc.field("operator").isin(names)
        batches = self.rows(BATCHES, ran)
        # A watermark that was decided long before may still hold. If a clock was set back, decisions are later than it.
        last_ms = max([over.end_ms, *batches["decided_at"].dt.epoch("ms").drop_nulls()])
        decided = Interval(over.start_ms - HISTORY_MS, last_ms + 1)
        return BatchRows(
            batches=batches,
            beats=self.rows(HEARTBEATS, lies_in("beat_at", over)),
            partitions=self.rows(PARTITION_BATCHES, lies_in("decided_at", decided)),
            latencies=self.rows(LATENCY_MINUTES, ran & is_closing & of_sources),
        )

    def judged(self, promises: Promises, over: Interval) -> RecordVerdicts:
        """Returns the verdicts on the records of windows.

        The records were finished in the interval *over*.
        """
        names = list(promises.records)
        where = lies_in("finished_at", over) & pc.field("operator").isin(pa.array(names, pa.string()))
        return judge_records(self.rows(LATENCY_MINUTES, where), promises)
