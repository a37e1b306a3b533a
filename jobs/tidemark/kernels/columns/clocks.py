"""Puts instants of several hosts on one clock, in `operator_windows`."""

from __future__ import annotations

import polars as pl


def on_one_clock(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* of one topology's `operator_windows` with one clock offset for each host and window.

    Each host's offset is its estimate with the smallest error. Instants are epoch ms, and the columns stay the same.
    """
    # 2^62 is above every error: an estimate without a bound loses to all others.
    window, skew, error = ("window_start", "window_end"), pl.col("skew_ms"), pl.col("skew_error_ms").fill_null(2**62)
    best = skew.filter(skew.is_not_null() & (error == error.min())).min()
    corrected = rows.with_columns(
        _offset=best.over(*window, "host"), _error=pl.col("skew_error_ms").min().over(*window, "host")
    )
    # A correction at only one end of a hop would invent a wait, or hide one.
    is_known = pl.col("_offset").is_not_null().all().over(*window)
    corrected = corrected.with_columns(pl.when(is_known).then(name).alias(name) for name in ("_offset", "_error"))
    moved = pl.col("ewt_adjusted_at") - skew.fill_null(0) + pl.col("_offset").fill_null(0)
    return corrected.with_columns(ewt_adjusted_at=moved, skew_ms="_offset", skew_error_ms="_error").select(rows.columns)
