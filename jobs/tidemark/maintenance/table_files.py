"""A Delta table as files: which it has, and others with the same rows in their place, or none.

A commit of these takes the version that comes right after the one that was looked at, or fails. Left to itself delta-rs
would try the versions after that, too, and does not notice where two commits put the same rows into other files: the
table would have them twice. What takes long, writing the files, is done before. So the stream that writes the table is
hardly ever in the way, and never kept from writing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.clock import wall_clock_ms
from tidemark.delta import KEEPS_LOG, in_files
from tidemark.errors import Contradiction
from tidemark.files import stats_of
from tidemark.place import new_file

COMMITTED = CommitProperties(custom_metadata={"maintenance": "true"}, max_commit_retries=0)
"""A driver that was stopped just before a commit needs all that was committed since: else it takes a version again."""
TRIES = 100
"""How often a commit is tried; a stream makes less than that many while one is."""
AT_MOST = 1_000_000
"""Rows of a file that is written here."""

PARTITION = "partition."
"""So delta-rs begins the names of what it tells of a file's partition."""
Partition: TypeAlias = tuple[tuple[str, str | None], ...]
"""The columns by which a table is partitioned, and what all rows of a file have there; the file does not say it."""


class Busy(Exception):
    """Raised when others changed the files meanwhile, or never let a commit through; nothing is changed then."""


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
    """A file that no table names yet; its place is as in DataFile."""

    place: str
    rows: int
    action: AddAction


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
    stats = json.dumps(stats_of(pl.DataFrame(rows)))
    action = AddAction(place, size, partition, like.written_at_ms, data_change=False, stats=stats)
    return Written(place, rows.num_rows, action)


def replace_files(path: Path, old: Sequence[DataFile], new: Iterable[Written]) -> None:
    """Make what *new* writes take the place of *old*, which has the same rows: no reader of changes sees any.

    Raises Busy when one of *old* has gone meanwhile, and Contradiction when *new* has not as many rows; then nothing of
    *new* is left.
    """
    made: list[Written] = []  # one by one: an error leaves those before it, and they are removed
    try:
        for file in new:
            made.append(file)
        were, are = sum(file.rows for file in old), sum(file.rows for file in made)
        if were != are and all(file.rows for file in old):
            msg = f"{path}: rows are put into other files, each once, and {were} became {are}; nothing was changed"
            raise Contradiction(msg)
        _commit(path, old, [file.action for file in made], data_change=False)
    except BaseException:
        names = {Path(uri).name for uri in DeltaTable(str(path)).file_uris()}
        for file in made:
            if Path(file.place).name not in names:
                (path / file.place).unlink(missing_ok=True)
        raise


def remove_files(path: Path, old: Sequence[DataFile]) -> None:
    """Delete the rows in *old*; raises Busy when one of them has gone meanwhile."""
    _commit(path, old, [], data_change=True)


def _commit(path: Path, old: Sequence[DataFile], new: Sequence[AddAction], *, data_change: bool) -> None:
    gone = {file.name for file in old}
    for _ in range(TRIES):
        table = DeltaTable(str(path))
        if missing := gone - {Path(uri).name for uri in table.file_uris()}:
            msg = f"{path}: others have changed {len(missing)} of {len(gone)} files meanwhile"
            raise Busy(msg)
        removed = [
            RemoveAction(file.place, data_change, wall_clock_ms(), file.bytes, dict(file.partition)) for file in old
        ]
        try:
            table.create_write_transaction(
                [*new, *removed],
                "append",
                table.schema(),
                commit_properties=COMMITTED,
                post_commithook_properties=KEEPS_LOG,
            )
        except CommitFailedError:
            continue
        return
    msg = f"{path}: others committed {TRIES} times while this was tried"
    raise Busy(msg)
