"""Reads the files that Spark planned for a batch, each file completely or not at all.

Spark lists a folder and notes in its checkpoint which files belong to a batch. It does not read them: its readers run
inside tasks, where a damaged file ends the query or, with `ignoreCorruptFiles`, loses rows silently. Here the driver
notes how many bytes each file has, and whoever parses the batch reads that many (kernels/formats/data_files.py).
A file that cannot be read is one quarantined row with its name and the reason, and the other files are read.

The files that were read last are watched: bytes that are added to one of them are never read, because Spark plans a
file once, so each growth becomes a quarantined row, too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from tidemark.errors import InvalidArgument
from tidemark.kernels.formats.data_files import FileUnreadable, file_rows, lines_in
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.selection import names_in
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.storage.location import path_of_url
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.checkpoint import planned_files

UNREADABLE, ADDED = "unreadable_file", "added_to_file"
"""Reasons why a file is quarantined: it cannot be read, or bytes were added after it had been read."""
BYTES = "_bytes"
"""The column with the number of bytes that are read of a file."""
WRITTEN = pa.struct([("at_ms", pa.int64()), ("file", pa.string()), ("start", pa.int64())])
_ROWS = pa.schema(
    [
        ("source", pa.string()),
        ("partition", pa.int32()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("written", WRITTEN),
        (BYTES, pa.int64()),
    ]
)
_SET_ASIDE = frozenset({errno.ENOENT, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors that are about the file itself, and not about its disk: another try would fail in the same way."""


@dataclass(frozen=True)
class FilesOfBatch:
    """The files of a batch, and those that grew since they were read.

    Attributes:
        rows: a row for each file.
        sizes: by source and name of a file, the bytes that the batch reads, or the size to which the file grew.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)

    def added_to(self, rows: DataFrame) -> DataFrame:
        """Returns the *rows* of a batch with a row for each of these files, which `rows_of_files` replaces later."""
        if not self.rows:
            return rows
        file_rows = rows.sparkSession.createDataFrame(pa.Table.from_pylist(self.rows, schema=_ROWS))
        return rows.unionByName(file_rows, allowMissingColumns=True)


def folder_of(source: Source, warehouse: Path) -> Path:
    """Returns the folder whose files *source* reads.

    Raises:
        InvalidArgument: the folder is in an object store.
    """
    folder = Path(source.files or "")
    if not folder.is_absolute() and isinstance(warehouse, ObjectPath):
        msg = (
            f"operators.{source.name}.files is {source.files!r}, but files are read from a disk, and the warehouse "
            f"{warehouse} is in an object store; write the absolute path of a folder, such as /srv/{source.files}"
        )
        raise InvalidArgument(msg)
    # Spark reports the files of this path, in which it resolves `..` by name.
    return Path(os.path.normpath((folder if folder.is_absolute() else warehouse / folder).absolute()))


def files_of_batch(
    sub: SubTopology, warehouse: Path, checkpoint: Path, batch_id: int, progress: StreamProgress | None
) -> FilesOfBatch:
    """Returns a row for each file that Spark planned for *batch_id* of *sub*, and one for each that grew.

    `rows_of_files` replaces the first by the rows in the file; the others are quarantined.

    Args:
        sub: the sub-topology.
        warehouse: the warehouse, to which relative folders belong.
        checkpoint: Spark's checkpoint of the stream.
        batch_id: the batch.
        progress: has the size up to which each file was read. If it is None, no file that grew is looked for.
    """
    found = FilesOfBatch()
    for number, source in enumerate(sub.sources, start=1):  # the first source of every query are the ticks
        if not isinstance(source, Source) or source.files is None:
            continue
        sizes_read = progress.inputs.get(source.name, InputProgress()).files if progress else {}
        folder, sizes = folder_of(source, warehouse), found.sizes.setdefault(source.name, {})
        planned = [(path_of_url(url), at_ms) for url, at_ms in planned_files(checkpoint, batch_id, number)]
        for row in (*_planned_rows(source, folder, planned), *_grown_rows(source, folder, sizes_read)):
            found.rows.append(row)
            if row[BYTES] is not None:
                sizes[Path(row["written"]["file"]).name] = row[BYTES]
    return found


def _planned_rows(source: Source, folder: Path, planned: Iterable[tuple[Path, int]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each *planned* file in *folder*, which come with their modification times (epoch ms)."""
    subfolders: set[str] = set()
    for path, at_ms in planned:
        name, *below = path.relative_to(folder).parts
        if not below:
            try:
                yield _row(source, path, at_ms, size=path.stat().st_size)
            except OSError as error:
                yield _row(source, path, at_ms, detail=_explained(error))
        # Spark lists subfolders, too. A job that wrote "orders.csv" has made a folder of that name.
        elif "." in name and name not in subfolders:
            subfolders.add(name)
            yield _row(source, folder / name, at_ms, detail=f"is a folder; put its files into {folder} itself")


def _grown_rows(source: Source, folder: Path, sizes_read: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yields a row for each file that has more bytes than were read of it."""
    for name, size in sizes_read.items():
        try:
            now = (folder / name).stat()
        except OSError:
            continue  # a file that was read may go
        if now.st_size > size:
            detail = f"{_added(source, folder / name, size, now.st_size)} after it had been read, and are not read"
            row = _row(source, folder / name, now.st_mtime_ns // 1_000_000, size=now.st_size, detail=detail)
            yield {**row, "reason": ADDED}


def _added(source: Source, path: Path, size_read: int, size: int) -> str:
    """Returns what was added to the file at *path* behind *size_read*: lines of a text, or bytes of another file."""
    added = f"{size - size_read:,} bytes were added"
    if source.format is Format.PARQUET or path.suffix in {".gz", ".bz2", ".zst"}:
        return added
    with path.open("rb") as file:
        file.seek(size_read)
        lines = lines_in(file.read(size - size_read))
    return f"{lines:,} line{'s' * (lines != 1)} ({size - size_read:,} bytes) were added"


def _row(
    source: Source, path: Path, at_ms: int, *, size: int | None = None, detail: str | None = None
) -> dict[str, Any]:
    return {
        "source": source.name,
        "partition": 0,
        "reason": None if detail is None else UNREADABLE,
        "detail": detail,
        "written": {"at_ms": at_ms, "file": str(path), "start": None},
        BYTES: size,
    }


def _explained(error: OSError) -> str:
    """Returns why a file is quarantined; raises *error* again if the disk is the cause, and not the file."""
    if error.errno not in _SET_ASIDE:
        raise error
    if error.errno == errno.ENOENT:
        return "was gone when it was to be read"
    return f"cannot be opened: {error.strerror}"


def rows_of_files(raw: pl.DataFrame, operators: Iterable[Operator]) -> pl.DataFrame:
    """Returns the *raw* rows of a batch, in which the content of each file replaces the row for the file.

    Raises:
        OSError: a disk could not be read. Another try may succeed.
    """
    if BYTES not in raw.columns:
        return raw
    sources = {o.name: o for o in operators if isinstance(o, Source) and o.files is not None}
    is_file = pl.col("source").is_in(names_in(sources.values())) & pl.col("reason").is_null()
    frames = [raw.filter(~is_file)]
    for row in raw.filter(is_file).iter_rows(named=True):
        frames.append(_content(sources[row["source"]], row))
    # The columns of `raw` come first: a file of JSON does not have those of CSV, and an unreadable one has neither.
    return pl.concat(frames, how="diagonal_relaxed").drop(BYTES)


def _content(source: Source, row: dict[str, Any]) -> pl.DataFrame:
    """Returns the rows in the file of *row*, or one row that says why the file cannot be read."""
    path, at_ms = Path(row["written"]["file"]), row["written"]["at_ms"]
    try:
        rows = file_rows(_read(path, row[BYTES]), path.name, source)
    except FileUnreadable as error:
        rows = pl.DataFrame(
            {"row": None, "reason": UNREADABLE, "detail": str(error)}, schema_overrides={"row": pl.Int64}
        )
    written = pl.struct(at_ms=pl.lit(at_ms, pl.Int64), file=pl.lit(str(path)), start="row")
    # Files are one partition.
    return rows.with_columns(source=pl.lit(source.name), partition=pl.lit(0, pl.Int32), written=written).drop("row")


def _read(path: Path, size: int) -> bytes:
    """Returns the first *size* bytes of *path*, to which more may have been added; raises FileUnreadable."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        if not path.parent.is_dir():
            raise  # this host does not have the folder that the driver has
        raise FileUnreadable(_explained(error)) from error
