"""Describes the work of a task of a batch in shards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """The work of one task on an operator, an element of `operator_batches.tasks`.

    Attributes:
        operator: the operator, or the source that the task took in.
        shard: the shard, for an operator.
        partition: the partition, for a source.
        host: the host of the task.
        started_at_ms: epoch ms by the clock of the host.
        finished_at_ms: epoch ms by the clock of the host.
        records: how many records came in.
        hot_key: the most frequent key among the records of the shard.
        hot_share: its share of them.
        skew_ms: what has to be added to the clock of the host to get the driver's clock, or None if that is unknown.
        skew_error_ms: by how much `skew_ms` may be wrong at most.
    """

    operator: str
    shard: int | None = None
    partition: int | None = None
    host: str
    started_at_ms: int
    finished_at_ms: int
    records: int
    hot_key: str | None = None
    hot_share: float | None = None
    skew_ms: int | None = None
    skew_error_ms: int | None = None

    @property
    def started_ms(self) -> int:
        """Returns the start by the driver's clock, epoch ms."""
        # With an unknown skew it is by the clock of the host.
        return self.started_at_ms + (self.skew_ms or 0)

    @property
    def finished_ms(self) -> int:
        """Returns the end by the driver's clock, epoch ms."""
        # With an unknown skew it is by the clock of the host.
        return self.finished_at_ms + (self.skew_ms or 0)
