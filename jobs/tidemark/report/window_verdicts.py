"""Judges windows by the latency of their records, and reads the facts for that (ring 2).

A record's timestamp is the finish clock less its latency; latency buckets give that to within 1 %.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.report.batch_facts import BatchFacts
from tidemark.report.promises import Promises
from tidemark.report.report_tables import lies_in, opened, rows_in
from tidemark.report.slowest_tasks import with_slowest_tasks
from tidemark.report.window_parts import Judged, Kept, WindowParts
from tidemark.report.window_paths import Paths
from tidemark.semantics.blame import HISTORY_MS
from tidemark.semantics.buckets import GAMMA, RELATIVE_ERROR
from tidemark.spark import stream_tables
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Kind
from tidemark.spec.tables import (
    BATCHES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    HEARTBEATS,
    LATENCY_BUCKETS,
    OPERATOR_LATENCY,
    OPERATOR_TASKS,
    WATERMARKS,
    WINDOW_PARTS,
    Table,
)
from tidemark.spec.topology import Topology

HOUR_MS = 3_600_000
"""What came so long before the first batch that closed one of the windows is looked at too."""


def with_verdicts(
    found: Paths, layout: Layout, topology: Topology, promises: Promises, interval: Interval
) -> dict[Table, pl.DataFrame]:
    """The tables of critical paths that were *found* for *interval*, with `window_parts` and `over_sla`."""
    finished = found.finished
    if finished.is_empty():
        return {**found.tables, WINDOW_PARTS: pl.DataFrame(rows_of(WINDOW_PARTS, []))}
    paths, steps = found.tables[CRITICAL_PATHS], found.tables[CRITICAL_PATH_STEPS]
    batch_ids = pc.field("batch_id").isin(pa.array(finished["batch_id"].unique()))
    steps = with_slowest_tasks(steps, finished, _stored(layout, topology, OPERATOR_TASKS, batch_ids))
    ended = finished["ewt_ms"]
    first_ms, last_ms = min([*finished["began_ms"].drop_nulls(), *ended]) - HOUR_MS, max(ended) + HISTORY_MS
    batches = Interval(first_ms, last_ms)
    parts = WindowParts(
        topology,
        promises,
        _batch_facts(layout, topology, batches),
        _judged(layout, topology, promises, batches),
        _kept(layout, topology, interval),
    )
    milliseconds = steps.with_columns(pl.col("window_start", "window_end").dt.epoch("ms"))
    over: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for name, start_ms, end_ms, worked_ms in milliseconds.select(
        "operator", "window_start", "window_end", "worked_ms"
    ).iter_rows():
        if (is_over := parts.is_over(name, start_ms, worked_ms)) is not None:
            over[start_ms, end_ms].append(is_over)
    windows = paths.select(pl.col("window_start", "window_end").dt.epoch("ms"), "leaf", "latency_ms").rows()
    leaves = {(start_ms, end_ms): leaf for start_ms, end_ms, leaf, _ in windows if leaf}
    verdicts = [
        any(over[start_ms, end_ms]) if latency_ms is not None and over[start_ms, end_ms] else None
        for start_ms, end_ms, _, latency_ms in windows
    ]
    return {
        **{table: rows for table, rows in found.tables.items() if table is not CRITICAL_PATHS},
        CRITICAL_PATH_STEPS: steps,
        WINDOW_PARTS: pl.DataFrame(rows_of(WINDOW_PARTS, list(parts.rows(steps, leaves, finished)))),
        CRITICAL_PATHS: paths.with_columns(pl.Series("over_sla", verdicts, dtype=pl.Boolean())),
    }


def _batch_facts(layout: Layout, topology: Topology, over: Interval) -> BatchFacts:
    ran = lies_in("finished_at", over)
    decided = Interval(over.start_ms - HISTORY_MS, over.end_ms)
    of_sources = ran & (pc.field("kind") == Kind.SOURCE.value)
    return BatchFacts(
        _stored(layout, topology, BATCHES, ran),
        _stored(layout, topology, HEARTBEATS, lies_in("at", over)),
        _stored(layout, topology, WATERMARKS, lies_in("decided_at", decided)),
        _stored(layout, topology, OPERATOR_LATENCY, of_sources),
        trigger_ms=topology.trigger_ms,
    )


def _kept(layout: Layout, topology: Topology, interval: Interval) -> Kept:
    """Windows of the day before *interval* that kept a promise."""
    day = lies_in("window_end", Interval(interval.start_ms - HISTORY_MS, interval.start_ms))
    stored = opened(WINDOW_PARTS, layout.report_table(topology.name, WINDOW_PARTS.name))
    return Kept(rows_in(stored, day & ~pc.field("over_sla")))


def _judged(layout: Layout, topology: Topology, promises: Promises, over: Interval) -> Judged:
    names = list(promises.records)
    where = lies_in("finished_at", over) & pc.field("operator").isin(pa.array(names, pa.string()))
    counts, ranges = (_stored(layout, topology, table, where) for table in (LATENCY_BUCKETS, OPERATOR_LATENCY))
    return judged(counts, ranges, promises, window_ms=topology.window_ms)


def judged(buckets: pl.DataFrame, latencies: pl.DataFrame, promises: Promises, *, window_ms: int) -> Judged:
    """By operator and start of a window: whether the window's records broke the operator's promise.

    *buckets* and *latencies* are rows of `latency_buckets` and `operator_latency`.
    """
    task = ["sub_topology", "batch_id", "operator", "task_id"]
    bucket = pl.col("bucket").cast(pl.Int64())
    value_ms = (GAMMA ** (bucket.abs() - 1).cast(pl.Float64()) * (1 - RELATIVE_ERROR) * bucket.sign()).round()
    latency_ms = pl.when(bucket == 0).then(0).otherwise(value_ms).clip(pl.col("min_ms"), pl.col("max_ms"))
    timestamp_ms = pl.col("finished_at").dt.epoch("ms") - latency_ms.cast(pl.Int64())
    counted = (
        buckets.join(latencies.select(*task, "min_ms", "max_ms"), on=task, how="left")
        .with_columns(start_ms=timestamp_ms // window_ms * window_ms)
        .group_by("operator", "start_ms")
        .agg("bucket", "n")
    )
    return {
        (operator, start_ms): any(each.is_broken(zip(found, n, strict=True)) for each in promises.records[operator])
        for operator, start_ms, found, n in counted.iter_rows()
    }


def _stored(layout: Layout, topology: Topology, table: Table, where: pc.Expression) -> pl.DataFrame:
    """The rows of *table* of all sub-topologies for which *where* is true."""
    none = arrow_schema(table).empty_table()
    paths = stream_tables(layout, topology.name, table.name)
    found = (rows_of(table, rows_in(DeltaTable(str(path)), where)) for path in paths)
    return pl.DataFrame(pa.concat_tables([none, *found]))
