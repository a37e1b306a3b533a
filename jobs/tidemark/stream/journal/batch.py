"""Describes a batch before it is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from tidemark.kernels.records.limits import TopicLimits
from tidemark.kernels.sql.constraints import Constraint


@dataclass(frozen=True)
class QueueWait:
    """How long a batch waited for Spark's task slots.

    `ms` is the wait; `behind` are the streams of the same process that ran batches in that time.
    """

    ms: int = 0
    behind: tuple[str, ...] = ()


NOT_QUEUED = QueueWait()


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """A micro-batch. All clocks are epoch ms UTC.

    Attributes:
        batch_id: the stream's number of the batch.
        epoch: number of the driver's lease.
        decided_at_ms: its decision time: when Spark planned it. It is the same on replay and never before that of the
            previous batch.
        started_at_ms: the driver's clock before Spark read the batch.
        started_boot_ms: the same instant by the boot clock, ms since the driver's host was started.
        looked_boot_ms: when the end offsets that the plan uses were known, by the boot clock.
        excluded_boot_ms: when the driver had looked before that, without seeing the new records, by the boot clock.
            None after the driver's first look.
        read_at_ms: the driver's clock after Spark read the batch.
        ends: per topic and partition, the offset up to which Spark reads (exclusive). Partitions without an offset are
            read up to their newest record.
        versions: per id of a Delta table, the version up to which it is read (exclusive).
        files: by source and name, the bytes of files that are read, or that were found to have grown.
        is_last: False for a part of a planned batch (`parts.py`) that other parts follow.
        queued: the wait for task slots, which is part of the time in which Spark read the batch.
        constraints: per sink, the constraints of its table, by which the batch is decided.
        refused: per sink, keys of updates that its table refused after their batch was decided.
    """

    batch_id: int
    epoch: int
    decided_at_ms: int
    started_at_ms: int
    read_at_ms: int
    started_boot_ms: int = 0
    looked_boot_ms: int = 0
    excluded_boot_ms: int | None = None
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_last: bool = True
    queued: QueueWait = NOT_QUEUED
    constraints: Mapping[str, tuple[Constraint, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Record time and decision time before and after a batch, and what else operators need to know of the batch.

    All times are epoch ms UTC.

    Attributes:
        was_watermark_ms: watermark before the batch. None before the first record.
        watermark_ms: watermark after the batch.
        held_by: the input or partition that held the watermark back before the batch.
        was_decided_at_ms: decision time of the previous batch.
        decided_at_ms: decision time of the batch.
        batch_id: the number of the batch.
        limits: per sink, the limits of its topic.
        constraints: per sink, the constraints of its table.
        refused: per sink, keys of updates that its table refused after their batch was decided.
        stay_closed: per operator, windows (start, end) that are closed although the watermark has not passed them.
        ended: per operator, the latest end of windows that stay closed even if the allowed lateness grew since.
        reopened: per aggregate, late records of earlier batches that it processes again (`tidemark requeue --reopen`).
        forgotten: per aggregate, the latest end of a window whose states were removed.
    """

    was_watermark_ms: int | None
    watermark_ms: int | None
    held_by: str | None
    was_decided_at_ms: int | None
    decided_at_ms: int
    batch_id: int = 0
    limits: Mapping[str, TopicLimits] = field(default_factory=dict)
    constraints: Mapping[str, tuple[Constraint, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stay_closed: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    reopened: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    forgotten: Mapping[str, int] = field(default_factory=dict)
