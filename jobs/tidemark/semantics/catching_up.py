"""Estimates when a stream will have read all of its topics.

Record counts are differences of offsets; instants are epoch ms of the driver's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

READS = 11
"""Number of batches for an estimate: the rate of the last ten."""
FORESEEABLE_MS = 365 * 86_400_000
"""Rates of ten batches say nothing about a later time.

A little more speed than records come in with would give a year that no calendar has.
"""
HANGS_AFTER_MS = 300_000
"""A longer batch hangs, and the estimate before it is outdated."""
InputPartition = tuple[str, int]
"""A source and its partition."""


@dataclass(frozen=True, kw_only=True)
class BatchRead:
    """Positions in topics after one batch.

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

    def leaves_of(self, before: BatchRead) -> bool:
        """Returns True if records still wait that waited after *before*."""
        return any(self.until.get(partition, latest) < latest for partition, latest in before.latest.items())


@dataclass(frozen=True, kw_only=True)
class CatchingUp:
    """The distance of a stream to the end of its topics.

    Attributes:
        records_behind: unread records when the newest batch ended.
        arrival_per_s: records per second that came in; None after one batch, and for a stream that keeps up.
        working_per_s: records per second that were read; None in the same cases.
        eta_at_ms: when no record will be unread; None: unknown, not within FORESEEABLE_MS, or it falls further behind.
    """

    records_behind: int
    arrival_per_s: float | None = None
    working_per_s: float | None = None
    eta_at_ms: int | None = None


def catching_up(reads: Sequence[BatchRead]) -> CatchingUp:
    """Returns the state after *reads*, oldest first, all of one driver.

    A caller passes the newest READS.

    >>> def read(at_ms: int, until: int, latest: int) -> BatchRead:
    ...     partition = ("events", 0)
    ...     offsets = {"until": {partition: until}, "latest": {partition: latest}}
    ...     return BatchRead(asked_at_ms=at_ms, finished_at_ms=at_ms, **offsets)
    >>> catching_up([read(0, 0, 900), read(1_000, 200, 1_000)])
    CatchingUp(records_behind=800, arrival_per_s=100.0, working_per_s=200.0, eta_at_ms=9000)
    """
    newest, first = reads[-1], reads[0]
    # A stream that keeps up leaves records, too: those that came since the batch was planned.
    if not newest.behind or len(reads) < 2 or not newest.leaves_of(reads[-2]):
        return CatchingUp(records_behind=newest.behind)
    worked_ms = newest.finished_at_ms - first.finished_at_ms
    waited_ms = newest.asked_at_ms - first.asked_at_ms
    if worked_ms <= 0 or waited_ms <= 0:
        return CatchingUp(records_behind=newest.behind)
    arrival = _moved(first.latest, newest.latest) / waited_ms
    working = _moved(first.until, newest.until) / worked_ms
    # Records that came since the broker was asked are behind, too.
    behind = newest.behind + arrival * (newest.finished_at_ms - newest.asked_at_ms)
    eta_ms = behind / (working - arrival) if working > arrival else math.inf
    return CatchingUp(
        records_behind=round(behind),
        arrival_per_s=arrival * 1_000,
        working_per_s=working * 1_000,
        eta_at_ms=newest.finished_at_ms + round(eta_ms) if eta_ms <= FORESEEABLE_MS else None,
    )


def _moved(first: Mapping[InputPartition, int], last: Mapping[InputPartition, int]) -> int:
    """Returns the sum of offsets gained in partitions that both have."""
    return sum(offset - first[partition] for partition, offset in last.items() if partition in first)
