"""Rows that are in files already: too many to be written twice, or ever to be held by the driver."""

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

from tidemark.object_path import ObjectPath
from tidemark.place import location, new_file

AT_ONCE = 100_000
"""So many rows of a file are in memory at once."""
LONGEST = 64
"""So many characters of a text are in the bounds of its column."""
ALMOST_A_MILLISECOND = timedelta(microseconds=999)
_NAME = re.compile(r"batch-(\d{20})-")


@dataclass(frozen=True)
class File:
    """A Parquet file: where it is, how many rows it has, and what Delta's log says of its columns."""

    path: str
    rows: int
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Files:
    """Parquet files with rows, in order."""

    files: tuple[File, ...]

    @property
    def num_rows(self) -> int:
        """Of all of them."""
        return sum(file.rows for file in self.files)

    def stream(self) -> pa.RecordBatchReader:
        """Their rows, AT_ONCE at a time."""
        batches = (batch for file in self.files for batch in pq.ParquetFile(_readable(file.path)).iter_batches(AT_ONCE))
        return pa.RecordBatchReader.from_batches(pq.read_schema(_readable(self.files[0].path)), batches)


Rows: TypeAlias = pa.Table | Files
"""What a table gets: rows, or the files that have them."""


def frames(rows: Rows) -> Iterator[pl.DataFrame]:
    """*rows* in order: at once, or piece by piece where files have them."""
    yield from (pl.DataFrame(part) for part in ([rows] if isinstance(rows, pa.Table) else rows.stream()))


def lazy(rows: Rows) -> pl.LazyFrame:
    """*rows*, not read yet where files have them."""
    return (
        pl.DataFrame(rows).lazy() if isinstance(rows, pa.Table) else pl.scan_parquet([file.path for file in rows.files])
    )


def _readable(path: str) -> str | IO[bytes]:
    """What pyarrow reads the file at *path* from: its name where it is on this machine."""
    place = location(path)
    return place.open("rb") if isinstance(place, ObjectPath) else path


def files_of(folder: Path, batch_id: int) -> list[Path]:
    """The files that `write_file` has written in *folder* and its folders for *batch_id*."""
    return list(folder.rglob(f"{_begins(batch_id)}*.parquet"))


def batch_of(file: Path) -> int | None:
    """The batch for which `write_file` has written *file*; None where something else did."""
    named = _NAME.match(file.name)
    return int(named[1]) if named else None


def write_file(folder: Path, rows: pa.Table, *, batch_id: int | None = None) -> File:
    """A new file in *folder* with *rows*, on the disk when this returns; there is none when it raises.

    Its name begins with the batch, if one is named: until that is carried out the file may still be committed. No other
    attempt at the same work takes the rest of the name.
    """
    path = folder / f"{'current-' if batch_id is None else _begins(batch_id)}{uuid.uuid4().hex}.parquet"
    with new_file(path) as file:
        pq.write_table(rows, file, compression="zstd")
    return File(str(path), rows.num_rows, stats_of(pl.DataFrame(rows)))


def _begins(batch_id: int) -> str:
    return f"batch-{batch_id:020d}-"


def stats_of(rows: pl.DataFrame) -> dict[str, Any]:
    """What Delta's log says of a file with *rows*: bounds and nulls of every column that is neither nested nor binary.

    delta-rs takes a file of which it knows something of some columns for one without rows when it is asked for others:
    so of one that has a value JSON has no exact word for (NaN, infinity, decimals) nothing is said but how long it is.
    """
    columns = [column for column in rows.get_columns() if not column.dtype.is_nested() and column.dtype != pl.Binary()]
    bounds = {column.name: _bounds(column) for column in columns if column.null_count() < rows.height}
    known = {name: pair for name, pair in bounds.items() if pair is not None}
    if len(known) < len(bounds):
        return {"numRecords": rows.height}
    return {
        "numRecords": rows.height,
        "minValues": {name: low for name, (low, _) in known.items()},
        "maxValues": {name: high for name, (_, high) in known.items()},
        "nullCount": {column.name: column.null_count() for column in columns},
    }


def _bounds(column: pl.Series) -> tuple[Any, Any] | None:
    """What no value of *column*, which has one, is below and above, as JSON has it; None: it has no word for that."""
    low, high = column.min(), column.max()
    if column.dtype.is_float() and not column.drop_nulls().is_finite().all():
        return None
    if isinstance(low, str) and isinstance(high, str):
        return low[:LONGEST], high if len(high) <= LONGEST else high[:LONGEST] + chr(sys.maxunicode)
    if isinstance(low, datetime) and isinstance(high, datetime):
        return _text(low), _text(high + ALMOST_A_MILLISECOND)
    if isinstance(low, date) and isinstance(high, date):
        return low.isoformat(), high.isoformat()
    return None if isinstance(low, Decimal) else (low, high)


def _text(instant: datetime) -> str:
    """*instant* in whole milliseconds, which is what the log has; one without a zone stays without."""
    at = instant.astimezone(UTC) if instant.tzinfo else instant
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
