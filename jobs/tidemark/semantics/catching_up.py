"""Estimates when a stream will have read all of its topics.

Record counts are differences of offsets; instants are epoch ms of the driver's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

READS = 11
"""Number of batches that an estimate looks at: eleven batches have ten rates between them."""
FORESEEABLE_MS = 365 * 86_400_000
"""Estimates that lie further ahead are not given.

The rates of ten batches say nothing about that time, and a stream that is barely faster than its input would be done in
a year that no calendar has.
"""
HANGS_AFTER_MS = 300_000
"""A batch that takes longer counts as hanging; an estimate from before it no longer holds."""
InputPartition = tuple[str, int]
"""The name of a source, and the number of one of its partitions."""


@dataclass(frozen=True, kw_only=True)
class BatchRead:
    """How far a stream has read its topics after one batch.

    Attributes:
        asked_at_ms: when the broker was asked for its latest offsets.
        finished_at_ms: when the batch was carried out.
        until: the offset that the batch read up to, exclusive, by partition.
        latest: the broker's latest offset, by partition.
    """

    asked_at_ms: int
    finished_at_ms: int
    until: Mapping[InputPartition, int]
    latest: Mapping[InputPartition, int]

    @property
    def behind(self) -> int:
        """Records that the batch left unread."""
        return sum(max(0, self.latest[partition] - self.until[partition]) for partition in self.latest)

    def still_waits_for(self, before: BatchRead) -> bool:
        """Returns True if records that were unread after the batch *before* are still unread."""
        return any(self.until.get(partition, latest) < latest for partition, latest in before.latest.items())


@dataclass(frozen=True, kw_only=True)
class CatchingUp:
    """How far a stream is from the end of its topics, and when it will be there.

    Attributes:
        records_behind: unread records when the newest batch ended.
        arrival_per_s: records per second that came in. There is no rate after only one batch, or for a stream that
            keeps up.
        working_per_s: records per second that were read; None in the same cases.
        eta_at_ms: when no record will be unread. None if that is unknown or further away than FORESEEABLE_MS, or if the
            stream falls further behind.
    """

    records_behind: int
    arrival_per_s: float | None = None
    working_per_s: float | None = None
    eta_at_ms: int | None = None


def catching_up(reads: Sequence[BatchRead]) -> CatchingUp:
    """Returns how far a stream is from the end of its topics after the batches *reads*.

    The batches are of one driver, oldest first. A caller passes the newest READS of them.

    >>> def read(at_ms: int, until: int, latest: int) -> BatchRead:
    ...     partition = ("events", 0)
    ...     offsets = {"until": {partition: until}, "latest": {partition: latest}}
    ...     return BatchRead(asked_at_ms=at_ms, finished_at_ms=at_ms, **offsets)
    >>> catching_up([read(0, 0, 900), read(1_000, 200, 1_000)])
    CatchingUp(records_behind=800, arrival_per_s=100.0, working_per_s=200.0, eta_at_ms=9000)
    """
    newest, first = reads[-1], reads[0]
    # A stream that keeps up leaves records, too: those that came since the batch was planned.
    if not newest.behind or len(reads) < 2 or not newest.still_waits_for(reads[-2]):
        return CatchingUp(records_behind=newest.behind)
    worked_ms = newest.finished_at_ms - first.finished_at_ms
    waited_ms = newest.asked_at_ms - first.asked_at_ms
    if worked_ms <= 0 or waited_ms <= 0:
        return CatchingUp(records_behind=newest.behind)
    arrival = _offsets_gained(first.latest, newest.latest) / waited_ms
    working = _offsets_gained(first.until, newest.until) / worked_ms
    # Records that came since the broker was asked are behind, too.
    behind = newest.behind + arrival * (newest.finished_at_ms - newest.asked_at_ms)
    eta_ms = behind / (working - arrival) if working > arrival else math.inf
    return CatchingUp(
        records_behind=round(behind),
        arrival_per_s=arrival * 1_000,
        working_per_s=working * 1_000,
        eta_at_ms=newest.finished_at_ms + round(eta_ms) if eta_ms <= FORESEEABLE_MS else None,
    )


def _offsets_gained(first: Mapping[InputPartition, int], last: Mapping[InputPartition, int]) -> int:
    """Returns by how many offsets the partitions that are in both have advanced together."""
    return sum(offset - first[partition] for partition, offset in last.items() if partition in first)
