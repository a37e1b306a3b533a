"""Estimates when a stream will have read all of its topics.

Record counts are differences of offsets; instants are epoch ms of the driver's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

READS = 11
"""Number of batches for an estimate: the rate of the last ten."""
InputPartition = tuple[str, int]
"""A source and its partition."""


@dataclass(frozen=True, kw_only=True)
class BatchRead:
    """Positions in topics after one batch.

    Attributes:
        decided_at_ms: when the broker's latest offsets were asked for.
        finished_at_ms: when the batch was carried out.
        until: the offset that the batch read up to, exclusive, by partition.
        latest: the broker's latest offset, by partition.
    """

    decided_at_ms: int
    finished_at_ms: int
    until: Mapping[InputPartition, int]
    latest: Mapping[InputPartition, int]

    @property
    def behind(self) -> int:
        """Records that the batch left unread."""
        return sum(max(0, self.latest[partition] - self.until[partition]) for partition in self.latest)


@dataclass(frozen=True, kw_only=True)
class CatchingUp:
    """The distance of a stream to the end of its topics.

    Attributes:
        records_behind: unread records when the newest batch ended.
        arrival_per_s: records per second that came in; None after one batch.
        working_per_s: records per second that were read; None after one batch.
        eta_at_ms: when no record will be unread; None: unknown, or it falls further behind.
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
    ...     return BatchRead(decided_at_ms=at_ms, finished_at_ms=at_ms, **offsets)
    >>> catching_up([read(0, 0, 900), read(1_000, 200, 1_000)])
    CatchingUp(records_behind=800, arrival_per_s=100.0, working_per_s=200.0, eta_at_ms=9000)
    """
    newest = reads[-1]
    if not newest.behind:
        return CatchingUp(records_behind=0)
    first = reads[0]
    worked_ms = newest.finished_at_ms - first.finished_at_ms
    waited_ms = newest.decided_at_ms - first.decided_at_ms
    if worked_ms <= 0 or waited_ms <= 0:
        return CatchingUp(records_behind=newest.behind)
    arrival = _moved(first.latest, newest.latest) / waited_ms
    working = _moved(first.until, newest.until) / worked_ms
    # Records that came while the newest batch ran are behind, too.
    behind = newest.behind + arrival * (newest.finished_at_ms - newest.decided_at_ms)
    eta_at_ms = newest.finished_at_ms + round(behind / (working - arrival)) if working > arrival else None
    return CatchingUp(
        records_behind=round(behind), arrival_per_s=arrival * 1_000, working_per_s=working * 1_000, eta_at_ms=eta_at_ms
    )


def _moved(first: Mapping[InputPartition, int], last: Mapping[InputPartition, int]) -> int:
    """Returns the sum of offsets gained in partitions that both have."""
    return sum(offset - first[partition] for partition, offset in last.items() if partition in first)
