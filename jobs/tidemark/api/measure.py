"""Measures a team's own `foreachBatch` function as the sink of a topology."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.api.listen import is_listened_to
from tidemark.api.query import (
    FactsWriter,
    Query,
    as_arrow,
    counted_by_changed,
    kept,
    operator_row,
    record_time_ms,
    replaced,
    write_about,
)
from tidemark.clock import Clock, wall_clock_ms
from tidemark.kernels.columns.buckets import in_lists, statistics
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.updates.facts import over_all_tasks
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, LATENCY_MINUTES, OPERATOR_BATCHES, Table
from tidemark.model.topology import WINDOW_OF_JOBS_MS
from tidemark.semantics.buckets import bucket_sql
from tidemark.storage.location import location
from tidemark.stream.journal.entries import Entry, Journal

log = logging.getLogger("tidemark.api")

BatchFunction = Callable[[DataFrame, int], None]


def measured(
    function: BatchFunction,
    *,
    warehouse: str | Path,
    topology: str,
    sub_topology: str,
    operator: str,
    timestamp: str,
    partition: str | None = None,
    strict: bool = False,
    clock: Clock = wall_clock_ms,
) -> BatchFunction:
    """Wraps *function* for `foreachBatch` and measures every batch.

    Purpose: the function stays as it is. How old records are once it is done with them stands in `operator_batches`,
    `latency_minutes` and `batches`, beside the measurements of Tidemark's own streams.

    How it works: the clock is read when *function* has returned (KIP-613), then one Spark job counts the latencies per
    partition, window of a minute and bucket, so that no record reaches Python; Spark caches the rows while both use
    them. Measurements are written into a journal before any table, so that a batch that is run again after a crash is
    recorded once, with the clock that was read first.

    What it does not do: touch the outcome of *function*. Its errors end the batch unmeasured; errors in measuring are
    logged and the batch continues, unless *strict*.

    Args:
        function: does the work of a batch before it returns; called with the rows and the number of the batch.
        warehouse: folder of Tidemark's tables.
        topology: name under which reports show the query.
        sub_topology: name of the query; use it in `queryName`, too, because `listen` files the query under that.
        operator: name under which reports show the work of *function*.
        timestamp: TIMESTAMP column with the record time. A record without one, or before 1970, has no latency. Such
            records count as `passed`, because *function* had them, and `quarantined` would promise a copy of them.
            Their number is `passed` − `n` in `operator_batches`.
        partition: integer column with the record's input partition, by which latencies are told apart as tasks; None
            for one task.
        strict: fail the batch when it cannot be measured.
        clock: returns epoch ms UTC.

    Raises:
        InvalidArgument: a name cannot be used. With *strict* also, in a batch: *timestamp* is no TIMESTAMP.
        Contradiction: with *strict*, in a batch: a later batch was recorded before, because the checkpoint was
            replaced.
    """
    query = Query(Layout(location(warehouse)), topology, sub_topology)
    meter = _Meter(query, operator, timestamp, partition, clock)

    @wraps(function)
    def each_batch(rows: DataFrame, batch_id: int) -> None:
        with kept(rows):
            started_at_ms = clock()
            with counted_by_changed(query, operator) as counts:
                function(rows, batch_id)
            finished_at_ms = clock()
            try:
                meter.record(rows, batch_id, started_at_ms, finished_at_ms, counts)
            except Exception:
                if strict:
                    raise
                log.exception("batch %s of %s/%s was not measured", batch_id, sub_topology, operator)
                meter.count(counts, batch_id, started_at_ms)

    return each_batch


class _Meter:
    """Measures and records the latencies of batches that the operator is done with; parameters as in `measured`."""

    def __init__(self, query: Query, operator: str, timestamp: str, partition: str | None, clock: Clock) -> None:
        self._query, self._operator, self._timestamp, self._partition = query, operator, timestamp, partition
        self._writer = FactsWriter(query, operator, clock)
        write_about(query, operator)

    def record(
        self, rows: DataFrame, batch_id: int, started_at_ms: int, finished_at_ms: int, counts: Mapping[str, int]
    ) -> None:
        """Writes the measurements of a batch. A batch that is run again keeps those of its first run.

        Args:
            rows: the rows of the batch.
            batch_id: its number.
            started_at_ms: the clock before the team's function.
            finished_at_ms: the clock after it.
            counts: the updates that `changed` has judged for the operator, by outcome. If this is empty, all records
                count as passed.
        """
        journal = Journal(self._query.control / "measured" / self._operator, "facts")
        entry = journal.newest()
        if entry is not None and entry.batch_id > batch_id:
            raise replaced(self._query.control, batch_id, entry.batch_id)
        if entry is None or entry.batch_id < batch_id:
            entry = Entry(batch_id, self._facts(rows, batch_id, started_at_ms, finished_at_ms, counts))
            if not entry.tables:
                return
            # Before any table, so that a batch that is run again keeps the clock that was read first.
            journal.write(entry)
        self._writer.append(entry.tables, batch_id)

    def count(self, counts: Mapping[str, int], batch_id: int, started_at_ms: int) -> None:
        """Writes the *counts* of a batch that could not be measured."""
        if any(counts.values()):
            row = operator_row(self._operator, counts, decided_at_ms=started_at_ms)
            rows = rows_of(OPERATOR_BATCHES, [row], **self._query.same(batch_id))
            self._writer.append({OPERATOR_BATCHES.name: rows}, batch_id)

    def _facts(
        self, rows: DataFrame, batch_id: int, started_at_ms: int, finished_at_ms: int, counts: Mapping[str, int]
    ) -> dict[str, pa.Table]:
        """Returns the rows of each table; none for a batch without records."""
        latencies = pl.DataFrame(as_arrow(self._latencies(rows, finished_at_ms))).with_columns(
            task_id=pl.format("{}_{}", pl.lit(self._query.name), "partition")
        )
        timed = latencies.filter(pl.col("bucket").is_not_null())
        records, measured_n = (int(frame["n"].sum()) for frame in (latencies, timed))
        if not records:
            return {}
        if without := records - measured_n:
            log.warning(
                "batch %s of %s: %s records have no usable %s", batch_id, self._operator, without, self._timestamp
            )
        # A session of Spark Connect has no SparkContext.
        thread_id = rows.sparkSession.conf.get("spark.app.id")
        clocks = {"started_at": started_at_ms, "finished_at": finished_at_ms, "level": Level.INFO.value}
        row = operator_row(self._operator, counts or {"passed": records}, decided_at_ms=started_at_ms)
        row["kind"] = KeyedTable.kind if counts else Sink.kind
        name_and_kind = {name: row[name] for name in ("operator", "kind")}
        tasks = statistics(timed, ["partition", "task_id"]).to_dicts()
        row |= {**clocks, **over_all_tasks(tasks), "thread_id": thread_id, "queued_ms": 0, "tasks": tasks or None}
        batch = {**clocks, "duration_ms": finished_at_ms - started_at_ms, "records_in": records}
        facts: dict[Table, pl.DataFrame | list[dict[str, object]]] = {
            OPERATOR_BATCHES: [row],
            LATENCY_MINUTES: _with(
                in_lists(timed, ["task_id", "window_start"]),
                **name_and_kind,
                thread_id=thread_id,
                finished_at=finished_at_ms,
            ),
        }
        if not is_listened_to(self._query):
            facts[BATCHES] = pl.DataFrame(batch)
        same = self._query.same(batch_id)
        return {table.name: rows_of(table, frame, **same) for table, frame in facts.items()}

    def _latencies(self, rows: DataFrame, finished_at_ms: int) -> DataFrame:
        """Returns n, min_ms, max_ms and sum_ms of the latencies per `partition`, `window_start` and `bucket`.

        `window_start` is epoch ms. It and the bucket are null for records without a latency.
        """
        timestamp_ms = record_time_ms(rows, self._timestamp)
        partition = (F.col(self._partition) if self._partition else F.lit(0)).cast("int").alias("partition")
        is_usable = timestamp_ms >= 0
        latency_ms = F.when(is_usable, F.lit(finished_at_ms).cast("bigint") - timestamp_ms)
        start_ms = F.when(is_usable, timestamp_ms - timestamp_ms % WINDOW_OF_JOBS_MS)
        timed = rows.select(partition, start_ms.alias("window_start"), latency_ms.alias("latency_ms"))
        return timed.groupBy("partition", "window_start", F.expr(bucket_sql("latency_ms")).alias("bucket")).agg(
            F.count(F.lit(1)).alias("n"),
            F.min("latency_ms").alias("min_ms"),
            F.max("latency_ms").alias("max_ms"),
            F.sum("latency_ms").alias("sum_ms"),
        )


def _with(frame: pl.DataFrame, **same: object) -> pl.DataFrame:
    return frame.with_columns(pl.lit(value).alias(name) for name, value in same.items())
