"""A Delta table as files: which it has, and others with the same rows in their place, or none.

How it works: a commit of these takes the version that comes right after the one that was looked at, or fails, and is
tried again after another look. Besides the files it names the table's description, unchanged. delta-rs does not notice
where two commits put the same rows into other files, and would have them twice; but it refuses what it began before a
description came. So it is written by our own hand: delta-rs has no commit of both. What takes long, writing the files,
is done before: the stream that writes the table is hardly ever in the way, and never kept from writing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.clock import wall_clock_ms
from tidemark.delta import CHECKPOINT_EVERY, in_files
from tidemark.errors import TidemarkError
from tidemark.files import stats_of
from tidemark.place import new_file, put_once
from tidemark.spec.retention import DAY_MS

FEATURES = frozenset({"appendOnly", "invariants", "checkConstraints", "timestampNtz"})
"""What a table may ask of those who write it that asks nothing of the commits here."""
OLDEST_FEATURES = 3
"""The writer version up to which a table asks only for some of these, and does not name them."""
TRIES = 100
"""How often a commit is tried; a stream makes less than that many while one is."""
AT_MOST = 1_000_000
"""Rows of a file that is written here."""

PARTITION = "partition."
"""So delta-rs begins the names of what it tells of a file's partition."""
Partition: TypeAlias = tuple[tuple[str, str | None], ...]
"""The columns by which a table is partitioned, and what all rows of a file have there; the file does not say it."""


log = logging.getLogger(__name__)


class Busy(TidemarkError):
    """Raised when others changed the files meanwhile or never let a commit through, or the table is not for this.

    Nothing is changed then.
    """


@dataclass(frozen=True)
class DataFile:
    """A file of a table: when its youngest row was written (epoch ms), and its newest batch where that is known.

    Its place is as the log has it, and starts with the folder of its *partition* where the table is partitioned. One of
    whose rows the log does not tell how many they are has 0.
    """

    place: str
    bytes: int
    rows: int
    written_at_ms: int
    newest_batch: int | None
    partition: Partition = ()

    @property
    def name(self) -> str:
        """Its name in the folder that it is in: no other file of the table has it."""
        return Path(self.place).name

    @property
    def folder(self) -> str:
        """That of its partition, in the table's: `.` without one."""
        return str(Path(self.place).parent)


def files_of(path: Path) -> list[DataFile]:
    """The files of the table at *path*, in the order in which they were written."""
    actions = pl.DataFrame(DeltaTable(str(path)).get_add_actions(flatten=True))
    if "max.batch_id" not in actions.columns:
        actions = actions.with_columns(pl.lit(None, pl.Int64).alias("max.batch_id"))
    columns = [column for column in actions.columns if column.startswith(PARTITION)]
    chosen = actions.sort("modification_time", "max.batch_id").select(
        "path", "size_bytes", pl.col("num_records").fill_null(0), "modification_time", "max.batch_id", *columns
    )
    names = [column.removeprefix(PARTITION) for column in columns]
    return [
        DataFile(place, size, rows, written_at_ms, newest, tuple(zip(names, partition, strict=True)))
        for place, size, rows, written_at_ms, newest, *partition in chosen.iter_rows()
    ]


def rows_of_each(path: Path, files: Sequence[DataFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of each of *files* of the table at *path*, all *columns* unless named; Busy when the table lost one."""
    place = {file.name: number for number, file in enumerate(files)}
    dataset = in_files(DeltaTable(str(path)), place.get)
    fragments = list(dataset.get_fragments())
    if len(fragments) < len(files):
        msg = f"{path}: others have changed {len(files) - len(fragments)} of {len(files)} files meanwhile"
        raise Busy(msg)
    for fragment in fragments:
        yield fragment.to_table(dataset.schema, None if columns is None else list(columns))


@dataclass(frozen=True)
class Written:
    """A file that no table names yet, with what the log is to say of its rows (JSON)."""

    file: DataFile
    stats: str


def written(path: Path, parts: Iterable[pa.Table], *, prefix: str, like: DataFile) -> Iterator[Written]:
    """The rows of *parts* in files of some AT_MOST rows of the table at *path*.

    They are as old as *like*, and in its partition.
    """
    waiting: list[pa.Table] = []
    n = 0
    for part in parts:
        waiting.append(part)
        n += part.num_rows
        if n >= AT_MOST:
            yield _written(path, pa.concat_tables(waiting), prefix, like)
            waiting, n = [], 0
    if n:
        yield _written(path, pa.concat_tables(waiting), prefix, like)


def _written(path: Path, rows: pa.Table, prefix: str, like: DataFile) -> Written:
    partition = dict(like.partition)
    rows = rows.drop_columns(list(partition))
    place = str(Path(like.place).with_name(f"{prefix}{uuid.uuid4().hex}.parquet"))
    with new_file(path / place) as file:
        pq.write_table(rows, file, compression="zstd")
        size = file.tell()
    made = replace(like, place=place, bytes=size, rows=rows.num_rows)
    return Written(made, json.dumps(stats_of(pl.DataFrame(rows))))


def replace_files(
    path: Path, old: Sequence[DataFile], new: Iterable[Written], *, check: Callable[[], None] = lambda: None
) -> None:
    """Make what *new* writes take the place of *old*, which has the same rows: no reader of changes sees any.

    *check* is called just before, and raises a TidemarkError where it must not be. Raises Busy when one of *old* has
    gone meanwhile, and TidemarkError when *new* has not as many rows; then nothing of *new* is left.
    """
    _refuse_what_is_not_known(path, DeltaTable(str(path)), old, data_change=False)
    made: list[Written] = []  # one by one: an error leaves those before it, and they are removed
    try:
        for part in new:
            made.append(part)
        were, are = sum(file.rows for file in old), sum(part.file.rows for part in made)
        if were != are and all(file.rows for file in old):
            msg = f"{path}: rows are put into other files, each once, and {were} became {are}; nothing was changed"
            raise TidemarkError(msg)
    except BaseException:
        _remove(path, made)
        raise
    try:
        _commit(path, old, made, data_change=False, check=check)
    except TidemarkError:  # after any other error nobody knows whether the log has got the commit
        with suppress(OSError, DeltaError):
            names = {Path(uri).name for uri in DeltaTable(str(path)).file_uris()}
            _remove(path, [part for part in made if part.file.name not in names])
        raise


def put_together(
    path: Path, files: Sequence[DataFile], *, prefix: str = "", check: Callable[[], None] = lambda: None
) -> None:
    """Write the rows of *files*, of one partition, into fewer, whose names begin with *prefix*; as `replace_files`."""
    replace_files(path, files, written(path, rows_of_each(path, files), prefix=prefix, like=files[-1]), check=check)


def alike(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """*files*, which are in the order of their age, by partition and UTC day of their age: such may become one."""
    by_folder = sorted(files, key=lambda file: file.folder)
    for _, group in groupby(by_folder, lambda file: (file.folder, file.written_at_ms // DAY_MS)):
        yield list(group)


def _remove(path: Path, made: Iterable[Written]) -> None:
    for part in made:
        (path / part.file.place).unlink(missing_ok=True)


def remove_files(path: Path, old: Sequence[DataFile]) -> None:
    """Delete the rows in *old*; raises Busy when one of them has gone meanwhile."""
    _commit(path, old, [], data_change=True)


def _commit(
    path: Path,
    old: Sequence[DataFile],
    new: Sequence[Written],
    *,
    data_change: bool,
    check: Callable[[], None] = lambda: None,
) -> None:
    gone = {file.name for file in old}
    for _ in range(TRIES):
        table = DeltaTable(str(path))
        if missing := gone - {Path(uri).name for uri in table.file_uris()}:
            msg = f"{path}: others have changed {len(missing)} of {len(gone)} files meanwhile"
            raise Busy(msg)
        _refuse_what_is_not_known(path, table, old, data_change=data_change)
        actions = [_told(data_change=data_change), _description(table)]
        actions += [_adding(part) for part in new]
        actions += [_removing(file, data_change=data_change) for file in old]
        version = table.version() + 1
        content = "\n".join(map(json.dumps, actions)).encode()
        try:
            put_once(path / "_delta_log" / f"{version:020d}.json", content, check=check)
        except FileExistsError:
            continue
        if (version + 1) % CHECKPOINT_EVERY == 0:
            try:
                DeltaTable(str(path)).create_checkpoint()
            except (OSError, DeltaError) as error:
                log.warning("%s: without a checkpoint of version %d: %s", path, version, error)
        return
    msg = f"{path}: others committed {TRIES} times while this was tried"
    raise Busy(msg)


def _refuse_what_is_not_known(path: Path, table: DeltaTable, files: Sequence[DataFile], *, data_change: bool) -> None:
    """Raise Busy where a commit would have to say more, or say it otherwise, than those of here do."""
    for file in files:
        is_text = all(isinstance(value, str | None) for _, value in file.partition)
        if not is_text or quote(file.place, safe="/=") != file.place:
            msg = f"{path}: its files stay as they are: the log writes {file.place} and its partition otherwise"
            raise Busy(msg)
    if data_change and table.metadata().configuration.get("delta.appendOnly") == "true":
        msg = f"{path}: its rows stay: somebody said that it is only appended to"
        raise Busy(msg)
    asked = table.protocol()
    named = set(asked.writer_features or ([] if asked.min_writer_version <= OLDEST_FEATURES else ["more"]))
    if unknown := named - FEATURES:
        msg = f"{path}: its files stay as they are: somebody gave the table features: {', '.join(sorted(unknown))}"
        raise Busy(msg)


def _told(*, data_change: bool) -> dict[str, Any]:
    """What the history of the table says of the commit."""
    return {
        "commitInfo": {
            "timestamp": wall_clock_ms(),
            "operation": "DELETE" if data_change else "OPTIMIZE",
            "operationParameters": {},
            "isBlindAppend": False,
            "engineInfo": "tidemark",
            "maintenance": "true",
        }
    }


def _description(table: DeltaTable) -> dict[str, Any]:
    """What the log says of the *table*: name, columns, properties."""
    found = table.metadata()
    told = {
        "id": found.id,
        "name": found.name,
        "description": found.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": found.partition_columns,
        "createdTime": found.created_time,
        "configuration": found.configuration,
    }
    return {"metaData": {name: value for name, value in told.items() if value is not None}}


def _adding(part: Written) -> dict[str, Any]:
    return {
        "add": {
            "path": part.file.place,
            "partitionValues": dict(part.file.partition),
            "size": part.file.bytes,
            "modificationTime": part.file.written_at_ms,
            "dataChange": False,
            "stats": part.stats,
        }
    }


def _removing(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    return {
        "remove": {
            "path": file.place,
            "deletionTimestamp": wall_clock_ms(),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.bytes,
        }
    }
