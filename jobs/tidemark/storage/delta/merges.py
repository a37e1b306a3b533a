"""Notes in the commit of a merge when, and how late, it made rows visible.

The commit of a merge has, beside its batch: the driver's clock when its files were written, the newest record time
among the appended rows, and how many of these had which latency then. The log of a table keeps commits for a day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.kernels.columns.buckets import bucket_of
from tidemark.kernels.updates.last_seen import SEEN_ONLY
from tidemark.storage.delta.current_rows import NEWEST_MS

MERGE = "tidemark.merge"
"""Key of these notes in a commit (JSON)."""


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What a merge made visible, and when.

    Attributes:
        batch_id: the batch that merged.
        shown_at_ms: from when on readers see the rows, epoch ms.
        newest_ms: the newest `timestamp` among the rows appended since the merge before, deleted ones too. None if
            these rows have only the instants at which keys were seen.
        latencies: by bucket, how many of the rows had that end-to-end latency.
    """

    batch_id: int
    shown_at_ms: int
    newest_ms: int | None
    latencies: Mapping[int, int]


def merge_notes(appended: pl.DataFrame, shown_at_ms: int) -> dict[str, str]:
    """Returns the notes of a merge that makes the rows *appended* visible from *shown_at_ms* (epoch ms) on."""
    rows = appended.filter(~pl.col(SEEN_ONLY)) if SEEN_ONLY in appended.columns else appended
    rows = rows.filter(pl.col("deleted").is_not_null())
    newest_ms = rows.select(pl.col("timestamp").max().dt.epoch("ms")).item()
    latency = rows.filter(pl.col(NEWEST_MS).is_not_null()).select(bucket=bucket_of(shown_at_ms - pl.col(NEWEST_MS)))
    buckets = latency.group_by("bucket").len().sort("bucket").rows()
    return {MERGE: json.dumps({"shown_at_ms": shown_at_ms, "newest_ms": newest_ms, "latencies": buckets})}


def merges(path: Path) -> Iterator[Merge]:
    """Yields the merges in the log of a table, newest first."""
    # The log keeps commits for a day.
    for commit in DeltaTable(str(path)).history():
        if MERGE in commit:
            notes = json.loads(commit[MERGE])
            yield Merge(
                batch_id=int(commit["batch_id"]),
                shown_at_ms=notes["shown_at_ms"],
                newest_ms=notes["newest_ms"],
                latencies=dict(notes["latencies"]),
            )
