"""What the tasks of a batch in shards told, put together: numbers are summed, rows stand one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import polars as pl
import pyarrow as pa

from tidemark.files import Files, Rows
from tidemark.semantics.event_time import Seen, follow
from tidemark.semantics.progress import InputProgress, Sent, StreamProgress
from tidemark.spec.operators import HopSource, Source
from tidemark.stream.batch import Batch
from tidemark.stream.decision import K, Tally, added
from tidemark.stream.state_files import StateRuns


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One task's work on an operator, by the clock of its *host*; a row of `operator_tasks`."""

    operator: str
    shard: int | None = None
    partition: int | None = None
    host: str
    started_at_ms: int
    finished_at_ms: int
    records: int
    hot_key: str | None = None
    hot_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """What came in of one partition of a source, in numbers; for the first shard with rows of *tables*.

    `gap`: offsets are missing; `writers` as in the partition's progress; `disorder` is counted by bucket; `windows` are
    the starts of those opened, `per_window` all records per window; the clock of `host` was read before and after.
    """

    source: str
    partition: int = 0
    seen: Seen | None = None
    gap: bool = False
    writers: Mapping[str, Sent] = field(default_factory=dict)
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
    def numbers(self) -> Arrived:
        """What every shard has to know of it."""
        return replace(self, tables={}, disorder=pl.DataFrame())

    @property
    def task_run(self) -> TaskRun:
        """The work of the task that took it in."""
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
    """One source in the batch, all its partitions together."""

    progress: InputProgress
    seen: Mapping[int, Seen]


@dataclass(frozen=True, kw_only=True)
class TakenIn:
    """What all sources took in: how far time has come *now*, and by source what was seen, numbers, and rows.

    `task_runs` are those that took in partitions.
    """

    now: StreamProgress
    seen: Mapping[str, Mapping[int, Seen]]
    tallies: Mapping[str, Tally]
    tables: Mapping[str, Rows]
    task_runs: tuple[TaskRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What became of one shard.

    `is_doubtful`: a topic may have lost records, and nothing was done; `is_news`: something changed. `taken_in` is the
    first shard's to tell. `state` and `moved` are what the journal entry is to have of the shard's state. `hot` is the
    key of most of its records, and what part of them these are.
    """

    shard: int
    is_doubtful: bool = False
    is_news: bool = False
    taken_in: TakenIn | None = None
    host: str = ""
    hot: tuple[str, float] | None = None
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    state: StateRuns = field(default_factory=StateRuns)
    moved: Mapping[str, pa.Table] = field(default_factory=dict)
    state_bytes: int = 0

    @property
    def task_runs(self) -> Iterator[TaskRun]:
        """Its work on each operator."""
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
    """The rows of all *parts* by name, in their order; all in files where some are, for which *lay_out* makes them."""
    found: dict[str, list[Rows]] = {}
    for tables in parts:
        for name, rows in tables.items():
            found.setdefault(name, []).append(rows)
    return {name: joined(rows, partial(lay_out, name)) for name, rows in found.items()}


def joined(parts: Collection[Rows], lay_out: Callable[[pa.Table], Files]) -> Rows:
    """The rows of *parts*, one after the other."""
    tables = [rows for rows in parts if isinstance(rows, pa.Table)]
    if len(tables) == len(parts):
        return pa.concat_tables(tables)
    of_files = [lay_out(rows) if isinstance(rows, pa.Table) else rows for rows in parts if rows.num_rows]
    return Files(tuple(file for files in of_files for file in files.files))


def of_source(source: Source | HopSource, arrived: Iterable[Arrived]) -> list[Arrived]:
    """What *arrived* of *source*, in the order of partitions."""
    return sorted((part for part in arrived if part.source == source.name), key=lambda part: part.partition)


def followed(before: InputProgress, parts: Collection[Arrived], batch: Batch) -> Input:
    """The reading end of a hop, over all its partitions."""
    at = before.partitions[0].until_offset if 0 in before.partitions else 0
    seen = [part.seen for part in parts if part.seen]
    newest_ms = [part.max_timestamp_ms for part in seen if part.max_timestamp_ms is not None]
    whole = Seen(
        from_offset=at,
        until_offset=max([at, *(part.until_offset for part in seen)]),
        max_timestamp_ms=max(newest_ms, default=None),
    )
    watermark_ms = max((part.watermark_ms for part in parts if part.watermark_ms is not None), default=None)
    idle = next((part.idle for part in parts if part.idle is not None), None)  # one partition alone has marks
    progress = follow(before, whole, watermark_ms=watermark_ms, idle=idle, now_ms=batch.decided_at_ms)
    return Input(progress, {0: whole})


def arrival(batch: Batch, parts: Collection[Arrived]) -> Tally:
    """The numbers of a source, over all its partitions."""
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.per_window for part in parts),
        skipped={},
        started_at_ms=batch.started_at_ms,
        finished_at_ms=max((part.finished_at_ms for part in parts), default=batch.started_at_ms),
        queued_ms=0,
    )


def summed(parts: list[Tally], began_ms: int, ended_ms: int) -> Tally:
    """The numbers of an operator, over all shards.

    Its clocks are those of executors, from the first that began to the last that ended, as far as the driver's clock
    before and after all of them allows: no host's skew makes an operator finish before it was asked.
    """
    return Tally(
        counts=_sum(part.counts for part in parts),
        windows=_sum(part.windows for part in parts),
        skipped=_sum(part.skipped for part in parts),
        started_at_ms=min(max(min(part.started_at_ms for part in parts), began_ms), ended_ms),
        finished_at_ms=min(max(*(part.finished_at_ms for part in parts), began_ms), ended_ms),
        queued_ms=max(part.queued_ms for part in parts),
    )


def _sum(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    none: dict[K, int] = {}
    return reduce(added, parts, none)
