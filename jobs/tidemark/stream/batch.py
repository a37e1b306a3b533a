"""What is known of a batch before it is decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch. `decided_at_ms` is its newest tick, the same on replay; the other clocks are the driver's.

    All are epoch ms UTC: `started_at_ms` before Spark read the batch, `read_at_ms` after.
    """

    batch_id: int
    epoch: int
    decided_at_ms: int
    started_at_ms: int
    read_at_ms: int
