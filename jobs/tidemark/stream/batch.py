"""What is known of a batch before it is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from tidemark.kernels.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch.

    `decided_at_ms` is its decision time: when Spark planned it, the same on replay, never before that of the batch
    before. The other clocks are the driver's: `started_at_ms` before Spark read the batch, `read_at_ms` after. All are
    epoch ms UTC. `ends` are the offsets, per topic and partition, up to which Spark reads it; where they are not known,
    the newest record tells. `versions` are those of Delta tables, by their ids, before which it reads them. Unless it
    `is_last`, it is a part of a planned batch (`parts.py`), and others follow.
    """

    batch_id: int
    epoch: int
    decided_at_ms: int
    started_at_ms: int
    read_at_ms: int
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    is_last: bool = True


@dataclass(frozen=True, kw_only=True)
class Moment:
    """How far time has come in a batch, and had come before it: record time, and decision time (epoch ms UTC).

    `held_by` is what held the watermark back before it; `limits` are those of the topic of each sink, `stay_closed`
    windows that are closed although the watermark has not passed them, by operator, and those that end at `ended` at
    the latest are, however long its allowed lateness is by now. `reopened` are late records of
    earlier batches that an aggregate is asked to take in, by its name; it has the states of the windows that end after
    `forgotten`.
    """

    was_watermark_ms: int | None
    watermark_ms: int | None
    held_by: str | None
    was_decided_at_ms: int | None
    decided_at_ms: int
    limits: Mapping[str, Limits] = field(default_factory=dict)
    stay_closed: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    reopened: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    forgotten: Mapping[str, int] = field(default_factory=dict)
