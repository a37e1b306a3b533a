"""The newest record time of a table, from what its log says of its files where it does (ring 2)."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.delta import scan

NEWEST = "max.timestamp"


def newest_ms(path: Path, *, before_batch: int | None = None) -> int | None:
    """The newest `timestamp` of the table at *path*, epoch ms, of batches before *before_batch*; None: it has no row.

    Rows are read where its log does not say it.
    """
    newest, is_sure = told_ms(path, before_batch=before_batch)
    if is_sure:
        return newest
    rows = scan(path) if before_batch is None else scan(path).filter(pl.col("batch_id") < before_batch)
    found = rows.select(pl.col("timestamp").max().dt.epoch("ms")).collect().item()
    return found if isinstance(found, int) else None


def told_ms(path: Path, *, before_batch: int | None = None) -> tuple[int | None, bool]:
    """The same, as the log of the table tells it without a file of rows being opened; and whether that is sure.

    It is not sure where the log does not say it of a file, or not of a part of it.
    """
    files = pl.DataFrame(DeltaTable(str(path)).get_add_actions(flatten=True))
    if before_batch is not None and files.height:
        if "min.batch_id" not in files.columns:
            return None, False
        files = files.filter(pl.col("min.batch_id").is_null() | (pl.col("min.batch_id") < before_batch))
        if not (files["max.batch_id"] < before_batch).fill_null(value=False).all():
            return None, False
    if not files.height:
        return None, True
    if NEWEST not in files.columns or files[NEWEST].has_nulls():
        return None, False
    newest = files[NEWEST].dt.epoch("ms").max()
    return (newest if isinstance(newest, int) else None), True
