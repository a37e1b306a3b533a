"""Lists, replaces and removes the files of a Delta table.

How it works: a commit tries to become the version right after the one that was read. If another commit has become that
version, the table is read again, and the commit tried again. Besides the files a commit has the table's description.
delta-rs cannot commit both together, so this module writes the commit itself. New files, which take long, are written
before the commit. So the commit is quick, and the stream that writes the table is never kept from writing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.clock import wall_clock_ms
from tidemark.errors import TidemarkError
from tidemark.model.settings.retention import DAY_MS, WEEK_MS
from tidemark.selection import names_in
from tidemark.storage.delta.datasets import file_names
from tidemark.storage.delta.format import WRITER
from tidemark.storage.delta.log import Action, add_action, checkpoint_every, checkpoint_if_due, commit_file
from tidemark.storage.delta.requirements import APPEND_ONLY, Requirements
from tidemark.storage.delta.snapshots import Partition
from tidemark.storage.delta.tables import in_files
from tidemark.storage.files import stats_of, write_parquet
from tidemark.storage.location import put_once
from tidemark.storage.object_path import ObjectPath

TRIES = 100
"""Attempts at a commit, more than a stream makes commits meanwhile."""
AT_MOST = 1_000_000
"""Rows after which a new file is begun."""

PARTITION = "partition."
"""Prefix of delta-rs's columns with the partition of a file."""


class TableBusy(TidemarkError):
    """Raised when a table's files cannot be changed; nothing is changed.

    Others changed the files meanwhile, or committed before each attempt, or the table requires more of a commit than
    this module writes.
    """


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as the log has it.

    Attributes:
        relative_path: its path in the table, which starts with the folder of its partition in a partitioned table.
        bytes: its size.
        rows: the number of its rows; 0 if the log does not have it.
        written_at_ms: when its youngest row was written, epoch ms.
        newest_batch: the newest batch with a row in it; None if the log does not have it.
        partition: names and values of the partition columns.
    """

    relative_path: str
    bytes: int
    rows: int
    written_at_ms: int
    newest_batch: int | None
    partition: Partition = ()

    @property
    def name(self) -> str:
        """The name in its folder, which no other file has."""
        return Path(self.relative_path).name

    @property
    def folder(self) -> str:
        """The folder of its partition, relative to the table; `.` in a table without partitions."""
        return str(Path(self.relative_path).parent)


def data_files_of(path: Path) -> list[DataFile]:
    """Returns the files of the table at *path*, oldest first."""
    actions = pl.DataFrame(DeltaTable(str(path)).get_add_actions(flatten=True))
    # delta-rs leaves out bounds that no file of the log has.
    if "max.batch_id" not in actions.columns:
        actions = actions.with_columns(pl.lit(None, pl.Int64).alias("max.batch_id"))
    columns = [column for column in actions.columns if column.startswith(PARTITION)]
    chosen = actions.sort("modification_time", "max.batch_id").select(
        "path", "size_bytes", pl.col("num_records").fill_null(0), "modification_time", "max.batch_id", *columns
    )
    names = [column.removeprefix(PARTITION) for column in columns]
    files: list[DataFile] = []
    for relative_path, size, rows, written_at_ms, newest, *values in chosen.iter_rows():
        partition = tuple(zip(names, values, strict=True))
        files.append(DataFile(relative_path, size, rows, written_at_ms, newest, partition))
    return files


def rows_of_each(path: Path, files: Sequence[DataFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yields the rows of each of *files* of the table at *path*, in this order.

    Args:
        path: the table.
        files: the files.
        columns: the columns to read; None for all.

    Raises:
        TableBusy: a file is no longer part of the table.
    """
    position = {file.name: number for number, file in enumerate(files)}
    dataset = in_files(DeltaTable(str(path)), position.get)
    fragments = list(dataset.get_fragments())
    # Another compaction or a deletion may have committed since the caller listed the files.
    if len(fragments) < len(files):
        msg = f"{path}: another writer changed {len(files) - len(fragments)} of {len(files)} files meanwhile"
        raise TableBusy(msg)
    for fragment in fragments:
        whole = _in_memory(path, fragment) if isinstance(path, ObjectPath) else fragment
        yield whole.to_table(dataset.schema, None if columns is None else list(columns))


def _in_memory(path: Path, fragment: ds.ParquetFileFragment) -> ds.ParquetFileFragment:
    """Returns *fragment* of the table at *path*, read by one request."""
    # A reader of its parts makes three requests.
    content = pa.BufferReader((path / fragment.path).read_bytes())
    return fragment.format.make_fragment(content, partition_expression=fragment.partition_expression)


@dataclass(frozen=True)
class NewFile:
    """A file that is not committed yet, with its statistics (JSON)."""

    file: DataFile
    stats: str


def write_files(path: Path, parts: Iterable[pa.Table], *, prefix: str, like: DataFile) -> Iterator[NewFile]:
    """Writes the rows of *parts*, one after the other, to files of about AT_MOST rows.

    Args:
        path: the folder of the table.
        parts: the rows.
        prefix: beginning of the names of the files.
        like: a file of the same partition. The new files count as written when it was.

    Yields:
        The files.
    """
    waiting: list[pa.Table] = []
    row_count = 0
    for part in parts:
        waiting.append(part)
        row_count += part.num_rows
        if row_count >= AT_MOST:
            yield _write_file(path, pa.concat_tables(waiting), prefix, like)
            waiting, row_count = [], 0
    if row_count:
        yield _write_file(path, pa.concat_tables(waiting), prefix, like)


def _write_file(path: Path, rows: pa.Table, prefix: str, like: DataFile) -> NewFile:
    partition = dict(like.partition)
    # Delta keeps the values of these columns in the log, not in the files.
    rows = rows.drop_columns(list(partition))
    relative_path = str(Path(like.relative_path).with_name(f"{prefix}{uuid.uuid4().hex}.parquet"))
    size = write_parquet(path / relative_path, rows)
    made = replace(like, relative_path=relative_path, bytes=size, rows=rows.num_rows)
    return NewFile(made, json.dumps(stats_of(pl.DataFrame(rows))))


def replace_files(
    path: Path, old: Sequence[DataFile], new: Iterable[NewFile], *, check: Callable[[], None] = lambda: None
) -> None:
    """Replaces files of a table by files with the same rows.

    Readers of the table's changes see none. After the errors below nothing of *new* is left. After any other error of
    the commit the files stay, since the commit may be in the log.

    Args:
        path: the table.
        old: the files to replace.
        new: writes the new files one by one.
        check: is called just before the commit, and raises a TidemarkError if the commit must not be made.

    Raises:
        TableBusy: one of *old* is no longer part of the table.
        TidemarkError: *new* has another number of rows than *old*.
    """
    _refuse_what_is_not_known(path, DeltaTable(str(path)), old, data_change=False)
    old_counts = [file.rows for file in old]
    made: list[NewFile] = []  # collected one by one, so that an error removes those before it
    try:
        for part in new:
            made.append(part)
        were, are = sum(old_counts), sum(part.file.rows for part in made)
        # A file has 0 rows if the log does not have its number.
        if were != are and all(old_counts):
            msg = f"{path}: the row count is {are} in the new files instead of {were}; nothing was changed"
            raise TidemarkError(msg)
    except BaseException:
        _remove(path, made)
        raise
    try:
        _commit(path, old, made, data_change=False, check=check)
    except TidemarkError:  # after any other error the commit may be in the log, so the files stay
        with suppress(OSError, DeltaError):
            names = file_names(DeltaTable(str(path)))
            _remove(path, [part for part in made if part.file.name not in names])
        raise


def merge_files(
    path: Path, files: Sequence[DataFile], *, prefix: str = "", check: Callable[[], None] = lambda: None
) -> None:
    """Merges *files* of one partition into fewer files, whose names begin with *prefix*; see `replace_files`."""
    parts = write_files(path, rows_of_each(path, files), prefix=prefix, like=files[-1])
    replace_files(path, files, parts, check=check)


def mergeable_groups(files: Iterable[DataFile], *, weeks_until_ms: int = 0) -> Iterator[list[DataFile]]:
    """Yields groups of *files* that may be merged into one file; *files* are sorted by age.

    The files of a group are of one partition, and were written on one UTC day, or in one week that was over at
    *weeks_until_ms*.
    """

    def written_in(file: DataFile) -> tuple[int, int]:
        week = file.written_at_ms // WEEK_MS
        return (week, WEEK_MS) if (week + 1) * WEEK_MS <= weeks_until_ms else (file.written_at_ms // DAY_MS, DAY_MS)

    by_folder = sorted(files, key=lambda file: file.folder)
    # Days and weeks stay apart, so that retention can remove files as a whole, by their age.
    for _, group in groupby(by_folder, lambda file: (file.folder, written_in(file))):
        yield list(group)


def _remove(path: Path, made: Iterable[NewFile]) -> None:
    for part in made:
        (path / part.file.relative_path).unlink(missing_ok=True)


def remove_files(path: Path, old: Sequence[DataFile]) -> None:
    """Deletes the rows in *old* from the table at *path*.

    Raises TableBusy if one of these files is no longer part of the table.
    """
    _commit(path, old, [], data_change=True)


def _commit(
    path: Path,
    old: Sequence[DataFile],
    new: Sequence[NewFile],
    *,
    data_change: bool,
    check: Callable[[], None] = lambda: None,
) -> None:
    gone = {*names_in(old)}
    for _ in range(TRIES):
        table = DeltaTable(str(path))
        if missing := gone - file_names(table):
            msg = f"{path}: another writer changed {len(missing)} of {len(gone)} files meanwhile"
            raise TableBusy(msg)
        _refuse_what_is_not_known(path, table, old, data_change=data_change)
        # The commit repeats the description: delta-rs refuses a commit that was begun before a new description. Without
        # that, two OPTIMIZE of the same files would leave their rows in the table twice.
        actions: list[Action] = [_commit_info(data_change=data_change), _description(table)]
        actions += map(_move_action, new)
        actions += [_remove_action(file, data_change=data_change) for file in old]
        version = table.version() + 1
        content = "\n".join(map(json.dumps, actions)).encode()
        try:
            put_once(commit_file(path, version), content, check=check)
        except FileExistsError:  # another commit took the version
            continue
        checkpoint_if_due(path, version, every=checkpoint_every(table.metadata().configuration))
        return
    msg = f"{path}: another writer came first in all {TRIES} attempts to commit"
    raise TableBusy(msg)


def _refuse_what_is_not_known(path: Path, table: DeltaTable, files: Sequence[DataFile], *, data_change: bool) -> None:
    """Raises TableBusy if *table* requires other actions of a commit than this module writes, or another form."""
    # The actions of this module name a file as the log does, and know text in partitions alone.
    for file in files:
        is_text = all(isinstance(value, str | None) for _, value in file.partition)
        if not is_text or quote(file.relative_path, safe="/=") != file.relative_path:
            msg = f"{path}: files not changed: the log has another form for {file.relative_path} or its partition"
            raise TableBusy(msg)
    requirements = Requirements.of(path, table)
    if data_change and requirements.properties.get(APPEND_ONLY) == "true":
        msg = f"{path}: rows not deleted: the table has {APPEND_ONLY} set"
        raise TableBusy(msg)
    for refusal in requirements.refusals():
        msg = f"files not changed: {refusal}"
        raise TableBusy(msg)


def _commit_info(*, data_change: bool) -> dict[str, Any]:
    """Returns the action that describes the commit in the table's history."""
    return {
        "commitInfo": {
            "timestamp": wall_clock_ms(),
            "operation": "DELETE" if data_change else "OPTIMIZE",
            "operationParameters": {},
            "isBlindAppend": False,
            "engineInfo": "tidemark",
            # By this key a driver recognises the commit as one of Tidemark's, see `OWN` in `tables`.
            "maintenance": "true",
            **WRITER,
        }
    }


def _description(table: DeltaTable) -> dict[str, Any]:
    """Returns the action with the name, columns and properties of *table*."""
    metadata = table.metadata()
    fields = {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": metadata.configuration,
    }
    return {"metaData": {name: value for name, value in fields.items() if value is not None}}


def _move_action(part: NewFile) -> Action:
    """Returns the action that adds a file whose rows are moved there from removed files."""
    file = part.file
    return add_action(
        file.relative_path,
        file.bytes,
        file.written_at_ms,
        part.stats,
        partition=dict(file.partition),
        data_change=False,
    )


def _remove_action(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    return {
        "remove": {
            "path": file.relative_path,
            "deletionTimestamp": wall_clock_ms(),
            "dataChange": data_change,
            # It tells Delta's readers that partition and size are here, too.
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.bytes,
        }
    }
