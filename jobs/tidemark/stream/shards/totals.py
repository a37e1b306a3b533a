"""Sums up what the tasks of a batch in shards return: counts are added, and rows are concatenated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import polars as pl
import pyarrow as pa

from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.semantics.completeness import NO_RECORDS
from tidemark.semantics.event_time import PartitionReading, follow
from tidemark.semantics.progress import InputProgress, StreamProgress, WriterPosition
from tidemark.semantics.schema_watch import NO_SAMPLE, FieldSample
from tidemark.semantics.watermark import later
from tidemark.storage.files import File, Files, Rows
from tidemark.stream.decide.decision import K, Tally, add_counts
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.journal.task_run import TaskRun


@dataclass(frozen=True, kw_only=True)
class PartitionIntake:
    """What a task took in of one partition of a source: counts, offsets and times, and for the first shard rows.

    Attributes:
        source: the source.
        partition: the number of the partition.
        seen: what was read of it.
        gap: True if offsets are missing between the records.
        writers: its writers that number their records, as in the partition's progress.
        counts: records by outcome.
        disorder: the number of records per bucket of their lag behind the watermark.
        windows: the starts of the streaming windows that the batch opens, epoch ms.
        per_window: the number of finished records per streaming window.
        sample: the fields of some records.
        watermark_ms: for a hop, the watermark of its newest mark.
        idle: for a hop, whether that mark says that its writer is idle.
        idle_watermark_ms: for a hop, what idle partitions of its writer have reached by that mark.
        host: the host of the task.
        started_at_ms: when the task began, epoch ms by the clock of the host.
        finished_at_ms: when the task had its result, by the same clock.
        tables: rows for tables.
        reads: by source, the rows of counts of what was read (decide/waits.py).
        passing: by source, records that may be the first to pass a window.
        slow_keys: by source, the keys with most records that are older than an SLA promises.
        is_left_to_driver: a record has a schema that the task does not know, and nothing was done.
    """

    source: str
    partition: int = 0
    seen: PartitionReading | None = None
    gap: bool = False
    writers: Mapping[str, WriterPosition] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    disorder: pl.DataFrame = field(default_factory=pl.DataFrame)
    windows: frozenset[int] = frozenset()
    per_window: Mapping[int, int] = field(default_factory=dict)
    sample: FieldSample = NO_SAMPLE
    watermark_ms: int | None = None
    idle: bool | None = None
    idle_watermark_ms: int | None = None
    host: str = ""
    started_at_ms: int = 0
    finished_at_ms: int = 0
    tables: Mapping[str, Rows] = field(default_factory=dict)
    reads: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    passing: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    slow_keys: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    is_left_to_driver: bool = False

    @property
    def numbers(self) -> PartitionIntake:
        """What every shard needs of this: all but rows and samples."""
        return replace(self, tables={}, disorder=pl.DataFrame(), sample=NO_SAMPLE, passing={}, slow_keys={})

    @property
    def task_run(self) -> TaskRun:
        """The work of the task that took the partition in."""
        return TaskRun(
            operator=self.source,
            partition=self.partition,
            host=self.host,
            started_at_ms=self.started_at_ms,
            finished_at_ms=self.finished_at_ms,
            records=self.counts.get("records_in", 0),
        )


@dataclass(frozen=True)
class Input:
    """The progress of a source in the batch, over all its partitions."""

    progress: InputProgress
    seen: Mapping[int, PartitionReading]


@dataclass(frozen=True, kw_only=True)
class BatchIntake:
    """The result of taking in all sources.

    Attributes:
        now: the new progress.
        seen: by source and partition, what was read.
        tallies: by source, its counts and clocks.
        tables: rows for tables, by their name in a journal entry.
        reads: as in `PartitionIntake`, over all partitions.
        passing: as in `PartitionIntake`.
        slow_keys: as in `PartitionIntake`.
        task_runs: the work of the tasks that took in partitions.
    """

    now: StreamProgress
    seen: Mapping[str, Mapping[int, PartitionReading]]
    tallies: Mapping[str, Tally]
    tables: Mapping[str, Rows]
    reads: Mapping[str, pl.DataFrame]
    passing: Mapping[str, pl.DataFrame]
    slow_keys: Mapping[str, pl.DataFrame]
    task_runs: tuple[TaskRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """The result of one shard.

    Attributes:
        shard: the number of the shard.
        is_doubtful: nothing was done, and the driver must read the batch.
        is_news: something changed.
        taken_in: the result of taking in the sources, from the first shard only.
        host: the host of the task.
        hot: the most frequent key among the records of the shard, and its share of them.
        tallies: by operator, its counts and clocks.
        tables: rows for tables, by their name in a journal entry.
        results: by operator, the results that became visible, with the columns RESULTS.
        state: the files with the state of the shard, for the journal entry.
        moved: the states that the batch changed, as tables of the journal entry.
        state_bytes: bytes of the states in memory.
    """

    shard: int
    is_doubtful: bool = False
    is_news: bool = False
    taken_in: BatchIntake | None = None
    host: str = ""
    hot: tuple[str, float] | None = None
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    results: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    state: StateRuns = field(default_factory=StateRuns)
    moved: Mapping[str, pa.Table] = field(default_factory=dict)
    state_bytes: int = 0

    @property
    def task_runs(self) -> Iterator[TaskRun]:
        """Yields the shard's work on each operator."""
        hot_key, hot_share = self.hot or (None, None)
        for operator, tally in self.tallies.items():
            yield TaskRun(
                operator=operator,
                shard=self.shard,
                host=self.host,
                started_at_ms=tally.started_at_ms,
                finished_at_ms=tally.finished_at_ms,
                records=tally.counts.get("records_in", 0),
                hot_key=hot_key,
                hot_share=hot_share,
            )


def rows_by_name(parts: Iterable[Mapping[str, Rows]], lay_out: Callable[[str, pa.Table], Files]) -> dict[str, Rows]:
    """Concatenates the rows of all *parts* by name, in the order of the parts.

    If some rows of a name are in files, all are: *lay_out* writes the others.
    """
    rows_of_names: dict[str, list[Rows]] = defaultdict(list)
    for tables in parts:
        for name, rows in tables.items():
            rows_of_names[name].append(rows)
    return {name: concatenate(rows, partial(lay_out, name)) for name, rows in rows_of_names.items()}


def concatenate(parts: Collection[Rows], lay_out: Callable[[pa.Table], Files]) -> Rows:
    """Returns the rows of *parts*, one after the other: a table if all parts are tables, and otherwise files.

    *lay_out* writes a table as a file.
    """
    tables = [rows for rows in parts if isinstance(rows, pa.Table)]
    if len(tables) == len(parts):
        return pa.concat_tables(tables)
    # A mix of tables and files becomes files: records need not fit into the driver.
    files: list[File] = []
    for rows in parts:
        if rows.num_rows:
            files += (lay_out(rows) if isinstance(rows, pa.Table) else rows).files
    return Files(tuple(files))


def concatenated(parts: Iterable[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Concatenates the frames of all *parts* by name, in the order of the parts."""
    by_name: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for frames in parts:
        for name, frame in frames.items():
            by_name[name].append(frame)
    return {name: pl.concat(frames) for name, frames in by_name.items()}


def parts_of_source(source: Source | HopSource, arrived: Iterable[PartitionIntake]) -> list[PartitionIntake]:
    """Returns what *arrived* of *source*, in the order of partitions."""
    return sorted((part for part in arrived if part.source == source.name), key=lambda part: part.partition)


def hop_input(before: InputProgress, parts: Collection[PartitionIntake], batch: MicroBatch) -> Input:
    """Returns the progress of a hop's reader, over all its partitions."""
    # The offsets of a hop are batch numbers, which all its partitions share. They are kept under partition 0.
    first_batch = before.partitions[0].until_offset if 0 in before.partitions else 0
    until, newest_ms, watermark_ms, idle, idle_watermark_ms = first_batch, None, None, None, None
    for part in parts:
        if part.seen:
            until = max(until, part.seen.until_offset)
            newest_ms = later(newest_ms, part.seen.max_timestamp_ms)
        # All marks of a hop are in one partition, so the other partitions have neither.
        watermark_ms = later(watermark_ms, part.watermark_ms)
        if idle is None:
            idle, idle_watermark_ms = part.idle, part.idle_watermark_ms
    whole = PartitionReading(from_offset=first_batch, until_offset=until, max_timestamp_ms=newest_ms)
    progress = follow(
        before,
        whole,
        watermark_ms=watermark_ms,
        idle=idle,
        idle_watermark_ms=idle_watermark_ms,
        now_ms=batch.decided_at_ms,
    )
    return Input(progress, {0: whole})


def arrival(batch: MicroBatch, parts: Collection[PartitionIntake]) -> Tally:
    """Returns the counts and clocks of a source, over all its partitions."""
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.per_window for part in parts),
        skipped={},
        sample=reduce(FieldSample.plus, (part.sample for part in parts), NO_SAMPLE),
        started_at_ms=batch.started_at_ms,
        finished_at_ms=max((part.finished_at_ms for part in parts), default=batch.started_at_ms),
        queued_ms=0,
    )


def tally_operators(
    taken_in: BatchIntake,
    results: Collection[ShardResult],
    runs: Iterable[TaskRun],
    *,
    began_ms: int,
    ended_ms: int,
    queued_ms: int = 0,
) -> dict[str, Tally]:
    """Returns the counts and clocks of each operator, over all tasks. Instants are by the driver's clock.

    Args:
        taken_in: The result of the sources.
        results: The results of all shards.
        runs: The work of all tasks.
        began_ms: The driver's clock before the tasks.
        ended_ms: The driver's clock after all tasks.
        queued_ms: How long the sources waited for other streams.
    """
    started_ms: dict[str, int] = {}
    finished_ms: dict[str, int] = {}
    for run in runs:
        started_ms[run.operator] = min(run.started_ms, started_ms.get(run.operator, run.started_ms))
        finished_ms[run.operator] = max(run.finished_ms, finished_ms.get(run.operator, run.finished_ms))

    def within(at_ms: int) -> int:
        # Even where the skew of a clock is not known, no operator may start or end outside of the batch.
        return min(max(at_ms, began_ms), ended_ms)

    tallies = {}
    for name, tally in taken_in.tallies.items():
        at_ms = within(finished_ms.get(name, tally.finished_at_ms))
        tallies[name] = replace(tally, finished_at_ms=at_ms, queued_ms=queued_ms)
    tallies_of_shards: dict[str, list[Tally]] = defaultdict(list)
    for shard in results:
        for name, tally in shard.tallies.items():
            tallies_of_shards[name].append(tally)
    for name, parts in tallies_of_shards.items():
        # No shard's tally has its instants on the driver's clock; its runs do.
        start_ms, end_ms = within(started_ms[name]), within(finished_ms[name])
        tallies[name] = replace(reduce(_sum_of_two, parts), started_at_ms=start_ms, finished_at_ms=end_ms)
    return tallies


def _sum_of_two(one: Tally, other: Tally) -> Tally:
    """Adds up the counts of an operator in two groups of shards."""
    return Tally(
        counts=add_counts(one.counts, other.counts),
        windows=add_counts(one.windows, other.windows),
        skipped=add_counts(one.skipped, other.skipped),
        intervals={
            start: one.intervals.get(start, NO_RECORDS).plus(other.intervals.get(start, NO_RECORDS))
            for start in {*one.intervals, *other.intervals}
        },
        started_at_ms=min(one.started_at_ms, other.started_at_ms),
        finished_at_ms=max(one.finished_at_ms, other.finished_at_ms),
        # Shards wait side by side, so their waits are not added.
        queued_ms=max(one.queued_ms, other.queued_ms),
    )


def _sum(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    # The annotation gives reduce() its type.
    none: dict[K, int] = {}
    return reduce(add_counts, parts, none)
