"""Whether the row of a window is final: no record changes it any more, unless its window is reopened by request."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from tidemark.spec.operators import SinkWindow

WINDOW_FINAL = "window_final"
_FINAL = "_window_final"


def with_final(window: SinkWindow, records: pl.DataFrame, watermark_ms: int | None) -> pl.DataFrame:
    """*records* of a sink, each with whether it is the final result of its window after a batch; null: not known.

    Of several results of one window in a batch only the last may be final.
    """
    up_to_ms = window.closed_up_to_ms(watermark_ms)
    if window.is_closed:
        final = pl.lit(value=True)
    elif window.column is None:
        final = pl.lit(None, pl.Boolean)
    elif up_to_ms is None:
        final = pl.lit(value=False)
    else:
        final = (pl.col(window.column) <= up_to_ms) & pl.col("_key").is_last_distinct()
    return records.with_columns(final.alias(_FINAL))


def final_columns(columns: Collection[str]) -> dict[str, pl.Expr]:
    """What a table is told of records with these *columns*; nothing where they are of no window."""
    return {WINDOW_FINAL: pl.col(_FINAL)} if _FINAL in columns else {}
