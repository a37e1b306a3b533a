"""Rows that are in files already: too many to be written twice, or ever to be held by the driver."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

AT_ONCE = 100_000
"""So many rows of a file are in memory at once."""
LONGEST = 64
"""So many characters of a text are in the bounds of its column."""


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
        batches = (batch for file in self.files for batch in pq.ParquetFile(file.path).iter_batches(AT_ONCE))
        return pa.RecordBatchReader.from_batches(pq.read_schema(self.files[0].path), batches)


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


def write_file(folder: Path, rows: pa.Table, *, batch_id: int) -> File:
    """A new file in *folder* with *rows*, on the disk when this returns; there is none when it raises.

    Its name begins with the batch; no other attempt at the same work takes the rest of it.
    """
    path = folder / f"batch-{batch_id:020d}-{uuid.uuid4().hex}.parquet"
    try:
        with path.open("xb") as file:
            pq.write_table(rows, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return File(str(path), rows.num_rows, stats_of(pl.DataFrame(rows)))


def stats_of(rows: pl.DataFrame) -> dict[str, Any]:
    """What Delta's log says of a file with *rows*: bounds and nulls of every column that is neither nested nor binary.

    delta-rs takes a file that has bounds of some columns for one without rows when it is asked for others: so none may
    be missing. A column with numbers that JSON has no word for is given the widest bounds.
    """
    columns = [column for column in rows.get_columns() if not column.dtype.is_nested() and column.dtype != pl.Binary()]
    bounds = {column.name: _bounds(column) for column in columns if column.null_count() < rows.height}
    return {
        "numRecords": rows.height,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": {column.name: column.null_count() for column in columns},
    }


def _bounds(column: pl.Series) -> tuple[Any, Any]:
    """What no value of *column*, which has one, is below and above, as JSON has it."""
    low, high = column.min(), column.max()
    if column.dtype.is_float() and not column.drop_nulls().is_finite().all():
        return -sys.float_info.max, sys.float_info.max
    if isinstance(low, str) and isinstance(high, str):
        return low[:LONGEST], high if len(high) <= LONGEST else high[:LONGEST] + chr(sys.maxunicode)
    if isinstance(low, datetime) and isinstance(high, datetime):
        # The log has whole milliseconds; readers know that values may be up to one above a bound.
        return _text(low), _text(high)
    return low, high


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
