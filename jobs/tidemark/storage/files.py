"""Writes Parquet files, and passes rows on as such files if they are too many for memory, or to be written twice."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.storage.location import location, new_file
from tidemark.storage.object_path import ObjectPath

AT_ONCE = 100_000
"""Rows of a file that are in memory at once."""
COMPRESSED_FROM = 64 * 1_024
"""Bytes of a table in memory from which it is compressed.

A smaller table is mostly descriptions of its columns, and compression would take longer than all else.
"""
SAMPLED = 1_000
"""So many rows are looked at to find out whether values of a column repeat."""
LONGEST = 64
"""Most characters of a text that the bounds of its column have."""
ALMOST_A_MILLISECOND = timedelta(microseconds=999)
MERGED = "current-"
"""Prefix of the names of files into which a driver merged rows by their keys."""
_NAME = re.compile(r"batch-(\d{20})-")


@dataclass(frozen=True)
class File:
    """A Parquet file, its rows, and the statistics for Delta's log."""

    path: str
    rows: int
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Files:
    """Parquet files with rows, in order."""

    files: tuple[File, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.rows for file in self.files)

    def stream(self) -> pa.RecordBatchReader:
        """Returns a reader of their rows, AT_ONCE at a time."""
        return pa.RecordBatchReader.from_batches(pq.read_schema(_readable(self.files[0].path)), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            yield from pq.ParquetFile(_readable(file.path)).iter_batches(AT_ONCE)


Rows: TypeAlias = pa.Table | Files
"""New rows of a table: in memory, or in files."""


def frames(rows: Rows) -> Iterator[pl.DataFrame]:
    """Yields *rows* in order: all at once if they are in memory, or piece by piece from files."""
    parts = [rows] if isinstance(rows, pa.Table) else rows.stream()
    yield from (pl.DataFrame(part) for part in parts)


def lazy(rows: Rows) -> pl.LazyFrame:
    """Returns *rows* as a lazy frame, which has read no files yet."""
    return (
        pl.DataFrame(rows).lazy() if isinstance(rows, pa.Table) else pl.scan_parquet([file.path for file in rows.files])
    )


def _readable(path: str) -> str | IO[bytes]:
    """Returns what pyarrow reads the file at *path* from: the path, or in an object store the opened object."""
    at = location(path)
    return at.open("rb") if isinstance(at, ObjectPath) else path


def files_written_for(folder: Path, batch_id: int) -> list[Path]:
    """Returns the files in *folder*, and in all folders below it, that `write_file` has written for *batch_id*."""
    return list(folder.rglob(f"{_begins(batch_id)}*.parquet"))


def batch_of(file: Path) -> int | None:
    """Returns the batch for which `write_file` has written *file*, or None if something else has written it."""
    match = _NAME.match(file.name)
    return int(match[1]) if match else None


def write_file(folder: Path, rows: pa.Table, *, batch_id: int | None = None) -> File:
    """Writes *rows* to a new file in *folder*.

    The file is durable when this returns, and there is none if it raises.
    """
    # Until its batch is carried out the file may still be committed, so maintenance finds that batch in its name. The
    # rest of the name is random, so no other attempt at the same work has the same.
    path = folder / f"{MERGED if batch_id is None else _begins(batch_id)}{uuid.uuid4().hex}.parquet"
    write_parquet(path, rows)
    return File(str(path), rows.num_rows, stats_of(pl.DataFrame(rows)))


def write_parquet(path: Path, rows: pa.Table) -> int:
    """Writes *rows* to a new file; returns its bytes.

    The file at *path* is durable when this returns, and there is none if it raises.
    """
    with new_file(path) as file:
        compression = "zstd" if rows.nbytes >= COMPRESSED_FROM else "none"
        pq.write_table(rows, file, compression=compression, use_dictionary=_with_dictionary(rows))
        return file.tell()


def _with_dictionary(rows: pa.Table) -> list[str] | bool:
    """Returns the columns of *rows* that are written with a dictionary, or True if all are."""
    # A dictionary of values that hardly repeat makes a file larger, and takes a quarter of the time to write it. Nested
    # columns have other names in a file.
    if rows.num_rows <= SAMPLED or any(pa.types.is_nested(kind) for kind in rows.schema.types):
        return True
    sample = pl.DataFrame(rows.slice(0, SAMPLED))
    return [column.name for column in sample.get_columns() if column.n_unique() <= SAMPLED // 2]


def _begins(batch_id: int) -> str:
    return f"batch-{batch_id:020d}-"


def stats_of(rows: pl.DataFrame) -> dict[str, Any]:
    """Returns the statistics of a file with *rows* for Delta's log.

    They have the number of rows, and bounds and nulls of every column that is neither nested nor binary. If a bound
    cannot be represented (NaN, infinity, decimals, the last millisecond of the year 9999), they have the number of rows
    alone.
    """
    # delta-rs treats a file with bounds of some columns as empty when a query asks for other columns. So a file has
    # the bounds of all columns or of none.
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in rows.get_columns():
        if column.dtype.is_nested() or column.dtype == pl.Binary():
            continue
        nulls[column.name] = column.null_count()
        if nulls[column.name] == rows.height:
            # A column of nulls has no bounds, and Delta's readers know it by its count.
            continue
        bounds = _bounds(column)
        if bounds is None:
            return {"numRecords": rows.height}
        lowest[column.name], highest[column.name] = bounds
    return {"numRecords": rows.height, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _bounds(column: pl.Series) -> tuple[Any, Any] | None:
    """Returns the lowest and the highest value of a non-empty *column* for JSON.

    Texts and instants are rounded outwards. None if JSON, or the years 1 to 9999, cannot represent the values.
    """
    try:
        return _outward(column)
    except OverflowError:  # an instant is, or would be rounded to, one after the year 9999
        return None


def _outward(column: pl.Series) -> tuple[Any, Any] | None:
    low, high = column.min(), column.max()
    # JSON has no NaN, and polars' min and max leave NaN out.
    if column.dtype.is_float() and not column.drop_nulls().is_finite().all():
        return None
    if isinstance(low, str) and isinstance(high, str):
        # A cut text sorts before the whole one, so the upper bound needs a character that sorts after all.
        return low[:LONGEST], high if len(high) <= LONGEST else high[:LONGEST] + chr(sys.maxunicode)
    if isinstance(low, datetime) and isinstance(high, datetime):
        # Bounds of timestamps have milliseconds in Delta's log; the values have microseconds.
        return _text(low), _text(high + ALMOST_A_MILLISECOND)
    if isinstance(low, date) and isinstance(high, date):
        return low.isoformat(), high.isoformat()
    return None if isinstance(low, Decimal) else (low, high)


def _text(instant: datetime) -> str:
    """Formats *instant* in whole milliseconds, as Delta's log has it.

    An instant without a time zone stays without one.
    """
    at = instant.astimezone(UTC) if instant.tzinfo else instant
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
