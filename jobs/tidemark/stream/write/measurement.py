"""Makes the rows of the tables of facts about a committed batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import product
from typing import Any

import polars as pl
import pyarrow as pa

from tidemark.kernels.columns.buckets import in_lists
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.updates.facts import latency_buckets, latency_stats, over_all_tasks
from tidemark.model.kinds.operator import Level, Operator, latency_level
from tidemark.model.kinds.sink import Sink
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import (
    BATCHES,
    COUNTED,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    PARTITION_BATCHES,
    TABLES,
    TASKS,
    Table,
)
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import index_by_name, names_in, omit
from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.semantics.segments import Segment
from tidemark.semantics.skew import Skew
from tidemark.semantics.skip_rate import per_second
from tidemark.storage.files import Files, Rows, lazy
from tidemark.stream.decide.decision import DISORDER, TIMES
from tidemark.stream.decide.waits import FIRSTS_OF, READS_OF, RESULTS_OF, SLOW_KEYS_OF
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.notes import DecisionNotes
from tidemark.stream.journal.task_run import TaskRun
from tidemark.stream.journal.unflushed import as_frame

Clocks = Mapping[str, int]
"""The clocks of an operator in a batch.

`started_at_ms` and `finished_at_ms` are epoch ms UTC, and `queued_ms` is a duration. `recovered` says if they were
measured by a driver that carried out a batch of an earlier one. `finished_boot_ms` is `finished_at_ms` by the boot
clock of the driver with the epoch `finished_epoch`.
"""
RowFields = Mapping[str, Any]
"""Columns, or fields of a struct, by name."""
_NO_TASK: RowFields = dict.fromkeys(names_in(TASKS))


@dataclass(frozen=True)
class Host:
    """The host whose clock a driver reads; `skew` returns the newest estimate of its skew, or None if it is unknown."""

    name: str = "localhost"
    skew: Callable[[], Skew | None] = lambda: None


class Measurer:
    """Makes the rows of the tables of facts for batches of *sub*, from a journal entry and the clocks of its commits.

    *thread_id* names the Spark application, and *host* is the driver's.
    """

    def __init__(self, topology: Topology, sub: SubTopology, *, thread_id: str, host: Host) -> None:
        self._topology, self._sub, self._thread_id, self._host = topology, sub, thread_id, host
        self._terminals, self._sources = sub.terminals(), names_in(sub.outside_sources)
        self._places = _places(topology)

    def facts(self, entry: Entry, clocks: Mapping[str, Clocks], *, finished_at_ms: int) -> dict[str, pa.Table]:
        """Returns the rows of each table of facts that gets some.

        *clocks* has the clocks of each operator. *finished_at_ms* is when the batch was committed (epoch ms UTC).
        """
        notes = entry.notes.decision
        latencies, minutes = self._latencies(entry, clocks)
        rows: dict[str, pl.DataFrame | list[dict[str, Any]]] = {
            OPERATOR_BATCHES.name: self._operators(entry, clocks, latencies),
            LATENCY_MINUTES.name: minutes,
            OPERATOR_WINDOWS.name: self._windows(notes, clocks) if self._topology.level is not Level.OFF else [],
            PARTITION_BATCHES.name: _partitions(notes, entry.tables),
            BATCHES.name: [self._batch(notes, finished_at_ms)],
        }
        return {name: self.of_batch(TABLES[name], part, entry.batch_id) for name, part in rows.items() if len(part)}

    def of_batch(self, table: Table, rows: pl.DataFrame | list[dict[str, Any]], batch_id: int) -> pa.Table:
        """Returns *rows* of *table* with columns that name the batch."""
        return rows_of(table, rows, topology=self._topology.name, sub_topology=self._sub.name, batch_id=batch_id)

    def _latencies(
        self, entry: Entry, clocks: Mapping[str, Clocks]
    ) -> tuple[dict[str, dict[int, RowFields]], pl.DataFrame]:
        """Returns statistics of latency by operator and input partition, and the rows of `latency_minutes`."""
        stats: dict[str, dict[int, RowFields]] = {}
        histograms: list[pl.DataFrame] = []
        notes = entry.notes.decision
        for operator in self._known(notes):
            times = entry.tables.get(f"{TIMES}{operator.name}")
            if times is None or not times.num_rows:
                continue
            frame = pl.DataFrame(times) if isinstance(times, pa.Table) else lazy(times)
            finished_at_ms = clocks[operator.name]["finished_at_ms"]
            stats[operator.name] = {**latency_stats(frame, finished_at_ms=finished_at_ms)}
            closed_windows = bool(notes.closed) if operator.name in self._sources else None
            buckets = latency_buckets(frame, finished_at_ms=finished_at_ms, window_ms=self._topology.window_ms)
            histograms.append(
                buckets.with_columns(
                    operator=pl.lit(operator.name),
                    kind=pl.lit(operator.kind),
                    finished_at=finished_at_ms,
                    closed_windows=pl.lit(closed_windows, pl.Boolean()),
                )
            )
        if not histograms:
            return {}, pl.DataFrame()
        of_row = ("operator", "kind", "finished_at", "closed_windows", "_task", "window_start")
        rows = in_lists(pl.concat(histograms), of_row)
        # The task of each row follows from its partition, in the column `_task`.
        of_tasks = rows.with_columns(
            task_id=pl.format(self._task("{}"), "_task"),
            thread_id=pl.lit(self._thread_id),
            decided_at=notes.batch.decided_at_ms,
        )
        return stats, of_tasks.drop("_task")

    def _known(self, notes: DecisionNotes) -> list[Operator]:
        """Returns the operators that ran in the batch of *notes*; the topology may have got others since."""
        return [operator for operator in self._sub.operators if operator.name in notes.operators]

    def _task(self, partition: object) -> str:
        """Returns the task of an input partition, named as Kafka Streams does."""
        return f"{self._sub.name}_{partition}"

    def _operators(
        self, entry: Entry, clocks: Mapping[str, Clocks], latencies: Mapping[str, Mapping[int, RowFields]]
    ) -> list[dict[str, Any]]:
        """Returns a row for each operator that counted updates, had a task, or whose skip rate fell to 0."""
        notes = entry.notes.decision
        operators = index_by_name(self._known(notes))
        skips, runs = self._skips(notes), self._runs(notes)
        rows: list[dict[str, Any]] = []
        # The file may not have an operator of the batch any more, and the progress keeps those that may have skips.
        for name in dict.fromkeys((*notes.operators, *skips, *notes.dropped)):
            counts = notes.operators[name].counts if name in notes.operators else {}
            if dropped := notes.dropped.get(name):
                counts = {**counts, "held_before": counts.get("held_before", 0) + dropped, "dropped": dropped}
            tasks = self._tasks(latencies.get(name, {}), skips.get(name, {}), runs.get(name, ()))
            if not tasks and not any(counts.values()):
                continue
            row: dict[str, Any] = {
                "decided_at": notes.batch.decided_at_ms,
                "operator": name,
                **{word: counts.get(word, 0) for word in COUNTED},
                "thread_id": self._thread_id,
                **over_all_tasks([*latencies.get(name, {}).values()]),
                "tasks": tasks or None,
            }
            if name in notes.operators:
                row |= _as_columns(clocks[name])
                row["disorder"] = _disorder(entry.tables.get(f"{DISORDER}{name}"))
                results = entry.tables.get(f"{RESULTS_OF}{name}")
                row["results"] = None if results is None else as_frame(results).to_dicts()
            if operator := operators.get(name):
                row |= {"kind": operator.kind, "level": latency_level(operator, self._terminals)}
                if isinstance(operator, Sink) and operator.table:
                    row["newest_ms"] = _newest_ms(operator, entry.tables.get(name))
            rows.append(row)
        return rows

    def _tasks(
        self, latencies: Mapping[int, RowFields], skips: Mapping[int, RowFields], runs: Sequence[TaskRun]
    ) -> list[RowFields]:
        """Returns the tasks of an operator: input partitions in order, then shards."""
        of_partitions = {run.partition: run for run in runs if run.partition is not None}
        tasks: list[RowFields] = []
        for partition in sorted({*latencies, *skips, *of_partitions}):
            task = {"task_id": self._task(partition), "partition": partition}
            run = _of_run(of_partitions.get(partition))
            tasks.append({**_NO_TASK, **task, **latencies.get(partition, {}), **skips.get(partition, {}), **run})
        shards = [run for run in runs if run.shard is not None]
        return [*tasks, *({**_NO_TASK, "shard": run.shard, **_of_run(run)} for run in shards)]

    def _windows(self, notes: DecisionNotes, clocks: Mapping[str, Clocks]) -> list[dict[str, Any]]:
        skew = self._host.skew()
        # Only the evident part of the skew is used: within its error the clocks may agree.
        skew_ms = skew.evident_ms if skew else None
        of_batch = {
            "decided_at": notes.batch.decided_at_ms,
            "host": self._host.name,
            "batch_started_at": notes.batch.started_at_ms,
            "skew_ms": skew_ms,
            "skew_error_ms": skew.error_ms if skew else None,
        }
        rows: list[dict[str, Any]] = []
        for window, operator in product(notes.closed, self._known(notes)):
            clock = clocks[operator.name]
            rows.append(
                {
                    "operator": operator.name,
                    "kind": operator.kind,
                    "window_start": window.start_ms,
                    "window_end": window.start_ms + self._topology.window_ms,
                    "ewt_at": clock["finished_at_ms"],
                    "finished_boot_ms": clock["finished_boot_ms"],
                    "finished_epoch": clock["finished_epoch"],
                    # The driver's clock plus its skew is the clock of the reference host.
                    "ewt_adjusted_at": clock["finished_at_ms"] + (skew_ms or 0),
                    "queued_ms": clock["queued_ms"],
                    "records": window.records and window.records[operator.name],
                    "started_at": clock["started_at_ms"],
                    "recovered": clock["recovered"],
                    **self._places[operator.name],
                    **of_batch,
                }
            )
        return rows

    def _runs(self, notes: DecisionNotes) -> dict[str, list[TaskRun]]:
        """Returns the work of each task of a batch in shards, by operator.

        A task without records is omitted unless the batch closed windows.
        """
        runs: dict[str, list[TaskRun]] = {}
        if self._topology.level is not Level.OFF:
            for run in notes.tasks or ():
                if run.records or notes.closed:
                    runs.setdefault(run.operator, []).append(run)
        return runs

    def _skips(self, notes: DecisionNotes) -> dict[str, dict[int, RowFields]]:
        """Returns the skips of unchanged updates (KIP-557), by operator and input partition."""
        if not self._topology.level.includes(Level.DEBUG):
            return {}
        was, now = notes.was.skipped_lately, notes.progress.skipped_lately
        skips: dict[str, dict[int, RowFields]] = {}
        for name, tasks in notes.progress.skipped.items():
            operator = notes.operators.get(name)
            # An operator whose skips have left the rate window needs a row that brings the rate back to 0.
            is_silent = bool(was.get(name)) and not now.get(name)
            if not is_silent and not (operator and operator.counts.get("records_in")):
                continue
            for task, total in tasks.items():
                rate = per_second(now.get(name, ()), task)
                skips.setdefault(name, {})[task] = {
                    "idempotent_update_skip_total": total,
                    "idempotent_update_skip_rate": rate,
                }
        return skips

    def _batch(self, notes: DecisionNotes, finished_at_ms: int) -> dict[str, Any]:
        batch, queued = notes.batch, notes.batch.queued
        # Records are counted at the sources of the batch, also at those that the topology no longer has.
        names = {part.source for part in notes.sources}
        return {
            "decided_at": batch.decided_at_ms,
            "epoch": batch.epoch,
            "level": self._topology.level.value,
            "started_at": batch.started_at_ms,
            "started_boot_ms": batch.started_boot_ms,
            "looked_boot_ms": batch.looked_boot_ms,
            "excluded_boot_ms": batch.excluded_boot_ms,
            "finished_at": finished_at_ms,
            "duration_ms": finished_at_ms - batch.started_at_ms,
            "records_in": sum(notes.operators[name].counts.get("records_in", 0) for name in names),
            "watermark": notes.progress.watermark_ms,
            "queued_ms": queued.ms,
            "queued_behind": ", ".join(queued.behind) or None,
            "phases": [*map(_phase, notes.segments)] or None,
            "phases_boot_ms": notes.segments[-1].ended_ms if notes.segments else None,
            "read_traces": sorted({trace for part in notes.sources for trace in part.seen.traces}) or None,
        }


def _phase(segment: Segment) -> dict[str, Any]:
    """Returns the element of `batches.phases` of *segment*."""
    return {
        "owner": segment.owner,
        "detail": segment.detail,
        "batch_id": segment.batch_id,
        "ms": segment.ended_ms - segment.began_ms,
    }


def _of_run(run: TaskRun | None) -> RowFields:
    """Returns the fields about the Spark task of a shard or partition; none if the driver did the work."""
    if run is None:
        return {}
    fields = omit(asdict(run), ("operator", "shard", "partition", "started_at_ms", "finished_at_ms"))
    return {**fields, "started_at": utc(run.started_at_ms), "finished_at": utc(run.finished_at_ms)}


def _disorder(counts: Rows | None) -> list[dict[str, Any]] | None:
    """Returns the buckets of a source's disorder, or None if it was not measured."""
    return None if counts is None else as_frame(counts).select("bucket", "n").to_dicts() or None


def _as_columns(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns *notes* with instants renamed to their columns."""
    # Columns of instants have no unit in their name: `decided_at_ms` becomes `decided_at`.
    return {name.removesuffix("_ms") if name.endswith("_at_ms") else name: value for name, value in notes.items()}


def _places(topology: Topology) -> dict[str, dict[str, str]]:
    """Returns, for each operator, the columns of `operator_windows` that name its neighbours in *topology*."""
    read_by = topology.read_by
    places: dict[str, dict[str, str]] = {}
    for name, waited_for in topology.waited_for.items():
        places[name] = {"upstreams": ",".join(waited_for), "read_by": ",".join(read_by[name])}
    return places


def _newest_ms(sink: Sink, rows: Rows | None) -> int | None:
    """Returns the newest event time that *sink* hands to its table, or None without rows."""
    if rows is None or not rows.num_rows:
        return None
    if isinstance(rows, Files) and not sink.key and (newest := _newest_by_statistics(rows)) is not None:
        return newest
    frame = lazy(rows)
    # Rows in files of the table have its columns; rows in memory have those of a record.
    is_laid_out = "_timestamp_ms" not in frame.collect_schema()
    at = pl.col("timestamp").dt.epoch("ms") if is_laid_out else pl.col("_timestamp_ms")
    # Of a key only the last row counts: it replaces the others.
    if sink.key:
        frame = frame.unique(sink.key, keep="last", maintain_order=True)
    newest_ms = frame.select(at.max()).collect().item()
    return newest_ms if isinstance(newest_ms, int) else None


def _newest_by_statistics(files: Files) -> int | None:
    """Returns the newest record time in *files* of a sink's table, or None if their statistics do not have it."""
    bounds = [file.stats.get("maxValues", {}).get("timestamp") for file in files.files]
    # Record times are whole milliseconds, so the bounds of statistics are exact.
    return max(round(datetime.fromisoformat(bound).timestamp() * 1_000) for bound in bounds) if all(bounds) else None


def _partitions(notes: DecisionNotes, tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Returns the rows of `partition_batches`; *tables* are those of the entry."""
    was, now = notes.was, notes.progress
    readings: dict[str, dict[int, PartitionReading]] = defaultdict(dict)
    for read in notes.sources:
        readings[read.source][read.partition] = read.seen
    rows: list[dict[str, Any]] = []
    for source, part in now.inputs.items():
        before = was.inputs.get(source)
        lists = {name: _by_partition(tables.get(f"{prefix}{source}")) for name, prefix in _LISTS.items()}
        first_reads = _first_numbers(tables.get(f"{READS_OF}{source}"))
        for row in _of_source(source, before or InputProgress(), part, readings[source]):
            number = row["partition"]
            of_number = {name: by_partition.get(number) for name, by_partition in lists.items()}
            rows.append({**row, **of_number, "first_read": first_reads.get(number)})
        # Partitions have rows of their own, so they are masked out of the comparison.
        if before is None or replace(part, partitions={}) != replace(before, partitions={}):
            activity = Activity.IDLE if part.idle else Activity.ACTIVE
            combined = {"watermark": part.watermark_ms, "blocked_by": part.held_by, "activity": activity}
            rows.append({"source": source, **combined})
    if not was.inputs or (now.watermark_ms, now.held_by) != (was.watermark_ms, was.held_by):
        rows.append({"watermark": now.watermark_ms, "blocked_by": now.held_by})
    return [{**row, "decided_at": now.decided_at_ms} for row in rows]


def _of_source(
    source: str, before: InputProgress, now: InputProgress, readings: Mapping[int, PartitionReading]
) -> Iterator[dict[str, Any]]:
    """Yields a row for each partition that the batch read, or whose time moved between *before* and *now*."""
    gone = before.partitions.keys() - now.partitions.keys() if now.places else frozenset()
    for number in sorted({*now.partitions, *readings, *gone}):
        reading, was = readings.get(number), _time_of(before.partitions.get(number))
        # A partition whose topic was deleted is idle from then on, so that it holds nothing back.
        is_idle = {**was, "activity": Activity.IDLE}
        time = is_idle if number in gone else _time_of(now.partitions.get(number))
        if reading is not None or time != was:
            yield {"source": source, "partition": number, **_place(now, number), **_offsets(reading), **time}


_LISTS = {"reads": READS_OF, "firsts": FIRSTS_OF, "slow_keys": SLOW_KEYS_OF}
"""Columns of `partition_batches` that are lists, with the prefix of their rows in the entry."""


def _by_partition(rows: Rows | None) -> dict[int, list[dict[str, Any]]]:
    """Returns *rows* as fields of a list, by `partition`."""
    frame = pl.DataFrame(schema={"partition": pl.Int32}) if rows is None else as_frame(rows)
    return {
        partition: part.drop("partition", "number", strict=False).to_dicts()
        for (partition,), part in frame.partition_by("partition", as_dict=True, maintain_order=True).items()
    }


def _first_numbers(rows: Rows | None) -> dict[int, int]:
    """Returns the smallest `number` of *rows* of each partition."""
    return {} if rows is None else dict(as_frame(rows).group_by("partition").agg(pl.min("number")).iter_rows())


def _place(part: InputProgress, number: int) -> dict[str, str]:
    """Returns the column with topic and Kafka's number of an input partition, if the source reads several topics."""
    return {"topic_partition": str(part.places[number])} if part.places else {}


def _offsets(reading: PartitionReading | None) -> dict[str, int | None]:
    """Returns the columns of `partition_batches` for what a batch read of one partition."""
    if reading is None:
        return {}
    lost_from, lost_until = reading.lost or (None, None)
    return {
        "from_offset": reading.from_offset,
        "until_offset": reading.until_offset,
        "latest_offset": reading.latest_offset,
        "lost_from_offset": lost_from,
        "lost_until_offset": lost_until,
        "left_offset": reading.left_offset,
    }


def _time_of(partition: PartitionProgress | None) -> dict[str, Any]:
    """Returns the columns of `partition_batches` for one partition's progress."""
    if partition is None:
        return {}
    return {
        "watermark": partition.watermark_ms,
        "newest_timestamp": partition.max_timestamp_ms,
        "activity": partition.activity,
    }
