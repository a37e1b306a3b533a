"""The windows of `tidemark.semantics.windows` for whole columns; epoch ms of record time, half-open."""

from __future__ import annotations

import polars as pl

from tidemark.spec.operators import Windows

WINDOW: dict[str, pl.DataType] = {"window_start": pl.Int64(), "window_end": pl.Int64()}
"""The columns that say which window a row is about."""


def window_start(timestamp_ms: pl.Expr, *, size_ms: int, offset_ms: int = 0) -> pl.Expr:
    """The start, epoch ms, of the tumbling window that each timestamp is in; windows are aligned to the epoch."""
    return (timestamp_ms - offset_ms).floordiv(size_ms) * size_ms + offset_ms


def in_windows(records: pl.DataFrame, windows: Windows) -> pl.DataFrame:
    """*records* once for each tumbling or hopping window they are in, earliest first, with WINDOW."""
    latest = window_start(pl.col("_timestamp_ms"), size_ms=windows.hop_ms, offset_ms=windows.offset_ms)
    before = pl.int_range(0, -(-windows.size_ms // windows.hop_ms), eager=True).reverse() * windows.hop_ms
    starts = records.with_columns(_latest=latest).join(
        pl.DataFrame({"_before": before}), how="cross", maintain_order="left"
    )
    return (
        starts.with_columns(window_start=pl.col("_latest") - pl.col("_before"))
        .with_columns(window_end=pl.col("window_start") + windows.size_ms)
        .filter(pl.col("window_end") > pl.col("_timestamp_ms"))
        .drop("_latest", "_before")
    )


def is_closed(windows: Windows, watermark_ms: int | None) -> pl.Expr:
    """Whether the window of each row takes no more records, as `semantics.watermark.is_window_late` says."""
    last_needed = pl.col("window_end") - 1 + windows.allowed_lateness_ms
    return pl.lit(value=False) if watermark_ms is None else last_needed <= watermark_ms
