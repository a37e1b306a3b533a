"""Rows that were too many for the driver: it names the files that have them, and never holds all of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

AT_ONCE = 100_000
"""So many rows of a file are in memory at once."""


@dataclass(frozen=True)
class Files:
    """Parquet files that hold rows which were too many for the driver, in order: where each is, and its rows."""

    paths: tuple[str, ...]
    rows: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Of all of them."""
        return sum(self.rows)

    def stream(self) -> pa.RecordBatchReader:
        """Their rows, AT_ONCE at a time."""
        batches = (batch for path in self.paths for batch in pq.ParquetFile(path).iter_batches(AT_ONCE))
        return pa.RecordBatchReader.from_batches(pq.read_schema(self.paths[0]), batches)


Rows: TypeAlias = pa.Table | Files
"""What a table gets: rows, or the files that have them."""


def frames(rows: Rows) -> Iterator[pl.DataFrame]:
    """*rows* in order: at once, or piece by piece where files have them."""
    yield from (pl.DataFrame(part) for part in ([rows] if isinstance(rows, pa.Table) else rows.stream()))


def lazy(rows: Rows) -> pl.LazyFrame:
    """*rows*, not read yet where files have them."""
    return pl.DataFrame(rows).lazy() if isinstance(rows, pa.Table) else pl.scan_parquet(list(rows.paths))


def write_file(folder: Path, name: str, rows: pa.Table) -> Path:
    """A new Parquet file in *folder* with *rows*, on the disk when this returns.

    Its name begins with *name*; no other attempt at the same work takes the rest of it.
    """
    path = folder / f"{name}-{uuid.uuid4().hex}.parquet"
    with path.open("xb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())
    return path
