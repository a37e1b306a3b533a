"""Instants of several hosts on one clock, in the rows of `operator_windows`."""

from __future__ import annotations

import polars as pl


def on_one_clock(rows: pl.DataFrame) -> pl.DataFrame:
    """*rows* of one topology's `operator_windows`, instants as epoch ms, with one offset per host and window.

    That is the estimate with the smallest error. Where that of a host is not known, no other is applied in the window:
    a clock that is set right at one end of a hop alone would make up a wait, or hide one. The columns are the same.
    """
    window, skew, error = ("window_start", "window_end"), pl.col("skew_ms"), pl.col("skew_error_ms").fill_null(2**62)
    best = skew.filter(skew.is_not_null() & (error == error.min())).min()
    found = rows.with_columns(
        _offset=best.over(*window, "host"), _error=pl.col("skew_error_ms").min().over(*window, "host")
    )
    is_known = pl.col("_offset").is_not_null().all().over(*window)
    found = found.with_columns(pl.when(is_known).then(name).alias(name) for name in ("_offset", "_error"))
    moved = pl.col("ewt_adjusted_at") - skew.fill_null(0) + pl.col("_offset").fill_null(0)
    return found.with_columns(ewt_adjusted_at=moved, skew_ms="_offset", skew_error_ms="_error").select(rows.columns)
