"""Reads and writes reports from the driver, through delta-rs (ring 2).

A small commit takes delta-rs some 10 ms, where Spark's first Delta write in a fresh JVM takes 3 to 5 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake

from tidemark import delta
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.spec.tables import Table


def replace_rows(rows: pl.DataFrame | list[dict[str, Any]], table: Table, path: Path, *, where: str) -> None:
    """Put *rows* in place of those for which the predicate *where* is true, in one commit.

    Doing it twice changes nothing. A row for which *where* is false is refused, and then nothing is written.
    """
    delta.create(path, arrow_schema(table), description=table.row)
    write_deltalake(str(path), rows_of(table, rows), mode="overwrite", predicate=where)


def stored_rows(table: Table, path: Path) -> pl.LazyFrame:
    """The rows of *table* as they are now; the table is created when there is none."""
    delta.create(path, arrow_schema(table), description=table.row)
    return delta.scan(path)
