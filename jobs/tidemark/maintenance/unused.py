"""Removes files that no table names any more."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tidemark.control import ALIVE, Control
from tidemark.files import batch_of
from tidemark.maintenance.progress import Reached

HOUR_MS = 3_600_000
BETWEEN_BEATS_MS = 60_000


def remove_unused(path: Path, kept_ms: int, *, since_ms: int | None = None, done: int | None = None) -> int:
    """Remove what the table at *path* has not named for *kept_ms*, in whole hours; how many files that were.

    Files written at or after *since_ms* (None: no limit), and those laid out for batches after *done*, stay: a driver
    that was stopped or killed may be about to commit them.
    """
    table = DeltaTable(str(path))
    listed = table.vacuum(kept_ms // HOUR_MS, dry_run=True, enforce_retention_duration=False, full=True)
    removed = 0
    for file in (path / name for name in listed):
        laid_out_for = batch_of(file)
        if laid_out_for is not None and (done is None or laid_out_for > done):
            continue
        try:
            if since_ms is not None and file.stat().st_mtime_ns // 1_000_000 >= since_ms:
                continue
            file.unlink()
        except FileNotFoundError:  # another one has just removed it
            continue
        removed += 1
    return removed


def uncommitted_since_ms(control: Control, reached: Reached) -> int | None:
    """When the oldest file can have been written that the driver of *control* may still commit, epoch ms; None: never.

    That is since it decided the batch that it has not carried out, or since it was last heard of.
    """
    beat = control.heartbeat()
    heard = [beat.at_ms - BETWEEN_BEATS_MS] if beat and beat.state in ALIVE else []
    return min([*heard, *([reached.decided_at_ms] if reached.is_in_flight else [])], default=None)
