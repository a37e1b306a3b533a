"""Reads the tables of reports and checks, of which no journal has rows."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.tables.catalog import Table
from tidemark.storage.delta.datasets import dataset_of, open_to_read


def report_rows(
    layout: Layout, topology: str, table: Table, *where: pl.Expr, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Returns the rows of *table* of *topology* for which *where* is true, with the columns that are declared.

    A table that was not written yet has no rows. Files that cannot have such rows are not opened. Only *columns* are
    read; None: all.
    """
    try:
        rows: ds.Dataset = dataset_of(open_to_read(layout.report_table(topology, table.name)))
    except TableNotFoundError:
        rows = ds.dataset(arrow_schema(table).empty_table())
    return _read(rows.replace_schema(arrow_schema(table)), where, columns)


def rows_in(stored: DeltaTable, *where: pl.Expr, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Does the same for a table as it was when it was opened, for a writer that replaces rows of that version."""
    return _read(dataset_of(stored), where, columns)


def _read(rows: ds.Dataset, where: Sequence[pl.Expr], columns: Sequence[str] | None) -> pl.DataFrame:
    return pl.scan_pyarrow_dataset(rows).filter(*where).select(columns or pl.all()).collect()


def lies_in(column: str, interval: Interval) -> pl.Expr:
    """Returns a condition: the timestamp *column* lies in *interval*."""
    return pl.col(column).is_between(utc(interval.start_ms), utc(interval.end_ms), closed="left")
