"""The buckets of `tidemark.semantics.buckets` for whole columns."""

from __future__ import annotations

import math

import polars as pl

from tidemark.semantics.buckets import GAMMA


def bucket_of(value_ms: pl.Expr) -> pl.Expr:
    """The bucket of each signed value in whole milliseconds, as Int16; null for null."""
    magnitude = 1 + (value_ms.cast(pl.Float64).abs().log() / math.log(GAMMA)).ceil()
    return pl.when(value_ms == 0).then(value_ms).otherwise(magnitude * value_ms.sign()).cast(pl.Int16)


def n_over(value_ms: pl.Expr, threshold_ms: int) -> pl.Expr:
    """How many values are above *threshold_ms*, exactly: counted where the values are, added up ever after."""
    return (value_ms > threshold_ms).sum()
