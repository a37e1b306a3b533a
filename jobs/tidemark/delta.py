"""Writes a driver's tables through delta-rs; each commit carries its batch as Delta's transaction and happens once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

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
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from tidemark.clock import Clock, wall_clock_ms
from tidemark.current_rows import Closed, replacing
from tidemark.datasets import dataset_of
from tidemark.disk import UntilWritten, at_once
from tidemark.errors import Contradiction, InvalidArgument
from tidemark.files import File, Files, frames

CHECKPOINT_EVERY = 100
"""Commits: who opens a table reads its newest checkpoint, and fewer commits than these."""
SETTINGS = {
    "delta.enableDeletionVectors": "false",  # not every reader of the tables knows them
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
}
KEPT_LOG = "interval 1 day"
"""For so long who reads a table's commits, a stream behind a hop for one, may stand still."""
SHORT_LOG = "interval 10 minutes"
"""For tables that get a commit with every batch, which nobody reads commit by commit: delta-rs lists the whole log
before each commit, which takes 3 ms for 1,000 commits."""
KEEPS_LOG = PostCommitHookProperties(cleanup_expired_logs=False)
"""After a commit: a checkpoint when one is due. Looking for commits that are too old takes another 12 ms for 1,000 each
time, and is left to whoever opens the table after a checkpoint."""
_CHECK = "delta.constraints."
OWN_CHECK = "tidemark_"
"""What the name of each check begins with that is Tidemark's, not one of somebody who uses the tables."""
HISTORY = 100
"""Commits of a table, newest first, among which what others did is looked for."""
SKEW_S = 60
"""By so much the clock of files may be behind that of this process."""
TRIES = 10
"""How often something is done again because somebody else's commit came in between."""
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
"""The operations of a Delta log by which rows come into a table."""
OWN = frozenset({"batch_id", "maintenance"})
"""One of these is told by every commit by which Tidemark puts rows into a table, or into other files of it."""
NEEDED, SUPERSEDED = "needed-", "superseded-"
"""So begin the names of files that `maintenance/` made of rows that a driver needs for its memory, or does not."""

BIGINT = PrimitiveType("long")

WRITTEN = WriterProperties(compression="ZSTD")

T = TypeVar("T")
Told = Mapping[str, str]
"""What a commit says beside what is usual, by name."""
NOTHING: Told = MappingProxyType({})


def create(
    path: Path,
    schema: pa.Schema,
    *,
    description: str | None = None,
    log: str = KEPT_LOG,
    checks: Mapping[str, str] = MappingProxyType({}),
    partitioned_by: Sequence[str] = (),
) -> None:
    """An empty Delta table at *path* with *schema* and its comments, for rows that fulfil all *checks* (SQL by name).

    One that is there already, an older version's for one, keeps its rows and gets the columns that it lacks, which are
    null in them, the comments, and the checks in place of the older version's.
    Of its *log* the commits are kept for that long, and those since the newest checkpoint.
    Raises DeltaError where a row does not fulfil the checks.
    """

    def up_to_date() -> None:
        table = DeltaTable.create(
            str(path),
            schema=schema,
            mode="ignore",
            partition_by=list(partitioned_by) or None,
            description=description,
            configuration={**SETTINGS, "delta.logRetentionDuration": log},
        )
        known = {field.name: field.metadata for field in table.schema().fields}
        wanted = Schema.from_arrow(schema).fields
        if lacking := [field for field in wanted if field.name not in known]:
            table.alter.add_columns(lacking)
        for field in wanted:
            if field.metadata and known.get(field.name, field.metadata) != field.metadata:  # delta-rs takes no other
                table.alter.set_column_metadata(field.name, field.metadata)
        checked = {name.removeprefix(_CHECK) for name in table.metadata().configuration if name.startswith(_CHECK)}
        for name in sorted(name for name in checked - checks.keys() if name.startswith(OWN_CHECK)):
            table.alter.drop_constraint(name)
        if missing := {name: checks[name] for name in checks.keys() - checked}:
            table.alter.add_constraint(missing)

    again_after_others(up_to_date)


@cache
def bigint_columns(path: Path) -> frozenset[str]:
    """The columns of the table at *path* that are bigint; a column keeps its type."""
    return frozenset(field.name for field in DeltaTable(str(path)).schema().fields if field.type == BIGINT)


def scan(path: Path) -> pl.LazyFrame:
    """The rows of the Delta table at *path*, not read yet; raises when there is no table."""
    # Not pl.scan_delta, which takes a folder with a blank in its name for one with %20.
    return pl.scan_pyarrow_dataset(dataset_of(DeltaTable(str(path))))


Keep = Callable[[pl.DataFrame], pl.DataFrame]
"""Leaves out rows."""


def read_before(path: Path, batch_id: int, columns: list[str], *, keep: Keep = lambda rows: rows) -> pl.DataFrame:
    """The *columns* of the rows at *path* of batches before *batch_id*, oldest batch first.

    Rows that are known to be superseded are left out. Only those that *keep* leaves are in memory together.
    """
    dataset = in_files(DeltaTable(str(path)), lambda name: None if name.startswith(SUPERSEDED) else 0)
    names = ["batch_id", *columns]
    none = pl.DataFrame(pa.schema([dataset.schema.field(name) for name in names]).empty_table())
    parts = (pl.DataFrame(batch) for batch in dataset.to_batches(columns=names, filter=pc.field("batch_id") < batch_id))
    return pl.concat([none, *(keep(part) for part in parts)]).sort("batch_id", maintain_order=True)


def in_files(table: DeltaTable, place: Callable[[str], int | None]) -> ds.Dataset:
    """The rows of *table* that lie in files to whose names *place* gives a number, in the order of these."""
    whole = dataset_of(table)
    placed = [(place(Path(fragment.path).name), fragment) for fragment in whole.get_fragments()]
    wanted = sorted(((number, fragment) for number, fragment in placed if number is not None), key=lambda pair: pair[0])
    return ds.FileSystemDataset([fragment for _, fragment in wanted], whole.schema, whole.format, whole.filesystem)


class Reference:
    """Reads Delta tables that others write, whole; places are relative to *warehouse*.

    Each is read in its newest version, or the one that *versions* has for its place.
    """

    def __init__(self, warehouse: Path, versions: Mapping[str, int] = MappingProxyType({})) -> None:
        self._warehouse, self.versions = warehouse, versions
        self._read: dict[str, tuple[int, pl.DataFrame]] = {}

    def __call__(self, place: str) -> pl.DataFrame:
        """The rows at *place*; raises InvalidArgument when there is no table."""
        path = self._warehouse / place
        if not DeltaTable.is_deltatable(str(path)):
            msg = f"{path}: there is no Delta table; create it before the stream starts"
            raise InvalidArgument(msg)
        version = self.versions.get(place, self.version(place))
        if place not in self._read or self._read[place][0] != version:
            rows = dataset_of(DeltaTable(str(path), version=version))
            self._read[place] = (version, pl.scan_pyarrow_dataset(rows).collect())
        return self._read[place][1]

    def version(self, place: str) -> int:
        """The newest version of the table at *place*."""
        return int(DeltaTable(str(self._warehouse / place)).version())


def again_after_others(commit: Callable[[], T]) -> T:
    """What *commit* returns; it is called again where somebody else's commit came between its reading and its writing.

    Raises CommitFailedError when that has happened TRIES times.
    """
    for _ in range(TRIES - 1):
        with suppress(CommitFailedError):
            return commit()
    return commit()


def append(path: Path, rows: pa.Table) -> None:
    """Append *rows* to the table at *path*, again where somebody else's commit came in between."""
    again_after_others(partial(write_deltalake, path, rows, mode="append"))


def rows_of_others(path: Path, table: DeltaTable, *, since: int = -1) -> list[int]:
    """The versions of *table* at *path*, after *since*, by which others than its driver put in rows that are there.

    Looked for among the last HISTORY, newest first; rows that OPTIMIZE, say, has written anew are not followed.
    """
    newest = table.history(min(HISTORY, table.version() - since))
    versions = [c["version"] for c in newest if c.get("operation") in PUTS_ROWS and not OWN & c.keys()]
    there = {Path(file).name for file in table.file_uris()} if versions else set()
    return [version for version in versions if there & _added(path / "_delta_log" / f"{version:020d}.json")]


def _added(commit: Path) -> set[str]:
    """The data files that *commit* brought in; none when the log has forgotten it."""
    if not commit.exists():
        return set()
    actions = (json.loads(line) for line in commit.read_text().splitlines())
    return {Path(action["add"]["path"]).name for action in actions if "add" in action}


class Committer:
    """Appends to the tables of one driver.

    Purpose: each batch of each table is committed once, however often it is tried.
    How it works: the commit carries the transaction (*app*/<table>, batch id) which the log keeps; a batch that the log
    knows is not written again, and of two commits at once with one transaction the log takes one.
    A commit that another one got in the way of (OPTIMIZE, DELETE, a new column) is made anew on top of that.
    *check_lease* is called before each commit, and raises when this driver may not write any more; *until_written*
    tries again while the disk is full. Into the tables named *alone* nobody else may put rows. *is_only_writer* says
    that no other thread or process has rows with these batch ids: then what a commit that failed left is removed.
    """

    def __init__(
        self,
        app: str,
        clock: Clock,
        *,
        check_lease: Callable[[], None] = lambda: None,
        until_written: UntilWritten = at_once,
        alone: Container[str] = (),
        is_only_writer: bool = False,
    ) -> None:
        self.app, self._clock = app, clock
        self.check_lease, self._until_written = check_lease, until_written
        self._alone, self._is_only_writer = alone, is_only_writer
        self._open: dict[Path, DeltaTable] = {}
        self._opened_at: dict[Path, int] = {}
        self._seen: dict[Path, int] = {}

    def commit(self, path: Path, rows: pa.Table, batch_id: int, *, told: Told = NOTHING) -> int:
        """Append *rows* at *path*; the clock after that (epoch ms), or that of the commit if it was made before.

        The commit has what is *told* beside what it says of itself.
        """

        def append(table: DeltaTable, properties: CommitProperties) -> None:
            others_columns = len(table.schema().fields) > rows.num_columns  # that somebody added: null in our rows
            write_deltalake(
                table,
                rows,
                mode="append",
                schema_mode="merge" if others_columns else None,
                commit_properties=properties,
                post_commithook_properties=KEEPS_LOG,
                writer_properties=WRITTEN,
            )

        return self._once(path, batch_id, append, told=told)

    def tell(self, path: Path, batch_id: int, *, told: Told) -> int:
        """Commit *told* without rows to the table at *path*; returns the clock as `commit` does."""
        return self.adopt(path, Files(()), batch_id, told=told)

    def adopt(self, path: Path, files: Files, batch_id: int, *, told: Told = NOTHING) -> int:
        """Make *files*, which lie in the folder *path*, part of the table there; the rest as in `commit`."""

        def add(table: DeltaTable, properties: CommitProperties) -> None:
            actions: list[AddAction | RemoveAction] = [_adding(path, file) for file in files.files]
            table.create_write_transaction(
                actions, "append", table.schema(), commit_properties=properties, post_commithook_properties=KEEPS_LOG
            )
            table.update_incremental()

        return self._once(path, batch_id, add, removes=False, told=told)

    def upsert(
        self,
        path: Path,
        rows: pa.Table | Files | None,
        batch_id: int,
        *,
        key: Sequence[str],
        told: Told = NOTHING,
        closed: Closed | None = None,
    ) -> int:
        """Make *rows*, one per *key*, the current ones at *path*, less those `deleted`; the rest as in `commit`.

        The rows of windows that are *closed* become final.
        """
        new = None if rows is None else pl.concat(frames(rows)).unique(key, keep="last", maintain_order=True)

        def replace(table: DeltaTable, properties: CommitProperties) -> None:
            made, replaced = replacing(path, table, new, key=key, closed=closed)
            actions: list[AddAction | RemoveAction] = [_adding(path, file) for file in made]
            actions += _removing(table, replaced)
            table.create_write_transaction(
                actions, "append", table.schema(), commit_properties=properties, post_commithook_properties=KEEPS_LOG
            )
            table.update_incremental()

        return self._once(path, batch_id, replace, reads=True, told=told)

    def newest(self, path: Path) -> int | None:
        """The newest batch that was committed at *path*; None before the first."""
        table = DeltaTable(str(path))
        return table.transaction_version(f"{self.app}/{path.name}")

    def open_anew(self, path: Path, *, own: int = 0) -> DeltaTable:
        """The table at *path* as it is now, with so many commits of this driver's *own* that were not made here.

        Raises Contradiction when somebody did to it what its stream cannot go on with.
        """
        table = self._open[path] = DeltaTable(str(path))
        self._look_at_others(path, table, own=own)
        if path not in self._opened_at or self._has_newer_checkpoint(path):
            table.cleanup_metadata()
        self._opened_at[path] = table.version()
        return table

    def _table(self, path: Path) -> DeltaTable:
        if path not in self._open or self._has_newer_checkpoint(path):
            self.open_anew(path)
        self._look_at_others(path, self._open[path], own=0)
        return self._open[path]

    def _has_newer_checkpoint(self, path: Path) -> bool:
        """Whether a checkpoint was due at *path* since it was opened.

        What an open table costs delta-rs grows with every commit, until it is opened anew.
        """
        was, now = self._opened_at[path], self._open[path].version()
        return (was + 1) // CHECKPOINT_EVERY < (now + 1) // CHECKPOINT_EVERY

    def _look_at_others(self, path: Path, table: DeltaTable, *, own: int) -> None:
        """Look at the commits since the last look, so many of which are this driver's *own*.

        Raises Contradiction when somebody restored the table, or put rows into one that nobody else may.
        """
        since, self._seen[path] = self._seen.get(path, table.version()), table.version()
        if table.version() - since <= own:
            return
        if any(commit.get("operation") == "RESTORE" for commit in table.history(table.version() - since)):
            msg = f"{path}: a table is restored while its stream stands still, and this one was just now"
            raise Contradiction(msg)
        if path.name in self._alone and (found := rows_of_others(path, table, since=since)):
            msg = (
                f"{path}: only its stream puts rows into this table, and somebody else did with version {found[0]}; "
                "tidemark doctor names the ways on"
            )
            raise Contradiction(msg)

    def _once(
        self,
        path: Path,
        batch_id: int,
        write: Callable[[DeltaTable, CommitProperties], None],
        *,
        removes: bool = True,
        reads: bool = False,
        told: Told = NOTHING,
    ) -> int:
        """Have *write* commit the batch at *path*, unless the log knows it; the clock as in `commit`.

        What a try that failed has left is removed, unless *removes* is false: the files are to be committed later.
        *reads*: what is written depends on the rows that are there.
        """
        attempt = partial(self._attempt, path, batch_id, write, removes=removes, reads=reads, told=told)
        return self._until_written(lambda: again_after_others(attempt))

    def _attempt(
        self,
        path: Path,
        batch_id: int,
        write: Callable[[DeltaTable, CommitProperties], None],
        *,
        removes: bool,
        reads: bool,
        told: Told,
    ) -> int:
        app_id = f"{self.app}/{path.name}"
        table = self._table(path)
        if reads:  # before it is known who may write: of what comes later delta-rs finds the conflict
            table.update_incremental()
            self._look_at_others(path, table, own=0)  # what they put there may be replaced by this batch
        if (done := table.transaction_version(app_id)) is not None and done >= batch_id:
            return self._committed_at_ms(table, batch_id)
        properties = CommitProperties(
            app_transactions=[Transaction(app_id, batch_id)], custom_metadata={**told, "batch_id": str(batch_id)}
        )
        self.check_lease()
        seen, began_s = table.version(), time.time()
        try:
            write(table, properties)
        except Exception as error:
            del self._open[path]  # it may have been committed all the same: the log is to be read again
            newest = self.newest(path)
            if newest is None or newest < batch_id:
                if removes and self._is_only_writer:
                    self._remove_unused(path, batch_id, since_s=began_s - SKEW_S)
                if isinstance(error, OSError | DeltaError) and DeltaTable(str(path)).version() > seen:
                    # While this driver was stopped its files may have been compacted and, a week later, removed.
                    raise CommitFailedError(str(error)) from error
            elif isinstance(error, CommitFailedError):
                msg = f"{path}: another driver committed batch {batch_id}; stop one of the two"
                raise Contradiction(msg) from error
            raise
        committed_at_ms = self._clock()
        self._look_at_others(path, table, own=1)
        return committed_at_ms

    def _remove_unused(self, path: Path, batch_id: int, *, since_s: float) -> None:
        """Remove the files at *path* with rows of *batch_id*, which is not committed, written at *since_s* or later.

        Raises what *check_lease* does: then they may be a newer driver's, which is about to commit them.
        """
        used = {Path(file).name for file in DeltaTable(str(path)).file_uris()}
        unused = [file for file in path.glob("*.parquet") if file.name not in used]
        left = [file for file in unused if _is_written_since(file, since_s) and _newest_batch_in(file) == batch_id]
        self.check_lease()  # after the files were seen: a driver that comes later has not written any of them
        for file in left:
            file.unlink()

    def _committed_at_ms(self, table: DeltaTable, batch_id: int) -> int:
        for commit in table.history(HISTORY):
            if commit.get("batch_id") == str(batch_id):
                return int(commit["timestamp"])
        return self._clock()


def _is_written_since(file: Path, since_s: float) -> bool:
    try:
        return file.stat().st_mtime >= since_s
    except FileNotFoundError:  # VACUUM has just removed it
        return False


def _newest_batch_in(file: Path) -> int | None:
    """The highest batch_id that the footer of a Parquet *file* knows of; None without one."""
    try:
        with file.open("rb") as content:
            found = pq.read_metadata(content)
    except (pa.ArrowInvalid, FileNotFoundError):  # another one is writing it, or VACUUM has just removed it
        return None
    places = [place for place in range(found.num_columns) if found.schema.column(place).path == "batch_id"]
    groups = [found.row_group(group).column(place) for place in places for group in range(found.num_row_groups)]
    return max((group.statistics.max for group in groups if group.statistics), default=None)


def _removing(table: DeltaTable, names: Container[str]) -> Iterator[RemoveAction]:
    """What the log says of the files of *table* with these *names* that are no longer part of it."""
    files = pl.DataFrame(table.get_add_actions(flatten=True)).select("path", "size_bytes")
    for place, size in files.iter_rows():
        if Path(place).name in names:
            yield RemoveAction(place, True, wall_clock_ms(), size, {})  # noqa: FBT003


def _adding(table: Path, file: File) -> AddAction:
    """What the log says of a new *file* in the folder *table*, wherever that was when it was written."""
    name = Path(file.path).name
    seen = (table / name).stat()
    return AddAction(name, seen.st_size, {}, int(seen.st_mtime * 1_000), True, json.dumps(file.stats))  # noqa: FBT003
