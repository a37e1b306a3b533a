"""The windows of `tidemark.semantics.windows` for whole columns."""

from __future__ import annotations

import polars as pl


def window_start(timestamp_ms: pl.Expr, *, size_ms: int) -> pl.Expr:
    """The start, epoch ms, of the tumbling window that each timestamp is in; windows are aligned to the epoch."""
    return timestamp_ms.floordiv(size_ms) * size_ms
