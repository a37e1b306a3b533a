"""Reads the logs of Delta tables: their files, their newest version, and the version that a batch committed."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.facts.record_facts import StreamEvidence
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.snapshots import versions_in_log
from tidemark.storage.warehouse import changes_of


class NoVersion(StrEnum):
    """Why no version of a Delta table can be named as the one that has the rows of a batch."""

    NOT_MERGED = "not_merged"
    NOT_COMMITTED = "not_committed"
    NOT_IN_LOG = "not_in_log"


class CommittedVersion(NamedTuple):
    """A version of a Delta table, and when it was committed (epoch ms)."""

    version: int
    at_ms: int


def version_fields(commit: CommittedVersion | NoVersion) -> dict[str, Any]:
    """Returns the fields `version` and `no_version` (why there is none) for JSON."""
    if isinstance(commit, NoVersion):
        return {"version": None, "no_version": commit.value}
    return {"version": commit.version, "no_version": None}


def files_in_log(path: Path) -> pl.DataFrame:
    """Returns the data files of the Delta table at *path*, with their statistics by the log, such as `min.batch_id`.

    If no file has a statistic, its column is missing.
    """
    return pl.DataFrame(DeltaTable(str(path)).get_add_actions(flatten=True))


def rows_in_log(path: Path) -> int | None:
    """Returns the number of rows of the Delta table at *path*, by its log; None if the log does not have all
    numbers.
    """
    try:
        files = files_in_log(path)
    except (DeltaError, OSError):
        return None
    rows = files["num_records"] if "num_records" in files.columns else pl.Series([None])
    return None if rows.has_nulls() else int(rows.sum())


def newest_version(path: Path) -> int:
    """Returns the newest version of the Delta table at *path*, by its log; -1 if there is no table yet."""
    return max(versions_in_log(path), default=-1)


def version_of(evidence: StreamEvidence, name: str, batch_id: int) -> CommittedVersion | NoVersion:
    """Returns the first commit of the table *name* that has the rows of a batch, or why none can be named.

    The commit has the transaction of that batch or of a later one: a merge takes several batches at once, and its
    transaction is the newest of them. A binary search reads few commits of the log.
    """
    opened, table, stream = evidence.table(name), evidence.home / name, evidence.stream
    app_id = f"{stream.topology.name}/{stream.sub.name}/{name}"
    committed = opened.transaction_version(app_id) if opened else None
    if opened is None or committed is None or committed < batch_id:
        return NoVersion.NOT_COMMITTED if changes_of(table) is None else NoVersion.NOT_MERGED
    newest = int(opened.version())
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
        if batch is not None and batch[0] >= batch_id:
            is_first = batch[0] == batch_id or _is_known_before(table, version, app_id)
            return CommittedVersion(version, batch[1]) if is_first else NoVersion.NOT_IN_LOG
    return NoVersion.NOT_IN_LOG


def _is_known_before(table: Path, version: int, app_id: str) -> bool:
    """Returns True if no commit before *version* that is gone from the log can have had the batch.

    That is sure if the log still has the commit of a batch before it, or all commits.
    """
    before = (_batch(table, earlier, app_id) for earlier in range(version - 1, -1, -1))
    return next((batch != _GONE for batch in before if batch is not None), True)


_GONE = (-1, 0)
"""The batch and the clock of a commit that is gone from the log; such a commit counts as older than all batches."""


def _batch(table: Path, version: int, app_id: str) -> tuple[int, int] | None:
    """Returns the batch and the clock (epoch ms) of a commit.

    None if the commit is of no batch, and _GONE if it is gone from the log.
    """
    try:
        actions = [json.loads(line) for line in commit_file(table, version).read_text().splitlines() if line]
    except FileNotFoundError:
        return _GONE
    clock = next((action["commitInfo"].get("timestamp", 0) for action in actions if "commitInfo" in action), 0)
    for action in actions:
        if action.get("txn", {}).get("appId") == app_id:
            return action["txn"]["version"], clock
    return None
