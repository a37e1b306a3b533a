"""Appends to the log of a Delta table, for one driver.

Purpose: before and after each commit delta-rs lists the log, and reads all of it since the newest checkpoint. In an
object store each of these is a request, and their number grows with every commit.
How it works: the log is read once, when the table is opened. From then on the next version is known. A commit is one
object that is put only where none exists: either it becomes that version, or another commit has become it. Only then
are the commits of others read. A commit that changes only files is skipped; after any other one the table must be
opened anew. Limitation: rows are not checked. Tables with partitions are left to delta-rs, and so are those with
conditions for their rows, unless the caller has checked the rows.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.clock import since_boot_s, wall_clock_ms
from tidemark.kernels.sql.constraints import Constraint
from tidemark.storage.delta.datasets import properties_of, schema_of
from tidemark.storage.delta.requirements import CHECK, Requirements, open_to_write
from tidemark.storage.delta.snapshots import LAST_CHECKPOINT, Snapshot
from tidemark.storage.files import File, stats_of, write_parquet
from tidemark.storage.location import durable, put_once
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

OF_FILES = frozenset({"add", "remove", "txn", "commitInfo", "cdc"})
"""Actions that change only files: after a commit of others with these alone, appends go on."""
CHECKPOINT_EVERY = 100
"""Commits between two checkpoints; whoever opens a table reads fewer commits than that."""
SHORT_EVERY = 20
"""The same number for a table with a SHORT_LOG: the commits of ten minutes, one each `facts_every`.

With more, the log would keep commits of twice the time.
"""
CHECKPOINTS = "delta.checkpointInterval"
REPLACED = "delta.deletedFileRetentionDuration"
"""The property that says how long checkpoints name a replaced file; a VACUUM of others keeps the file as long."""
KEPT_LOG = "interval 1 day"
"""Longest pause of a reader of a table's commits."""
HOP_LOG = "interval 7 days"
"""Longest pause of a stream that reads another stream's table (a hop).

The driver that writes the table removes the commits that all readers have read (stream/read/hop_log.py).
"""
SHORT_LOG = "interval 10 minutes"
"""For tables of which nobody reads single commits.

delta-rs lists the whole log at each commit, which takes 3 ms for 1,000 commits.
"""
LOG = "delta.logRetentionDuration"
FRESH_S = 300.0
"""So long after a look at the log all later commits are still there: logs keep commits for ten minutes at least."""
TRIES = 10
"""Most commits of others that a driver skips between two of its own commits; each takes a request or two."""

Action = Mapping[str, Any]


class TableLog:
    """Commits batches of the application *app_id* to the log of the table at *path*.

    delta-rs opens the table only when `table` is first used, because appends need no more than the log.

    Attributes:
        takes_appends: `append` may be used with any rows.
        takes_checked: `append` may be used with rows that the caller has checked against the constraints.
    """

    def __init__(self, path: Path, app_id: str) -> None:
        self._path, self._app_id = path, app_id
        opened = open_to_write(path)
        snapshot = opened if isinstance(opened, Snapshot) else None
        self._table = None if isinstance(opened, Snapshot) else opened
        self._appended_to = -1
        self._batch = self._asked_at = -1
        self._opened_at = int(opened.version())
        self._seen_s = since_boot_s()
        self._uncommitted: list[Path] = []
        arrow = pa.schema(schema_of(opened).to_arrow())
        self._types = {field.name: field.type for field in arrow}
        properties = properties_of(opened)
        if snapshot is None:
            is_plain = not self.table.metadata().partition_columns
        else:
            is_plain = not snapshot.partitioned_by
            self._batch, self._asked_at = snapshot.transactions.get(app_id, -1), self._opened_at
        self._checkpoint_every = checkpoint_every(properties)
        self._is_kept = properties.get(LOG) in {KEPT_LOG, HOP_LOG, SHORT_LOG}
        self._requirements = Requirements.of(path, opened)
        self.takes_checked = is_plain
        self.takes_appends = is_plain and not (
            # For these a writer must look at each row.
            any(name.startswith(CHECK) for name in properties)
            or any(not field.nullable or b"delta.invariants" in (field.metadata or {}) for field in arrow)
        )
        if not self.takes_appends:
            # delta-rs finds only conflicts with commits after the version that it has opened.
            self._opened_at = int(self.table.version())

    @property
    def table(self) -> DeltaTable:
        """The table as delta-rs has opened it, or as of delta-rs's last commit since."""
        if self._table is None:
            self._table = DeltaTable(str(self._path))
        return self._table

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The conditions that rows of the table must meet."""
        return self._requirements.constraints

    @property
    def _known_version(self) -> int:
        """The version of `table`, if delta-rs has opened it."""
        return self._opened_at if self._table is None else int(self._table.version())

    @property
    def version(self) -> int:
        """The newest version that this object has seen or made."""
        return max(self._appended_to, self._known_version)

    def clean_up(self, trim: Callable[[DeltaTable], None] = DeltaTable.cleanup_metadata) -> None:
        """Removes commits that need not be kept; *trim* does so for a table."""
        if self._table is not None:
            trim(self._table)
        # Commits since the newest checkpoint are kept, and most logs have none yet.
        elif any((self._path / "_delta_log").glob("*.checkpoint*")):
            # As `table` it would hide the commits of others since this object was made.
            trim(DeltaTable(str(self._path)))

    @property
    def newest_batch(self) -> int:
        """The newest committed batch, or -1 before the first."""
        version = self._known_version
        if version != self._asked_at:  # delta-rs reads files of the log for each answer
            newest = self.table.transaction_version(self._app_id)
            self._asked_at, self._batch = version, max(self._batch, -1 if newest is None else int(newest))
        return self._batch

    def write(self, rows: pa.Table) -> Action:
        """Writes *rows* to a new file; returns the action that adds it."""
        # Columns that *rows* lack are null for every reader of the file.
        fitted = rows.cast(pa.schema([(name, self._types[name]) for name in rows.column_names]))
        name = f"part-{uuid.uuid4().hex}.parquet"
        size = write_parquet(self._path / name, fitted)
        self._uncommitted.append(self._path / name)
        return add_action(name, size, wall_clock_ms(), json.dumps(stats_of(pl.DataFrame(fitted))))

    @property
    def is_grown(self) -> bool:
        """True if a checkpoint was due since the table was opened."""
        # Older commits may have been removed then.
        return (self._opened_at + 1) // self._checkpoint_every < (self.version + 1) // self._checkpoint_every

    def append(self, files: Sequence[Action], batch_id: int | None, noted: Mapping[str, str]) -> None:
        """Commits *files*, as batch *batch_id* unless that is None.

        Args:
            files: actions that add files.
            batch_id: the batch of the transaction; None to commit without a transaction.
            noted: notes that the commit carries.

        Raises:
            CommitFailedError: the table must be opened anew. Others have changed more than files, or have committed
                this batch, or their commits are gone.
        """
        content = self._commit(files, batch_id, noted)
        for version in range(self.version + 1, self.version + 1 + TRIES):
            try:
                put_once(commit_file(self._path, version), content)
            except FileExistsError:
                self._skip(version)
                continue
            # Others may have removed this version, and those before it, after a checkpoint: then no reader sees this
            # commit, though the store accepted it as a new object.
            if not (self._is_fresh() or commit_file(self._path, version - 1).exists() or self._is_read(batch_id)):
                break
            self._appended_to, self._seen_s = version, since_boot_s()
            self._batch = self._batch if batch_id is None else batch_id
            self._uncommitted = []
            checkpoint_if_due(self._path, version, every=self._checkpoint_every)
            return
        msg = f"{self._path}: others changed the table while rows were committed"
        raise CommitFailedError(msg)

    def remove_uncommitted(self) -> None:
        """Removes the files that this object has written and not committed."""
        for file in self._uncommitted:
            file.unlink(missing_ok=True)
        self._uncommitted = []

    def _commit(self, files: Sequence[Action], batch_id: int | None, noted: Mapping[str, str]) -> bytes:
        now_ms = wall_clock_ms()
        info = {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            # An append depends on no rows of the table, so commits of others need not conflict with it.
            "isBlindAppend": True,
            "engineInfo": "tidemark",
            **noted,
        }
        actions: list[Action] = [{"commitInfo": info}, *files]
        if batch_id is not None:
            actions.append({"txn": {"appId": self._app_id, "version": batch_id, "lastUpdated": now_ms}})
        return "\n".join(map(json.dumps, actions)).encode()

    def _skip(self, version: int) -> None:
        """Skips *version*, a commit of others.

        Raises:
            CommitFailedError: the commit changes more than files, or is one of this application.
        """
        try:
            lines = commit_file(self._path, version).read_bytes().splitlines()
            actions = [json.loads(line) for line in lines if line]
        except FileNotFoundError:
            actions = [{}]  # removed meanwhile: the empty action makes the check below refuse it
        is_ours = any(action.get("txn", {}).get("appId") == self._app_id for action in actions)
        if is_ours or not all(action.keys() <= OF_FILES and action for action in actions):
            msg = f"{self._path}: version {version} of others changed more than files"
            raise CommitFailedError(msg)
        self._appended_to, self._seen_s = version, since_boot_s()

    def _is_fresh(self) -> bool:
        """Returns True if the last look at the log was so short ago that an object store need not be asked again."""
        return isinstance(self._path, ObjectPath) and self._is_kept and since_boot_s() - self._seen_s < FRESH_S

    def _is_read(self, batch_id: int | None) -> bool:
        """Returns True if a reader of the table now sees batch *batch_id*."""
        if batch_id is None:
            return False
        newest = DeltaTable(str(self._path)).transaction_version(self._app_id)
        return newest is not None and newest >= batch_id


def add_file(table: Path, file: File) -> Action:
    """Returns the action that adds a new *file* in the folder *table*."""
    # Only its name counts: the folder may have moved since the file was written.
    name = Path(file.path).name
    status = (table / name).stat()
    return add_action(name, status.st_size, int(status.st_mtime * 1_000), json.dumps(file.stats))


def add_action(
    relative_path: str,
    size: int,
    written_at_ms: int,
    stats: str,
    *,
    partition: Mapping[str, str | None] = MappingProxyType({}),
    data_change: bool = True,
) -> Action:
    """Returns the action that adds a file.

    Args:
        relative_path: its path in the table.
        size: bytes.
        written_at_ms: time of its youngest row, epoch ms.
        stats: its statistics (JSON).
        partition: values of the partition columns.
        data_change: False if its rows were in other files before.
    """
    content = {"size": size, "modificationTime": written_at_ms, "dataChange": data_change, "stats": stats}
    return {"add": {"path": relative_path, "partitionValues": dict(partition), **content}}


def commit_file(table: Path, version: int) -> Path:
    """Returns the path of the commit *version* in the log of *table*."""
    return table / "_delta_log" / f"{version:020d}.json"


def make_commits_durable(table: Path, *, since: int = -1) -> None:
    """Makes the commits after version *since* survive a loss of power, with the files that they add.

    delta-rs syncs nothing. Files that this package writes itself are synced there: `make_log_durable` is enough.
    """
    if not isinstance(table, ObjectPath):
        # As bytes, since a text is also cut at other characters, which values of a commit may have.
        lines = chain.from_iterable(commit.read_bytes().splitlines() for commit in _commits(table, since))
        added = (json.loads(line).get("add") for line in lines)
        durable(table / unquote(add["path"]) for add in added if add)
        make_log_durable(table, since=since)


def make_log_durable(table: Path, *, since: int) -> None:
    """Makes the commits after version *since* survive a loss of power, without the files that they add."""
    if not isinstance(table, ObjectPath):
        for commit in _commits(table, since):
            durable([commit, *_checkpoint_files(table, int(commit.stem))])


def _commits(table: Path, since: int) -> list[Path]:
    """Returns the files of the commits after version *since*."""
    return [*takewhile(Path.exists, (commit_file(table, version) for version in count(since + 1)))]


def _checkpoint_files(table: Path, version: int) -> list[Path]:
    log_folder = table / "_delta_log"
    return [log_folder / _checkpoint_name(version), log_folder / LAST_CHECKPOINT]


def properties_of_log(log: str) -> dict[str, str]:
    """Returns the properties of a new table whose log keeps commits for *log*."""
    every = SHORT_EVERY if log == SHORT_LOG else CHECKPOINT_EVERY
    # After a week without this, 60,000 files that a driver has replaced would be in each checkpoint. Maintenance joins
    # files of hops, whose readers may be stopped for as long as their log is kept.
    return {LOG: log, CHECKPOINTS: str(every), REPLACED: HOP_LOG if log == HOP_LOG else KEPT_LOG}


def checkpoint_every(properties: Mapping[str, str]) -> int:
    """Returns the commits between two checkpoints of a table with *properties*."""
    return int(properties.get(CHECKPOINTS) or CHECKPOINT_EVERY)


def checkpoint_if_due(table: Path, version: int, *, every: int) -> None:
    """Makes a checkpoint if one is due after *version*: there is one *every* so many commits."""
    # delta-rs makes its checkpoints at the same versions.
    if (version + 1) % every:
        return
    try:
        if not isinstance(table, ObjectPath) or not _checkpoint_by_copy(table, version):
            DeltaTable(str(table)).create_checkpoint()
            durable(_checkpoint_files(table, version))
    # A failure is only logged: openers of the table then read more commits until the next checkpoint.
    except (OSError, DeltaError) as error:
        log.warning("%s: cannot write the checkpoint of version %d: %s", table, version, error)


def _checkpoint_by_copy(table: ObjectPath, version: int) -> bool:
    """Makes the checkpoint of *version* from a copy of the log.

    Returns False, without a checkpoint, if the newest one is torn, or has another form than a single file.
    """
    # The copy takes one request a commit, and delta-rs four.
    log_folder = table / "_delta_log"
    with TemporaryDirectory() as folder:
        copy = Path(folder) / log_folder.name
        copy.mkdir()
        try:
            _copy_log(log_folder, copy, version)
        # The newest checkpoint is torn, or has another form than a single file.
        except (AttributeError, FileNotFoundError, LookupError, TypeError, ValueError):
            return False
        DeltaTable(folder).create_checkpoint()
        # In this order: readers of `_last_checkpoint` open the file that it names.
        for name in (_checkpoint_name(version), LAST_CHECKPOINT):
            (log_folder / name).write_bytes((copy / name).read_bytes())
    return True


def _copy_log(log_folder: Path, copy: Path, version: int) -> None:
    """Copies the newest checkpoint, and the commits after it to *version*."""
    last, first = log_folder / LAST_CHECKPOINT, 0
    if last.exists():
        content = json.loads(last.read_text())
        if content.get("parts") or content.get("v2Checkpoint"):
            msg = f"{last}: the checkpoint has several files"
            raise ValueError(msg)
        name, first = _checkpoint_name(content["version"]), content["version"] + 1
        (copy / name).write_bytes((log_folder / name).read_bytes())
        (copy / last.name).write_text(json.dumps(content))
    for number in range(first, version + 1):
        name = commit_file(log_folder.parent, number).name
        (copy / name).write_bytes((log_folder / name).read_bytes())


def _checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"
