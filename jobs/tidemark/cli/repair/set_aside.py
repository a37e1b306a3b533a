"""Reads the rows for `tidemark requeue`.

These are the rows that were set aside, by the instant of that, and the rows that it has requeued before.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.settings.intervals import instants_ms, utc
from tidemark.model.tables.catalog import BATCHES, REQUEUED
from tidemark.storage.delta.tables import scan
from tidemark.stream.journal.unflushed import unflushed_of


def with_decided_at(path: Path) -> pl.DataFrame:
    """Returns a table's rows with `decided_at`; null without a `batches` row."""
    unflushed = unflushed_of(path.parent)
    rows = unflushed.scan(path).collect()
    batches = unflushed.scan(path.parent / BATCHES.name).select("batch_id", "decided_at").collect()
    return rows.join(batches, on="batch_id", how="left")


def rows_in_span(rows: pl.DataFrame, options: Namespace) -> pl.DataFrame:
    """Returns the *rows* of batches decided in a span.

    It is [`first`, `until`) of the arguments *options*; an end that is None is open.
    """
    start_ms, end_ms = instants_ms(options.first, options.until)
    if start_ms is not None:
        rows = rows.filter(pl.col("decided_at") >= utc(start_ms))
    if end_ms is not None:
        rows = rows.filter(pl.col("decided_at") < utc(end_ms))
    return rows


def requeued_rows(path: Path) -> pl.LazyFrame:
    """Returns the rows of the table `requeued` at *path*; none without it."""
    if not DeltaTable.is_deltatable(str(path)):
        return pl.DataFrame(arrow_schema(REQUEUED).empty_table()).lazy()
    return scan(path)
