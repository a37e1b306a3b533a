"""Reads newest record times, and when the oldest batches finished.

The statistics in the log of a table have them, unless they are missing there: then rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from tidemark.facts.versions import files_in_log
from tidemark.storage.delta.tables import scan

NEWEST, OLDEST = "max.timestamp", "min.finished_at"


def newest_ms(path: Path, *, before_batch: int | None = None) -> int | None:
    """Returns the newest `timestamp` in the table at *path*, epoch ms; None without a row.

    With *before_batch* only rows of earlier batches count.
    """
    newest, is_sure = newest_in_log(path, before_batch=before_batch)
    if is_sure:
        return newest
    rows = scan(path) if before_batch is None else scan(path).filter(pl.col("batch_id") < before_batch)
    newest = rows.select(pl.col("timestamp").max().dt.epoch("ms")).collect().item()
    return newest if isinstance(newest, int) else None


def newest_in_log(path: Path, *, before_batch: int | None = None) -> tuple[int | None, bool]:
    """Returns the newest `timestamp` by the log, epoch ms, and True if that is certain.

    No data file is opened. The answer is uncertain if the log lacks the statistics of a file, or if a file has rows of
    batches before and after *before_batch*.
    """
    files = files_in_log(path)
    if before_batch is not None and files.height:
        if "min.batch_id" not in files.columns:
            return None, False
        # A file without statistics may have rows of any batch, so it stays and makes the answer uncertain.
        files = files.filter(pl.col("min.batch_id").is_null() | (pl.col("min.batch_id") < before_batch))
        if not (files["max.batch_id"] < before_batch).fill_null(value=False).all():
            return None, False
    if not files.height:
        return None, True
    if NEWEST not in files.columns or files[NEWEST].has_nulls():
        return None, False
    newest = files[NEWEST].dt.epoch("ms").max()
    return (newest if isinstance(newest, int) else None), True


def oldest_ms(paths: Iterable[Path]) -> int | None:
    """Returns when the oldest batch in the tables *paths* finished, epoch ms; None without a batch."""
    finished_ms: list[int] = []
    for path in paths:
        files = files_in_log(path)
        oldest = files[OLDEST] if OLDEST in files.columns else pl.Series([None], dtype=pl.Datetime())
        if files.height and oldest.has_nulls():
            oldest = scan(path).select("finished_at").collect().to_series()
        if isinstance(at := oldest.dt.epoch("ms").min(), int):
            finished_ms.append(at)
    return min(finished_ms, default=None)
