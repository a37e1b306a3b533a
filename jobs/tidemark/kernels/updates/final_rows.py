"""Decides which rows of a window are final: no record changes them any more, unless a person reopens the window."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from tidemark.model.settings.window_columns import SinkWindow

WINDOW_FINAL = "window_final"
_FINAL = "_window_final"


def with_final(window: SinkWindow, records: pl.DataFrame, watermark_ms: int | None) -> pl.DataFrame:
    """Marks the *records* that are final results of their windows; the mark is null where that is not known."""
    up_to_ms = window.closed_up_to_ms(watermark_ms)
    if window.is_closed:
        final = pl.lit(value=True)
    elif window.column is None:
        final = pl.lit(None, pl.Boolean)
    elif up_to_ms is None:
        final = pl.lit(value=False)
    else:
        # Of several results of one window in a batch only the last may be final.
        final = (pl.col(window.column) <= up_to_ms) & pl.col("_key").is_last_distinct()
    return records.with_columns(final.alias(_FINAL))


def final_columns(columns: Collection[str]) -> dict[str, pl.Expr]:
    """Returns the table's column with the mark of `with_final`; empty if *columns* have no mark."""
    return {WINDOW_FINAL: pl.col(_FINAL)} if _FINAL in columns else {}
