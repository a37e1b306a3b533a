"""Looks up facts about the batches of drivers.

They have the time of a batch, the records that it left unread, and the input that held the watermark back.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from tidemark.kernels.reports.restarts import Restart, restarts
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.semantics.blame import ClosingBatches
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import is_window_late


class BatchRun(NamedTuple):
    """A batch that ran.

    `unread` has the source and partition of each partition that it left with unread records. It waited `queued_ms` for
    other streams of its process, which `queued_behind` names.
    """

    batch_id: int
    started_ms: int
    finished_ms: int
    unread: frozenset[tuple[str, int]]
    queued_ms: int = 0
    queued_behind: str | None = None


class Mark(NamedTuple):
    """The decision of a batch about the time of a partition."""

    batch_id: int
    watermark_ms: int | None
    activity: str
    decided_ms: int


class Blocker(NamedTuple):
    """The partition that let a window close last.

    `ready_ms` is the record time from which on it could. `source` has the bound.
    """

    ready_ms: int
    source: Source
    partition: int | None = None

    @property
    def input(self) -> str | None:
        """Source and partition, as findings name them; None: not known."""
        return None if self.partition is None else f"{self.source.name} partition {self.partition}"


class BatchRows(NamedTuple):
    """Rows about the batches of one topology.

    `batches` are rows of `batches`, `beats` of `heartbeats`, `watermarks` of `watermarks`, and `latencies` those of
    `operator_latency` that are about sources.
    """

    batches: pl.DataFrame
    beats: pl.DataFrame
    watermarks: pl.DataFrame
    latencies: pl.DataFrame


class BatchFacts:
    """Facts about the batches of one topology.

    *trigger_ms* is that of the topology.
    """

    def __init__(self, rows: BatchRows, *, trigger_ms: int) -> None:
        batches, beats, watermarks, latencies = rows
        self._ran: dict[str, list[BatchRun]] = defaultdict(list)
        self._marks: dict[tuple[str, str, int], list[Mark]] = defaultdict(list)
        columns: tuple[str, ...] = ("started_at", "finished_at", "sources", "queued_ms", "queued_behind")
        for sub, batch_id, started_ms, finished_ms, sources, queued_ms, behind in _rows(batches, *columns):
            unread = frozenset(_unread(sources or ()))
            self._ran[sub].append(BatchRun(batch_id, started_ms, finished_ms, unread, queued_ms or 0, behind))
        batches_ms = batches.with_columns(cs.datetime().dt.epoch("ms"))
        beats_ms = beats.with_columns(cs.datetime().dt.epoch("ms"))
        self._restarts: dict[tuple[str, int], Restart] = {}
        for sub in self._ran:
            is_of_sub = pl.col("sub_topology") == sub
            of_sub = restarts(batches_ms.filter(is_of_sub), beats_ms.filter(is_of_sub), trigger_ms=trigger_ms)
            self._restarts |= {(sub, restart.batch_id): restart for restart in of_sub}
        of_partitions = watermarks.filter(pl.col("partition").is_not_null() & pl.col("source").is_not_null())
        columns = ("watermark", "activity", "decided_at", "source", "partition")
        for sub, *values, source, partition in _rows(of_partitions, *columns):
            self._marks[sub, source, partition].append(Mark(*values))
        # The record with the longest latency of a task is its oldest one.
        self._oldest_ms: dict[tuple[str, int, str, str], int] = {}
        for *task, finished_ms, max_ms in _rows(latencies, "operator", "task_id", "finished_at", "max_ms"):
            sub, batch_id, operator, task_id = task
            self._oldest_ms[sub, batch_id, operator, task_id] = finished_ms - max_ms

    def before(self, sub_topology: str, batch_id: int) -> BatchRun | None:
        """Returns the batch before *batch_id* that wrote anything; None: none."""
        ran = self._ran[sub_topology]
        place = bisect_left(ran, batch_id, key=lambda each: each.batch_id)
        return ran[place - 1] if place else None

    def queued(self, sub_topology: str, batch_id: int) -> tuple[int, str | None]:
        """Returns the wait of batch *batch_id* for other streams, in ms.

        They are streams of its process; their names are the second value.
        """
        ran = self._ran[sub_topology]
        place = bisect_left(ran, batch_id, key=lambda each: each.batch_id)
        is_known = place < len(ran) and ran[place].batch_id == batch_id
        return (ran[place].queued_ms, ran[place].queued_behind) if is_known else (0, None)

    def closing(
        self, sub_topology: str, batch_id: int, blocker: Blocker, *, began_ms: int, skew_ms: int
    ) -> ClosingBatches:
        """Describes batch *batch_id* as the batch that closed a window.

        Args:
            sub_topology: that ran the batch.
            batch_id: of the batch.
            blocker: the partition that let the window close last.
            began_ms: when the batch began, by the clock of all hosts.
            skew_ms: what to add to instants of the driver's clock for that clock.
        """
        before = self.before(sub_topology, batch_id)
        if before is None:
            return ClosingBatches(began_ms=began_ms, is_unread=True)
        restart = self.restart(sub_topology, batch_id, blocker)
        return ClosingBatches(
            began_ms=began_ms,
            before_began_ms=before.started_ms + skew_ms,
            before_ended_ms=before.finished_ms + skew_ms,
            is_unread=(blocker.source.name, blocker.partition) in before.unread,
            has_restarted=restart is not None and not restart.stood_still,
            still_from_ms=restart.from_ms + skew_ms if restart and restart.stood_still else None,
        )

    def restart(self, sub_topology: str, batch_id: int, blocker: Blocker | None = None) -> Restart | None:
        """Returns the restart or standstill that delayed batch *batch_id*.

        Records that the batch read had waited for it; None: they had not.
        """
        cause, before = self._restarts.get((sub_topology, batch_id)), self.before(sub_topology, batch_id)
        # A new driver may take several batches to read what came before its first one to the blocking partition.
        while cause is None and before and blocker and (blocker.source.name, blocker.partition) in before.unread:
            cause = self._restarts.get((sub_topology, before.batch_id))
            before = self.before(sub_topology, before.batch_id)
        return None if cause and blocker and blocker.ready_ms >= cause.to_ms else cause

    def blocker(self, sub: SubTopology, source: Source, batch_id: int, window_end_ms: int) -> Blocker:
        """Returns the partition that let a window close last.

        Args:
            sub: the sub-topology that closed the window.
            source: that is returned, without a partition, if no partition is known.
            batch_id: the batch that closed it.
            window_end_ms: end of the window, epoch ms.
        """
        # A source that only feeds the tables of joins closes no window.
        leading = {o.name: o for o in sub.outside_sources if o.name not in sub.table_inputs()}
        blockers: list[Blocker] = []
        for name, source_name, partition in self._marks:
            if name == sub.name and source_name in leading:
                blocker = self._ready(sub.name, leading[source_name], partition, batch_id, window_end_ms)
                if blocker is not None:
                    blockers.append(blocker)
        no_partition = Blocker(window_end_ms + source.bound_ms, source)
        # Names decide between partitions that were ready at the same instant.
        return max(blockers, key=lambda each: (each.ready_ms, each.source.name, each.partition), default=no_partition)

    def _ready(self, sub: str, source: Source, partition: int, batch_id: int, window_end_ms: int) -> Blocker | None:
        """Returns the partition if it let the window close in batch *batch_id*."""
        marks = self._marks[sub, source.name, partition]
        place = bisect_left(marks, batch_id, key=lambda each: each.batch_id)
        # The partition let the window close in an earlier batch, or has not yet.
        if (
            place == len(marks)
            or marks[place].batch_id != batch_id
            or (place and _lets(marks[place - 1], window_end_ms))
        ):
            return None
        mark, needed_ms = marks[place], window_end_ms + source.bound_ms
        if is_window_late(window_end_ms, mark.watermark_ms):
            oldest_ms = self._oldest_ms.get((sub, batch_id, source.name, f"{sub}_{partition}"), needed_ms)
            return Blocker(max(needed_ms, oldest_ms), source, partition)
        return Blocker(mark.decided_ms, source, partition) if mark.activity == Activity.IDLE else None


def _lets(mark: Mark, window_end_ms: int) -> bool:
    """Returns True if a partition lets a window close."""
    return mark.activity == Activity.IDLE or is_window_late(window_end_ms, mark.watermark_ms)


def _unread(sources: Iterable[dict[str, int]]) -> Iterator[tuple[str, int]]:
    """Yields source and partition of partitions with unread records."""
    for part in sources:
        if part["latest_offset"] is not None and part["latest_offset"] > part["until_offset"]:
            yield str(part["source"]), part["partition"]


def _rows(frame: pl.DataFrame, *columns: str) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Returns sub-topology, batch and *columns* of each row, by batch.

    Instants are epoch ms.
    """
    instants = frame.with_columns(cs.datetime().dt.epoch("ms")).sort("batch_id")
    return instants.select("sub_topology", "batch_id", *columns).iter_rows()
