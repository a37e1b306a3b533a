"""Writes a driver's tables through delta-rs, each batch once, because a commit carries its batch as a transaction."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.clock import wall_clock_ms
from tidemark.errors import Contradiction
from tidemark.kernels.sql.constraints import Constraint
from tidemark.selection import in_order_of
from tidemark.storage.delta.current_rows import ClosedRows, write_replacements
from tidemark.storage.delta.datasets import dataset_of, file_names, open_to_read
from tidemark.storage.delta.format import FORMAT, STAMPED, TABLE_FORMAT, WRITER, table_stamp
from tidemark.storage.delta.log import (
    KEPT_LOG,
    TableLog,
    add_file,
    commit_file,
    make_commits_durable,
    make_log_durable,
    properties_of_log,
)
from tidemark.storage.delta.requirements import CHECK, OWN_CHECK, Access, Requirements, open_to_write
from tidemark.storage.delta.snapshots import snapshot_of
from tidemark.storage.delta.types import refuse_type_changes
from tidemark.storage.fence import Fence
from tidemark.storage.files import File, Files, Rows, frames
from tidemark.storage.location import put_once
from tidemark.storage.object_path import ObjectPath

SETTINGS = {"delta.enableDeletionVectors": "false"}  # not every reader of the tables knows them
KEEPS_LOG = PostCommitHookProperties(cleanup_expired_logs=False)
"""After a commit delta-rs makes a due checkpoint, and removes nothing.

The search for expired commits would take another 12 ms for 1,000 commits each time. The process that opens the table
after a checkpoint does it.
"""
HISTORY = 100
"""So many of the newest commits are searched for commits of others."""
SKEW_S = 60
"""By how much the clock of the file system may be behind that of this process, at most."""
TRIES = 10
"""Attempts at a commit, if commits of others conflict with it."""
PUTS_ROWS = frozenset(
    {
        "WRITE",
        "UPDATE",
        "MERGE",
        "STREAMING UPDATE",
        "COPY INTO",
        "CLONE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE AS SELECT",
    }
)
"""Operations in a Delta log that put rows into a table."""
OWN = frozenset({"batch_id", "maintenance"})
"""Keys of which each commit of Tidemark has one that adds rows, or moves them into other files."""
NEEDED, SUPERSEDED = "needed-", "superseded-"
"""Prefixes of the names of files that `maintenance/` made: of rows that stay at any age, and of superseded rows.

See maintenance/live_rows.py.
"""

WRITTEN = WriterProperties(compression="ZSTD")

T = TypeVar("T")
Notes = Mapping[str, str]
"""Additional notes of a commit, by key."""
NO_NOTES: Notes = MappingProxyType({})


def create(
    path: Path,
    schema: pa.Schema,
    *,
    description: str | None = None,
    log: str = KEPT_LOG,
    checks: Mapping[str, str] = MappingProxyType({}),
    partitioned_by: Sequence[str] = (),
    properties: Mapping[str, str] = MappingProxyType({}),
) -> DeltaTable:
    """Makes a Delta table at *path*, or updates an existing one.

    An existing table keeps its rows. It gets the columns that it lacks (null in those rows), the comments, and *checks*
    in place of Tidemark's other ones. A table without a stamp gets it last, so that a table with the stamp has all of
    these.

    Args:
        path: the folder of the table.
        schema: its columns, with their comments.
        description: the description of a new table.
        log: how long the log keeps commits. Those since the newest checkpoint are always kept.
        checks: SQL conditions that all rows meet, by name.
        partitioned_by: columns that partition a new table.
        properties: more properties of a new table.

    Returns:
        The opened table.

    Raises:
        DeltaError: a row does not meet *checks*.
        OtherFormat: a version with another format has written the table.
        TypesChanged: a column has another type.
        TableRefused: the table requires what Tidemark does not know.
    """

    def up_to_date() -> DeltaTable:
        table = _existing_table(path) or _new_table(
            path, schema, description, _properties(log, properties), partitioned_by=partitioned_by
        )
        stamp, opened_at = table_stamp(table), table.version()
        if stamp is not None:
            stamp.refuse_other(path)
        comments = {field.name: field.metadata for field in table.schema().fields}
        refuse_type_changes(path.name, table.schema().to_json(), schema)
        wanted = Schema.from_arrow(schema).fields
        lacking = [field for field in wanted if field.name not in comments]
        if lacking:
            table.alter.add_columns(lacking)
        for field in wanted:
            # delta-rs refuses rows whose schema has other comments than the table.
            if field.metadata and comments.get(field.name, field.metadata) != field.metadata:
                table.alter.set_column_metadata(field.name, field.metadata)
        checked = {name.removeprefix(CHECK) for name in table.metadata().configuration if name.startswith(CHECK)}
        for name in sorted(checked - checks.keys()):
            if name.startswith(OWN_CHECK):
                table.alter.drop_constraint(name)
        # After the columns: a check may name a new one. delta-rs reads all rows to add it.
        missing = in_order_of(checks.keys() - checked, checks)
        if missing:
            table.alter.add_constraint(missing)
        if stamp is None:
            table.alter.set_table_properties(STAMPED, raise_if_not_exists=False)
        make_commits_durable(path, since=opened_at if opened_at else -1)
        return table

    return again_after_others(up_to_date)


def _properties(log: str, more: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of a new table, with *more*."""
    return {**SETTINGS, **properties_of_log(log), **STAMPED, **more}


def _new_table(
    path: Path,
    schema: Schema | pa.Schema,
    description: str | None,
    properties: Mapping[str, str],
    *,
    partitioned_by: Sequence[str] = (),
) -> DeltaTable:
    """Makes a table at *path*, or opens the one of another process."""
    return DeltaTable.create(
        str(path),
        schema=schema,
        mode="ignore",
        partition_by=list(partitioned_by) or None,
        description=description,
        configuration={**properties},
        # delta-rs does not know all properties, for example `tidemark.current`.
        raise_if_key_not_exists=False,
    )


@lru_cache(maxsize=128)
def _first_commit(schema: str, description: str, properties: tuple[tuple[str, str], ...]) -> tuple[str, dict[str, Any]]:
    """Returns the first commit that delta-rs makes of a new table, as text and as actions; *schema* is Delta's JSON."""
    with TemporaryDirectory() as folder:
        _new_table(Path(folder), Schema.from_json(schema), description, dict(properties))
        text = commit_file(Path(folder), 0).read_text(encoding="utf-8")
    actions: dict[str, Any] = {}
    for line in text.splitlines():
        actions |= json.loads(line)
    return text, actions


def _existing_table(path: Path) -> DeltaTable | None:
    """Opens the table at *path*; returns None if there is none."""
    try:
        table = open_to_write(path)
    except TableNotFoundError:
        return None
    return table if isinstance(table, DeltaTable) else DeltaTable(str(path))


@dataclass(frozen=True)
class DeclaredTable:
    """Arguments of `create` for one table."""

    path: Path
    schema: pa.Schema
    description: str
    log: str = KEPT_LOG
    checks: Mapping[str, str] | None = None
    partitioned_by: Sequence[str] = ()
    properties: Mapping[str, str] | None = None

    def ensure(self) -> None:
        """Makes or updates the table, unless it is as declared."""
        if self.is_as_declared:
            return
        log = self.path / "_delta_log"
        if isinstance(self.path, ObjectPath) or self.checks or self.partitioned_by or log.exists():
            self.create()
            return
        try:
            log.mkdir(parents=True, exist_ok=True)
            put_once(commit_file(self.path, 0), self._new_commit().encode())
        except FileExistsError:  # another process has just made it
            self.create()

    def _new_commit(self) -> str:
        """Returns the first commit of a new table."""
        # delta-rs takes 5 ms of a processor for each table, and those of all streams have the same columns.
        properties = _properties(self.log, self.properties or {})
        schema = Schema.from_arrow(self.schema).to_json()
        text, actions = _first_commit(schema, self.description, tuple(properties.items()))
        now_ms, described, info = str(wall_clock_ms()), actions["metaData"], actions["commitInfo"]
        for old, new in (
            (described["id"], str(uuid.uuid4())),
            (str(described["createdTime"]), now_ms),
            (str(info["timestamp"]), now_ms),
            (info["operationParameters"]["location"], f"{self.path.absolute().as_uri()}/"),
        ):
            text = text.replace(old, new)
        return text

    @property
    def is_as_declared(self) -> bool:
        """True if the table is there, and `create` would change nothing."""
        stored = snapshot_of(self.path)
        if stored is None or stored.properties.get(TABLE_FORMAT) != str(FORMAT):
            return False
        Requirements.of(self.path, stored).refuse()
        refuse_type_changes(self.path.name, stored.schema, self.schema)
        comments = {
            field["name"]: (field.get("metadata") or {}).get("comment") for field in json.loads(stored.schema)["fields"]
        }
        for field in self.schema:
            comment = (field.metadata or {}).get(b"comment", b"").decode()
            if field.name not in comments or comment not in {"", comments[field.name]}:
                return False
        checked = {name.removeprefix(CHECK) for name in stored.properties if name.startswith(CHECK)}
        wanted = (self.checks or {}).keys()
        return wanted <= checked and not any(name.startswith(OWN_CHECK) for name in checked - wanted)

    def create(self) -> DeltaTable:
        """Makes the table, or updates an existing one, as `create` does."""
        return create(
            self.path,
            self.schema,
            description=self.description,
            log=self.log,
            checks=self.checks or {},
            partitioned_by=self.partitioned_by,
            properties=self.properties or {},
        )


def scan(path: Path) -> pl.LazyFrame:
    """Returns the rows of the Delta table at *path*, not read yet.

    Raises if there is no table.
    """
    # Not pl.scan_delta: it looks for a folder `a b` under the name `a%20b`.
    return pl.scan_pyarrow_dataset(dataset_of(open_to_read(path)))


Accept = Callable[[tuple[Constraint, ...]], tuple[Rows, Notes]]
"""Given the constraints of a table, returns the rows to append, and the notes of their commit."""
Keep = Callable[[pl.DataFrame], pl.DataFrame]
"""Returns those of the given rows that a reader needs."""


def read_before(path: Path, batch_id: int, columns: list[str], *, keep: Keep = lambda rows: rows) -> pl.DataFrame:
    """Returns rows of batches before *batch_id*, oldest batch first.

    Files of superseded rows are left out.

    Args:
        path: the table.
        batch_id: the first batch whose rows are left out.
        columns: the columns of the result, beside `batch_id`.
        keep: filters each part of the table. Only its results are in memory together.
    """
    dataset = in_files(DeltaTable(str(path)), lambda name: None if name.startswith(SUPERSEDED) else 0)
    names = ["batch_id", *columns]
    # polars cannot concatenate no frames, and a table may have no such row.
    parts = [pl.DataFrame(pa.schema(map(dataset.schema.field, names)).empty_table())]
    for batch in dataset.to_batches(columns=names, filter=pc.field("batch_id") < batch_id):
        parts.append(keep(pl.DataFrame(batch)))
    return pl.concat(parts).sort("batch_id", maintain_order=True)


def in_files(table: DeltaTable, position_of: Callable[[str], int | None]) -> ds.Dataset:
    """Returns the rows of some files of *table*, in a given order.

    *position_of* returns the position of a file in this order by its name; a file for which it returns None is left
    out.
    """
    whole = dataset_of(table)
    numbered: list[tuple[int, ds.Fragment]] = []
    for fragment in whole.get_fragments():
        number = position_of(Path(fragment.path).name)
        if number is not None:
            numbered.append((number, fragment))
    numbered.sort(key=itemgetter(0))
    fragments = [fragment for _, fragment in numbered]
    return ds.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)


def again_after_others(commit: Callable[[], T]) -> T:
    """Calls *commit* again as long as commits of others conflict with it, TRIES times at most; returns its result."""
    # The error means that a commit of others came between the reading and the writing of this one.
    for _ in range(TRIES - 1):
        with suppress(CommitFailedError):
            return commit()
    return commit()


def append(path: Path, rows: pa.Table) -> None:
    """Appends *rows* to the table at *path*; tries again if others commit in between."""
    properties = CommitProperties(custom_metadata=WRITER)
    since = open_to_write(path).version()
    again_after_others(partial(write_deltalake, path, rows, mode="append", commit_properties=properties))
    make_commits_durable(path, since=since)


class Appender:
    """Appends rows that belong to no batch to the table at *path*, which it opens once between two checkpoints."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log: TableLog | None = None

    def append(self, rows: pa.Table) -> None:
        """Appends *rows*; tries again after a commit of others."""
        again_after_others(partial(self._append, rows))

    @property
    def check_lease(self) -> Callable[[], None]:
        """Does nothing: rows that belong to no batch may come from several processes."""
        return lambda: None

    def open_anew(self, path: Path, *, own_commits: int = 0) -> None:
        """Does nothing: `append` opens the table anew after a commit that it does not know."""

    def _append(self, rows: pa.Table) -> None:
        log, self._log = self._log, None  # after an error below the table is opened anew
        if log is None or log.is_grown:
            log = TableLog(self._path, "")
            log.clean_up()
        if log.takes_appends:
            log.append([log.write(rows)], None, WRITER)
            self._log = log
        else:
            write_deltalake(self._path, rows, mode="append", commit_properties=CommitProperties(custom_metadata=WRITER))
            make_commits_durable(self._path, since=log.version)


def delete_rows(path: Path, condition: str) -> int:
    """Deletes the rows of the table at *path* for which the SQL *condition* is true.

    Returns the number of deleted rows, 0 if there is no table.
    """
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    return int(DeltaTable(str(path)).delete(condition)["num_deleted_rows"])


def rows_of_others(path: Path, table: DeltaTable, *, since: int = -1) -> list[int]:
    """Returns the versions by which others put rows into *table*.

    These are versions after *since*, newest first, whose files are still part of the table at *path*. The last HISTORY
    commits are searched.
    """
    # A commit of others that wrote the rows into new files once more, such as OPTIMIZE, hides where they came from.
    newest = table.history(min(HISTORY, table.version() - since))
    versions = [c["version"] for c in newest if c.get("operation") in PUTS_ROWS and not OWN & c.keys()]
    # Rows that were deleted since are no news, so the files of a commit are compared with those of today.
    there = file_names(table) if versions else set()
    return [version for version in versions if there & _added_files(commit_file(path, version))]


def _added_files(commit: Path) -> set[str]:
    """Returns the names of the data files that *commit* added."""
    # The log may have removed the commit.
    if not commit.exists():
        return set()
    actions = (json.loads(line) for line in commit.read_text().splitlines())
    return {Path(action["add"]["path"]).name for action in actions if "add" in action}


class Committer:
    """Appends to the tables of one driver.

    Purpose: each batch of each table is committed once, however often it is tried.
    How it works: the commit carries the transaction (*app*/<table>, batch id), and the log keeps it. A batch that is in
    the log is not written again, and of two simultaneous commits with one transaction the log takes one.
    If another commit (OPTIMIZE, DELETE, a new column) gets in the way, the commit is made anew on top of that one.

    Args:
        app: the application of the transactions.
        fence: guards, repeats and times each commit.
        alone: names of tables into which no other process may put rows.
        is_only_writer: True if no other thread or process has rows with these batch ids, but in tables that take
            appends. The files that a failed commit leaves are then removed.
        trimmers: shorten the logs of tables, by name. The property of any other table sets the length of its log.
    """

    def __init__(
        self,
        app: str,
        fence: Fence,
        *,
        alone: Container[str] = (),
        is_only_writer: bool = False,
        trimmers: Mapping[str, Callable[[DeltaTable], None]] = MappingProxyType({}),
    ) -> None:
        self.app, self._fence = app, fence
        self.check_lease = fence.check_lease
        self._alone, self._is_only_writer, self._trimmers = alone, is_only_writer, trimmers
        self._open: dict[Path, TableLog] = {}
        self._seen: dict[Path, int] = {}

    def commit(self, path: Path, rows: Rows, batch_id: int, *, notes: Notes = NO_NOTES) -> int:
        """Appends *rows* to the table at *path* as batch *batch_id*.

        Rows in files, which lie in the folder *path*, become part of the table; a failed try leaves the files where
        they are. The commit also has *notes*.

        Returns:
            The clock (epoch ms) after the commit, or the time in the commit if that was made before.
        """

        def add(log: TableLog, noted: Notes) -> None:
            self._add(path, log, rows, batch_id, noted, takes_rows=log.takes_appends)

        return self._once(path, batch_id, add, removes=not isinstance(rows, Files), notes=notes)

    def _add(self, path: Path, log: TableLog, rows: Rows, batch_id: int, noted: Notes, *, takes_rows: bool) -> None:
        if isinstance(rows, Files):
            self._adopt(path, log, rows, batch_id, noted, takes_rows=takes_rows)
        else:
            self._append(path, log, rows, batch_id, noted, takes_rows=takes_rows)

    def _append(
        self, path: Path, log: TableLog, rows: pa.Table, batch_id: int, noted: Notes, *, takes_rows: bool
    ) -> None:
        if takes_rows:
            log.append([log.write(rows)] if rows.num_rows else [], batch_id, noted)
            return
        since = log.version
        # A user of the table may have added columns. They are null in our rows.
        others_columns = len(log.table.schema().fields) > rows.num_columns
        write_deltalake(
            log.table,
            rows,
            mode="append",
            schema_mode="merge" if others_columns else None,
            commit_properties=self._properties(path, batch_id, noted),
            post_commithook_properties=KEEPS_LOG,
            writer_properties=WRITTEN,
        )
        make_commits_durable(path, since=since)

    def commit_accepted(
        self, path: Path, batch_id: int, accept: Accept, *, notes: Notes = NO_NOTES, in_files: bool = False
    ) -> int:
        """Appends the rows that *accept* returns to the table at *path*.

        All else is as in `commit`. The rows are *in_files* or in memory.
        """

        def add(log: TableLog, noted: Notes) -> None:
            rows, more = accept(log.constraints)
            self._add(path, log, rows, batch_id, {**noted, **more}, takes_rows=log.takes_checked)

        return self._once(path, batch_id, add, removes=not in_files, notes=notes)

    def commit_notes(self, path: Path, batch_id: int, *, notes: Notes) -> int:
        """Commits *notes* without rows; returns the clock as `commit` does."""
        return self.commit(path, Files(()), batch_id, notes=notes)

    def _adopt(self, path: Path, log: TableLog, files: Files, batch_id: int, noted: Notes, *, takes_rows: bool) -> None:
        if takes_rows:
            log.append([add_file(path, file) for file in files.files], batch_id, noted)
            return
        since = log.version
        actions: list[AddAction | RemoveAction] = [_add_action(path, file) for file in files.files]
        log.table.create_write_transaction(
            actions,
            "append",
            log.table.schema(),
            commit_properties=self._properties(path, batch_id, noted),
            post_commithook_properties=KEEPS_LOG,
        )
        make_log_durable(path, since=since)
        log.table.update_incremental()

    def upsert(
        self,
        path: Path,
        rows: pa.Table | Files | None,
        batch_id: int,
        *,
        key: Sequence[str],
        shown: Callable[[int], Notes] = lambda shown_at_ms: NO_NOTES,
        closed: ClosedRows | None = None,
    ) -> int:
        """Replaces the rows at *path* that have the keys of *rows*.

        Args:
            path: a table with current rows.
            rows: new rows, of which the last per *key* counts; a row that is `deleted` removes its key. None if only
                windows are closed.
            batch_id: the batch of the commit.
            key: columns that identify a row.
            shown: returns notes of the commit, given the clock (epoch ms) after all files were written. Only one
                small file of the log follows then.
            closed: windows whose rows become final.

        Returns:
            The clock, as `commit` does.
        """
        new = None if rows is None else pl.concat(frames(rows)).unique(key, keep="last", maintain_order=True)

        def replace(log: TableLog, noted: Notes) -> None:
            table, since = log.table, log.version
            made, replaced = write_replacements(path, table, new, key=key, closed=closed)
            actions: list[AddAction | RemoveAction] = [_add_action(path, file) for file in made]
            actions += _remove_actions(table, replaced)
            shown_now = shown(self._fence.clock())
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                commit_properties=self._properties(path, batch_id, {**noted, **shown_now}),
                post_commithook_properties=KEEPS_LOG,
            )
            make_log_durable(path, since=since)
            table.update_incremental()

        return self._once(path, batch_id, replace, reads=True)

    def newest(self, path: Path) -> int | None:
        """Returns the newest committed batch at *path*, or None before the first."""
        return DeltaTable(str(path)).transaction_version(self._app_id(path))

    def noted(self, path: Path, batch_id: int, note: str) -> str | None:
        """Returns the *note* of the commit of *batch_id* at *path*, or None if it has none, or the commit is gone."""
        for commit in DeltaTable(str(path)).history(HISTORY):
            if commit.get("batch_id") == str(batch_id):
                found: str | None = commit.get(note)
                return found
        return None

    def is_behind(self, path: Path) -> bool:
        """Returns True if others have committed since the last look."""
        log = self._open.get(path)
        return log is not None and commit_file(path, log.version + 1).exists()

    def open_anew(self, path: Path, *, own_commits: int = 0) -> TableLog:
        """Opens the table at *path* as it is now.

        *own_commits* is the number of commits that this driver made elsewhere since the last look. Raises Contradiction
        if a commit of others stops the stream from continuing.
        """
        was = self._open.get(path)
        log = self._open[path] = TableLog(path, self._app_id(path))
        self._look_at_others(path, log, own_commits=own_commits)
        if was is None or was.is_grown:
            log.clean_up(self._trimmers.get(path.name, DeltaTable.cleanup_metadata))
        return log

    def _app_id(self, path: Path) -> str:
        return f"{self.app}/{path.name}"

    def _properties(self, path: Path, batch_id: int, noted: Notes) -> CommitProperties:
        """Returns the content of the commit of *batch_id* for delta-rs."""
        transaction = Transaction(self._app_id(path), batch_id)
        return CommitProperties(app_transactions=[transaction], custom_metadata={**noted})

    def _log(self, path: Path) -> TableLog:
        if path not in self._open or self._open[path].is_grown:
            self.open_anew(path)
        self._look_at_others(path, self._open[path], own_commits=0)
        return self._open[path]

    def _look_at_others(self, path: Path, log: TableLog, *, own_commits: int) -> None:
        """Checks the commits since the last look.

        Args:
            path: the table.
            log: its log.
            own_commits: how many of these commits are this driver's.

        Raises:
            Contradiction: others restored the table, or put rows into one that is this driver's alone.
        """
        since, self._seen[path] = self._seen.get(path, log.version), log.version
        if log.version - since <= own_commits:
            return
        table = DeltaTable(str(path))
        # A restore brings rows back, or takes away rows that this driver believes in.
        if any(commit.get("operation") == "RESTORE" for commit in table.history(table.version() - since)):
            msg = f"{path}: the table was restored while its stream was running; tidemark doctor lists the remedies"
            raise Contradiction(msg)
        if path.name in self._alone and (versions := rows_of_others(path, table, since=since)):
            msg = (
                f"{path}: another writer added rows with version {versions[0]}, but only the stream may write to this "
                "table; tidemark doctor lists the remedies"
            )
            raise Contradiction(msg)

    def _once(
        self,
        path: Path,
        batch_id: int,
        write: Callable[[TableLog, Notes], None],
        *,
        removes: bool = True,
        reads: bool = False,
        notes: Notes = NO_NOTES,
    ) -> int:
        """Commits a batch by *write*, unless it is in the log.

        Args:
            path: the table.
            batch_id: the batch.
            write: commits it to the opened table, with the given notes.
            removes: remove the files of a failed try; False if they are to be committed later.
            reads: True if the new files depend on the rows of the table.
            notes: notes of the commit.

        Returns:
            The clock, as `commit` does.
        """
        attempt = partial(self._attempt, path, batch_id, write, removes=removes, reads=reads, notes=notes)
        return self._fence.until_written(lambda: again_after_others(attempt))

    def _attempt(
        self,
        path: Path,
        batch_id: int,
        write: Callable[[TableLog, Notes], None],
        *,
        removes: bool,
        reads: bool,
        notes: Notes,
    ) -> int:
        log = self._log(path)
        if reads:
            # Before the lease is checked: delta-rs finds conflicts with all commits after this update.
            log.table.update_incremental()
            Requirements.of(path, log.table).refuse(Access.REPLACES)
            self._look_at_others(path, log, own_commits=0)  # this batch may replace rows that others put there
        if log.newest_batch >= batch_id:
            return self._committed_at_ms(DeltaTable(str(path)), batch_id)
        self.check_lease()
        version_before, began_s = log.version, time.time()
        try:
            write(log, {**WRITER, **notes, "batch_id": str(batch_id)})
        except Exception as error:
            # The commit may have succeeded in spite of the error, so the log is read again.
            del self._open[path]
            newest = self.newest(path)
            if newest is None or newest < batch_id:
                log.remove_uncommitted()
                # A table that takes appends may have rows of this batch under another transaction, and so may a file
                # into which another process compacts them. Its log knows the files that were written for this commit.
                if removes and self._is_only_writer and not log.takes_appends:
                    self._remove_unused(path, batch_id, since_s=began_s - SKEW_S)
                if isinstance(error, OSError | DeltaError) and DeltaTable(str(path)).version() > version_before:
                    # While this driver was stopped its files may have been compacted and, a week later, removed.
                    raise CommitFailedError(str(error)) from error
            elif isinstance(error, CommitFailedError):
                msg = f"{path}: another driver committed batch {batch_id}; stop one of the two"
                raise Contradiction(msg) from error
            raise
        committed_at_ms = self._fence.clock()
        self._look_at_others(path, log, own_commits=1)
        return committed_at_ms

    def _remove_unused(self, path: Path, batch_id: int, *, since_s: float) -> None:
        """Removes the files of a failed commit of *batch_id* at *path*.

        These are files with rows of the batch that are in no commit, and that were written at *since_s* (seconds since
        the epoch) or later. Raises the error of `check_lease`: a newer driver may be about to commit them.
        """
        used = file_names(DeltaTable(str(path)))
        unused = [file for file in path.glob("*.parquet") if file.name not in used]
        ours: list[Path] = []
        for file in unused:
            # The time of writing is asked first: it costs no look into the file.
            if _is_written_since(file, since_s) and _newest_batch_in(file) == batch_id:
                ours.append(file)
        # After the listing: a driver that takes the lease later has not written any of these files.
        self.check_lease()
        for file in ours:
            file.unlink()

    def _committed_at_ms(self, table: DeltaTable, batch_id: int) -> int:
        for commit in table.history(HISTORY):
            if commit.get("batch_id") == str(batch_id):
                return int(commit["timestamp"])
        return self._fence.clock()


def _is_written_since(file: Path, since_s: float) -> bool:
    try:
        return file.stat().st_mtime >= since_s
    except FileNotFoundError:  # VACUUM has just removed it
        return False


def _newest_batch_in(file: Path) -> int | None:
    """Returns the highest batch_id according to the footer of a Parquet *file*, or None if the footer has none."""
    try:
        with file.open("rb") as content:
            footer = pq.read_metadata(content)
    except (pa.ArrowInvalid, FileNotFoundError):  # another process is writing it, or VACUUM has just removed it
        return None
    # Parquet numbers its columns; a nested one has several numbers.
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    if "batch_id" not in paths:
        return None
    number = paths.index("batch_id")
    bounds = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
    return max((of_group.max for of_group in bounds if of_group), default=None)


def _remove_actions(table: DeltaTable, names: Container[str]) -> Iterator[RemoveAction]:
    """Yields the actions that remove the files with *names* from *table*."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).select("path", "size_bytes")
    for path, size in files.iter_rows():
        if Path(path).name in names:
            yield RemoveAction(path, True, wall_clock_ms(), size, {})  # noqa: FBT003


def _add_action(table: Path, file: File) -> AddAction:
    """Returns the action of `add_file` in the form of delta-rs."""
    added = add_file(table, file)["add"]
    path, written_at_ms = added["path"], added["modificationTime"]
    return AddAction(path, added["size"], added["partitionValues"], written_at_ms, True, added["stats"])  # noqa: FBT003
