"""What `tidemark requeue` starts from: rows that were set aside, by when that was, and those that it took before."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.delta import scan
from tidemark.kernels.schemas import arrow_schema
from tidemark.spec.intervals import instant_ms, utc
from tidemark.spec.tables import BATCHES, REQUEUED


def with_decided_at(path: Path) -> pl.DataFrame:
    """The rows of a driver's table at *path*, each with the instant at which its batch was decided."""
    batches = scan(path.parent / BATCHES.name).select("batch_id", "decided_at").collect()
    return scan(path).collect().join(batches, on="batch_id", how="left")


def in_time(rows: pl.DataFrame, asked: Namespace) -> pl.DataFrame:
    """Those of *rows* whose batches were decided from `first` until `until`, as *asked*; None: any."""
    if asked.first is not None:
        rows = rows.filter(pl.col("decided_at") >= utc(instant_ms(asked.first)))
    if asked.until is not None:
        rows = rows.filter(pl.col("decided_at") < utc(instant_ms(asked.until)))
    return rows


def requeued(path: Path) -> pl.LazyFrame:
    """The rows of the table `requeued` at *path*; none where it is not there."""
    if not DeltaTable.is_deltatable(str(path)):
        return pl.DataFrame(arrow_schema(REQUEUED).empty_table()).lazy()
    return scan(path)
