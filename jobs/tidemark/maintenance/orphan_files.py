"""Removes files that no table names any more."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tidemark.control.folder import Control
from tidemark.control.liveness import sign_of
from tidemark.maintenance.progress import ReachedBatch
from tidemark.semantics.liveness import REPORTED_ALIVE
from tidemark.storage.files import batch_of

HOUR_MS = 3_600_000
BETWEEN_BEATS_MS = 60_000


def remove_unused(path: Path, kept_ms: int, *, since_ms: int | None = None, done: int | None = None) -> int:
    """Removes files that the table at *path* does not name any more.

    Args:
        path: the folder of the table.
        kept_ms: a file stays for so long after the table named it last, in whole hours.
        since_ms: files that were written then or later stay, if it is given.
        done: files that were written for later batches stay: a driver that was stopped or killed may be about to
            commit them.

    Returns:
        The number of removed files.
    """
    table = DeltaTable(str(path))
    # delta-rs only lists the files, because it knows nothing of those that a driver is about to commit. By default it
    # refuses to list files that a table named in the last week.
    listed = table.vacuum(kept_ms // HOUR_MS, dry_run=True, enforce_retention_duration=False, full=True)
    removed = 0
    for file in (path / name for name in listed):
        written_for = batch_of(file)
        if written_for is not None and (done is None or written_for > done):
            continue
        try:
            if since_ms is not None and file.stat().st_mtime_ns // 1_000_000 >= since_ms:
                continue
            file.unlink()
        except FileNotFoundError:  # another one has just removed it
            continue
        removed += 1
    return removed


def uncommitted_since_ms(control: Control, reached: ReachedBatch) -> int | None:
    """Returns since when (epoch ms) the driver of *control* may have files that it will commit, or None if it has none.

    That is the earlier of two times: when it decided the batch that it has not carried out, and its last heartbeat.
    """
    beat = control.heartbeat()
    heard = [beat.at_ms - BETWEEN_BEATS_MS] if beat and sign_of(beat).reported in REPORTED_ALIVE else []
    return min([*heard, *([reached.decided_at_ms] if reached.is_in_flight else [])], default=None)
