"""Sums up the results of the tasks of a batch in shards.

Numbers are summed, and rows are concatenated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import polars as pl
import pyarrow as pa

from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.semantics.event_time import PartitionReading, follow
from tidemark.semantics.progress import InputProgress, StreamProgress, WriterPosition
from tidemark.storage.files import Files, Rows
from tidemark.stream.decide.decision import K, Tally, added
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.journal.task_run import TaskRun


@dataclass(frozen=True, kw_only=True)
class PartitionIntake:
    """The numbers of one partition of a source.

    For the first shard they include the rows of `tables`. `gap`: offsets are missing; `writers` as in the partition's
    progress; `disorder` is counted by bucket; `windows` are the starts of those opened, `per_window` all records per
    window. The clock of `host` was read before and after.
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
    watermark_ms: int | None = None
    idle: bool | None = None
    host: str = ""
    started_at_ms: int = 0
    finished_at_ms: int = 0
    tables: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def numbers(self) -> PartitionIntake:
        """Returns the numbers that every shard needs."""
        return replace(self, tables={}, disorder=pl.DataFrame())

    @property
    def task_run(self) -> TaskRun:
        """Returns the work of the task that took the partition in."""
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

    `now` is the new progress. By source there is what was `seen`, the numbers (`tallies`) and rows. `task_runs` are
    those that took in partitions.
    """

    now: StreamProgress
    seen: Mapping[str, Mapping[int, PartitionReading]]
    tallies: Mapping[str, Tally]
    tables: Mapping[str, Rows]
    task_runs: tuple[TaskRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """The result of one shard.

    `is_doubtful`: a topic may have lost records, and nothing was done; `is_news`: something changed. Only the first
    shard returns `taken_in`. `state` and `moved` are for the journal entry: the state of the shard. `hot` is the most
    frequent key among its records, and its share of them.
    """

    shard: int
    is_doubtful: bool = False
    is_news: bool = False
    taken_in: BatchIntake | None = None
    host: str = ""
    hot: tuple[str, float] | None = None
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
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


def together(parts: Iterable[Mapping[str, Rows]], lay_out: Callable[[str, pa.Table], Files]) -> dict[str, Rows]:
    """Returns the rows of all *parts* by name, in their order.

    Rows of a name are all in files where some are; *lay_out* makes the missing files.
    """
    rows_of_names: dict[str, list[Rows]] = {}
    for tables in parts:
        for name, rows in tables.items():
            rows_of_names.setdefault(name, []).append(rows)
    return {name: joined(rows, partial(lay_out, name)) for name, rows in rows_of_names.items()}


def joined(parts: Collection[Rows], lay_out: Callable[[pa.Table], Files]) -> Rows:
    """Returns the rows of *parts*, one after the other.

    They are a table if all parts are; otherwise files, which *lay_out* makes of tables.
    """
    tables = [rows for rows in parts if isinstance(rows, pa.Table)]
    if len(tables) == len(parts):
        return pa.concat_tables(tables)
    # A mix of tables and files becomes files: records need not fit into the driver.
    of_files = [lay_out(rows) if isinstance(rows, pa.Table) else rows for rows in parts if rows.num_rows]
    return Files(tuple(file for files in of_files for file in files.files))


def of_source(source: Source | HopSource, arrived: Iterable[PartitionIntake]) -> list[PartitionIntake]:
    """Returns what *arrived* of *source*, in the order of partitions."""
    return sorted((part for part in arrived if part.source == source.name), key=lambda part: part.partition)


def followed(before: InputProgress, parts: Collection[PartitionIntake], batch: MicroBatch) -> Input:
    """Returns the progress of a hop's reader, over all its partitions."""
    # All partitions of a hop share the offsets of its commits: they are batch numbers, kept under 0.
    at = before.partitions[0].until_offset if 0 in before.partitions else 0
    seen = [part.seen for part in parts if part.seen]
    newest_ms = [part.max_timestamp_ms for part in seen if part.max_timestamp_ms is not None]
    whole = PartitionReading(
        from_offset=at,
        until_offset=max([at, *(part.until_offset for part in seen)]),
        max_timestamp_ms=max(newest_ms, default=None),
    )
    # All marks of a hop are in one partition.
    watermark_ms = max((part.watermark_ms for part in parts if part.watermark_ms is not None), default=None)
    idle = next((part.idle for part in parts if part.idle is not None), None)
    progress = follow(before, whole, watermark_ms=watermark_ms, idle=idle, now_ms=batch.decided_at_ms)
    return Input(progress, {0: whole})


def arrival(batch: MicroBatch, parts: Collection[PartitionIntake]) -> Tally:
    """Returns the numbers of a source, over all its partitions."""
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.per_window for part in parts),
        skipped={},
        started_at_ms=batch.started_at_ms,
        finished_at_ms=max((part.finished_at_ms for part in parts), default=batch.started_at_ms),
        queued_ms=0,
    )


def tallied(
    taken_in: BatchIntake,
    worked: Collection[ShardResult],
    runs: Iterable[TaskRun],
    *,
    began_ms: int,
    ended_ms: int,
    queued_ms: int = 0,
) -> dict[str, Tally]:
    """Returns the numbers of each operator, over all tasks.

    Instants are by the driver's clock. An operator worked from the first start to the last end of its *runs*, within
    *began_ms* to *ended_ms*: no skew that is not known makes it finish before it was started.

    Args:
        taken_in: The result of the sources.
        worked: The results of all shards.
        runs: The work of all tasks.
        began_ms: The driver's clock before the tasks.
        ended_ms: The driver's clock after all tasks.
        queued_ms: How long the sources waited for other streams.
    """
    of: dict[str, list[TaskRun]] = defaultdict(list)
    for run in runs:
        of[run.operator].append(run)

    def within(at_ms: int) -> int:
        return min(max(at_ms, began_ms), ended_ms)

    tallies = {}
    for name, tally in taken_in.tallies.items():
        finished_ms = max((run.finished_ms for run in of[name]), default=tally.finished_at_ms)
        tallies[name] = replace(tally, finished_at_ms=within(finished_ms), queued_ms=queued_ms)
    for name in dict.fromkeys(name for shard in worked for name in shard.tallies):
        tally = _summed([shard.tallies[name] for shard in worked if name in shard.tallies])
        started_ms, finished_ms = min(run.started_ms for run in of[name]), max(run.finished_ms for run in of[name])
        tallies[name] = replace(tally, started_at_ms=within(started_ms), finished_at_ms=within(finished_ms))
    return tallies


def _summed(parts: Collection[Tally]) -> Tally:
    """Returns the numbers of an operator, over all shards."""
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.windows for part in parts),
        skipped=_sum(part.skipped for part in parts),
        started_at_ms=min(part.started_at_ms for part in parts),
        finished_at_ms=max(part.finished_at_ms for part in parts),
        queued_ms=max(part.queued_ms for part in parts),
    )


def _sum(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    # The annotation gives reduce() its type.
    none: dict[K, int] = {}
    return reduce(added, parts, none)
