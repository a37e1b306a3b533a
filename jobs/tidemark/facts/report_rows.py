"""Reads reports, and other tables that lie in the tables alone."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.model.settings.intervals import Interval, utc
from tidemark.storage.delta.datasets import dataset_of


def lies_in(column: str, interval: Interval) -> pc.Expression:
    """Returns a predicate: the timestamp *column* lies in *interval*."""
    at = pc.field(column)
    return (at >= utc(interval.start_ms)) & (at < utc(interval.end_ms))


def rows_in(
    stored: DeltaTable, where: pc.Expression | None = None, *, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Reads the rows of *stored* for which *where* is true.

    Files that cannot have such rows are not opened. *stored* is the table as it was when it was opened. None as *where*
    or *columns*: all of them.
    """
    return pl.DataFrame(dataset_of(stored).to_table(columns=columns and [*columns], filter=where))
