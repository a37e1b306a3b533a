"""Finds the version of a Delta table that a batch committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tidemark.storage.delta.log import commit_file
from tidemark.trace.evidence import StreamEvidence


class Commit(NamedTuple):
    """A version of a table, and when it was committed (epoch ms)."""

    version: int
    at_ms: int


def version_of(evidence: StreamEvidence, name: str, batch_id: int) -> Commit | None:
    """Returns the commit that has a batch of the table *name*.

    It reads a logarithm of the log's commits. None: the table has no such commit, or its log no longer.
    """
    opened, table, stream = evidence.table(name), evidence.home / name, evidence.stream
    if opened is None:
        return None
    app_id, newest = f"{stream.topology.name}/{stream.sub.name}/{name}", int(opened.version())
    low, high = 0, newest
    while low < high:
        middle = (low + high) // 2
        batch_after = next(
            ((n, batch) for n in range(middle, high) if (batch := _batch(table, n, app_id)) is not None), None
        )
        # Batches are committed in their order, with commits of maintenance between them.
        if batch_after is None or batch_after[1][0] >= batch_id:
            high = middle
        else:
            low = batch_after[0] + 1
    for version in range(low, newest + 1):
        batch = _batch(table, version, app_id)
        if batch is not None:
            return Commit(version, batch[1]) if batch[0] == batch_id else None
    return None


def _batch(table: Path, version: int, app_id: str) -> tuple[int, int] | None:
    """Returns batch and clock of a commit; None: of no batch.

    A commit that is gone from the log counts as older than all batches.
    """
    try:
        actions = [json.loads(line) for line in commit_file(table, version).read_text().splitlines() if line]
    except FileNotFoundError:
        return -1, 0
    clock = next((action["commitInfo"].get("timestamp", 0) for action in actions if "commitInfo" in action), 0)
    for action in actions:
        if action.get("txn", {}).get("appId") == app_id:
            return action["txn"]["version"], clock
    return None
