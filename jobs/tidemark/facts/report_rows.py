"""Reads the tables that reports and checks write. They write them directly, so no journal has rows of them."""

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
    """Returns the rows of a table of reports in their declared schema; none if the table was not written yet.

    Args:
        layout: where the tables of the topology are.
        topology: the name of the topology.
        table: the table.
        where: conditions that the rows fulfil. Files that cannot have such rows are not opened.
        columns: the columns to read; None reads all.
    """
    try:
        rows: ds.Dataset = dataset_of(open_to_read(layout.report_table(topology, table.name)))
    except TableNotFoundError:
        rows = ds.dataset(arrow_schema(table).empty_table())
    return _read(rows.replace_schema(arrow_schema(table)), where, columns)


def rows_in(stored: DeltaTable, *where: pl.Expr, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Returns rows as `report_rows` does, from *stored*, for a writer that will replace rows of that version."""
    return _read(dataset_of(stored), where, columns)


def _read(rows: ds.Dataset, where: Sequence[pl.Expr], columns: Sequence[str] | None) -> pl.DataFrame:
    return pl.scan_pyarrow_dataset(rows).filter(*where).select(columns or pl.all()).collect()


def lies_in(column: str, interval: Interval) -> pl.Expr:
    """Returns the condition that the timestamp *column* lies in *interval*."""
    return pl.col(column).is_between(utc(interval.start_ms), utc(interval.end_ms), closed="left")
