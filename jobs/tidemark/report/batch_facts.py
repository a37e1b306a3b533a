"""What reports know of a driver's batches: when they ran, what they left unread, and what held the watermark (ring 1).

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from tidemark.kernels.restarts import Restart, restarts
from tidemark.semantics.blame import Closing
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import is_window_late
from tidemark.spec.operators import Source
from tidemark.spec.topology import SubTopology


class Ran(NamedTuple):
    """A batch: when it began and was finished, and the partitions that it left with unread records."""

    batch_id: int
    started_ms: int
    finished_ms: int
    unread: frozenset[tuple[str, int]]


class Mark(NamedTuple):
    """What a batch decided about the time of a partition."""

    batch_id: int
    watermark_ms: int | None
    activity: str
    decided_ms: int


class Blocker(NamedTuple):
    """The partition that let a window close last: from which record time on it could, and its source's bound."""

    ready_ms: int
    source: Source
    partition: int | None = None

    @property
    def input(self) -> str | None:
        """Source and partition, as findings name them."""
        return None if self.partition is None else f"{self.source.name} partition {self.partition}"


class BatchFacts:
    """Rows of `batches`, `heartbeats`, `watermarks` and, of sources, `operator_latency` of one topology.

    *trigger_ms* is that of the topology.
    """

    def __init__(
        self,
        batches: pl.DataFrame,
        beats: pl.DataFrame,
        watermarks: pl.DataFrame,
        latencies: pl.DataFrame,
        *,
        trigger_ms: int,
    ) -> None:
        self._ran: dict[str, list[Ran]] = defaultdict(list)
        self._marks: dict[tuple[str, str, int], list[Mark]] = defaultdict(list)
        for sub, batch_id, started_ms, finished_ms, sources in _rows(batches, "started_at", "finished_at", "sources"):
            self._ran[sub].append(Ran(batch_id, started_ms, finished_ms, frozenset(_unread(sources or ()))))
        told, beat = (frame.with_columns(cs.datetime().dt.epoch("ms")) for frame in (batches, beats))
        self._restarts = {
            (sub, restart.batch_id): restart
            for sub in self._ran
            for restart in restarts(
                *(frame.filter(pl.col("sub_topology") == sub) for frame in (told, beat)), trigger_ms=trigger_ms
            )
        }
        of_partitions = watermarks.filter(pl.col("partition").is_not_null() & pl.col("source").is_not_null())
        columns = ("watermark", "activity", "decided_at", "source", "partition")
        for sub, *values, source, partition in _rows(of_partitions, *columns):
            self._marks[sub, source, partition].append(Mark(*values))
        self._oldest_ms = {
            (sub, batch_id, operator, task_id): finished_ms - max_ms
            for sub, batch_id, operator, task_id, finished_ms, max_ms in _rows(
                latencies, "operator", "task_id", "finished_at", "max_ms"
            )
        }

    def before(self, sub_topology: str, batch_id: int) -> Ran | None:
        """The batch before *batch_id* that wrote something."""
        ran = self._ran[sub_topology]
        place = bisect_left(ran, batch_id, key=lambda each: each.batch_id)
        return ran[place - 1] if place else None

    def closing(self, sub_topology: str, batch_id: int, blocker: Blocker, *, began_ms: int, skew_ms: int) -> Closing:
        """Batch *batch_id* as the one that closed a window."""
        before = self.before(sub_topology, batch_id)
        if before is None:
            return Closing(began_ms=began_ms, is_unread=True)
        restart = self.restart(sub_topology, batch_id, blocker)
        return Closing(
            began_ms=began_ms,
            before_began_ms=before.started_ms + skew_ms,
            before_ended_ms=before.finished_ms + skew_ms,
            is_unread=(blocker.source.name, blocker.partition) in before.unread,
            has_restarted=restart is not None and not restart.stood_still,
            still_from_ms=restart.from_ms + skew_ms if restart and restart.stood_still else None,
        )

    def restart(self, sub_topology: str, batch_id: int, blocker: Blocker | None = None) -> Restart | None:
        """The restart or standstill for which records that batch *batch_id* read had waited; None: they had not.

        A new driver may take several batches to read what came before its first one to the partition of *blocker*.
        """
        found, before = self._restarts.get((sub_topology, batch_id)), self.before(sub_topology, batch_id)
        while found is None and before and blocker and (blocker.source.name, blocker.partition) in before.unread:
            found = self._restarts.get((sub_topology, before.batch_id))
            before = self.before(sub_topology, before.batch_id)
        return None if found and blocker and blocker.ready_ms >= found.to_ms else found

    def blocker(self, sub: SubTopology, source: Source, batch_id: int, window_end_ms: int) -> Blocker:
        """The partition that let the window close last; *source* without a partition if that is not known."""
        leading = [o for o in sub.operators if isinstance(o, Source) and o.name not in sub.table_inputs()]
        of_sub = [
            (each, partition)
            for name, each_source, partition in self._marks
            for each in leading
            if name == sub.name and each.name == each_source
        ]
        found = [self._ready(sub.name, each, partition, batch_id, window_end_ms) for each, partition in of_sub]
        known = [blocker for blocker in found if blocker is not None]
        nobody = Blocker(window_end_ms + source.bound_ms, source)
        return max(known, key=lambda each: (each.ready_ms, each.source.name, each.partition), default=nobody)

    def _ready(self, sub: str, source: Source, partition: int, batch_id: int, window_end_ms: int) -> Blocker | None:
        """When the partition let the window close in batch *batch_id*; None if it did so before, or has not."""
        marks = self._marks[sub, source.name, partition]
        place = bisect_left(marks, batch_id, key=lambda each: each.batch_id)
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
    return mark.activity == Activity.IDLE or is_window_late(window_end_ms, mark.watermark_ms)


def _unread(sources: Iterable[dict[str, int]]) -> Iterator[tuple[str, int]]:
    for part in sources:
        if part["latest_offset"] is not None and part["latest_offset"] > part["until_offset"]:
            yield str(part["source"]), part["partition"]


def _rows(frame: pl.DataFrame, *columns: str) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Sub-topology, batch and *columns* of each row, by batch; instants as epoch ms."""
    instants = frame.with_columns(cs.datetime().dt.epoch("ms")).sort("batch_id")
    return instants.select("sub_topology", "batch_id", *columns).iter_rows()
