"""When drivers read nothing: one took the place of another, or one stood still."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import polars as pl

from tidemark.spec.intervals import iso

RUNNING = "running"
"""As heartbeats say it: see control.StreamState."""
TRIGGERS = 2
"""Replacing a driver within so many triggers is no restart: no record waited for it."""
IDLE_FOR_MS = 60_000
"""Nor is one whose new driver ran for so long before its first batch: there was nothing to read."""


SILENT_FOR_MS = 30_000
"""A driver without a heartbeat for longer stood still: one is written every 15 s, whatever a batch does."""


class Pause(NamedTuple):
    """A driver stood still between two heartbeats, at `from_ms` and `to_ms` of its clock."""

    from_ms: int
    to_ms: int

    @property
    def seen(self) -> str:
        """What happened, as part of a sentence."""
        return f"no heartbeat from {iso(self.from_ms)} to {iso(self.to_ms)}"


class Restart(NamedTuple):
    """Nothing was read from `from_ms` to `to_ms`, clocks of the drivers; batch `batch_id` read the `waited` records."""

    batch_id: int
    from_ms: int
    to_ms: int
    waited: int

    @property
    def seen(self) -> str:
        """What happened, as part of a sentence."""
        waited = f"{self.waited:,} records waited"
        return f"nothing was read from {iso(self.from_ms)} to {iso(self.to_ms)}, and {waited}"


def restarts(batches: pl.DataFrame, beats: pl.DataFrame, *, trigger_ms: int) -> list[Restart]:
    """The restarts of one sub-topology, oldest first.

    A driver reads nothing after its last batch or, where that is later, its last heartbeat. Drivers that finished no
    batch do not count.

    Args:
        batches: rows of `batches`, instants as epoch ms.
        beats: rows of `heartbeats`, instants as epoch ms.
        trigger_ms: of the topology.
    """
    last_beat_ms = dict(beats.group_by("epoch").agg(pl.col("at").max()).iter_rows())
    running = beats.filter(pl.col("state") == RUNNING, pl.col("batch_started_at").is_null())
    idle_since_ms = dict(running.group_by("epoch").agg(pl.col("at").min()).iter_rows())
    ran = batches.sort("batch_id").select("batch_id", "epoch", "decided_at", "finished_at", "records_in").rows()
    found = [
        Restart(batch_id, max(ended_ms, last_beat_ms.get(epoch_before, ended_ms)), finished_ms, records_in)
        for (_, epoch_before, _, ended_ms, _), (batch_id, epoch, decided_ms, finished_ms, records_in) in pairwise(ran)
        if epoch != epoch_before and decided_ms - idle_since_ms.get(epoch, decided_ms) <= IDLE_FOR_MS
    ]
    return [each for each in found if each.to_ms - each.from_ms > TRIGGERS * trigger_ms]


def pauses(beats: pl.DataFrame) -> list[Pause]:
    """When a driver of one sub-topology stood still, oldest first.

    *beats* are rows of `heartbeats`, instants as epoch ms.
    """
    rows = beats.sort("at").select("epoch", "at").iter_rows()
    return [
        Pause(from_ms, to_ms)
        for (epoch_before, from_ms), (epoch, to_ms) in pairwise(rows)
        if epoch == epoch_before and to_ms - from_ms > SILENT_FOR_MS
    ]
