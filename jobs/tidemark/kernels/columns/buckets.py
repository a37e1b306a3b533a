"""The buckets of `tidemark.semantics.buckets` for whole columns."""

from __future__ import annotations

import math

import polars as pl

from tidemark.semantics.buckets import GAMMA, RELATIVE_ERROR


def bucket_of(value_ms: pl.Expr) -> pl.Expr:
    """Returns the bucket of each signed value in whole milliseconds, as Int16.

    Null for null.
    """
    magnitude = 1 + (value_ms.cast(pl.Float64).abs().log() / math.log(GAMMA)).ceil()
    return pl.when(value_ms == 0).then(value_ms).otherwise(magnitude * value_ms.sign()).cast(pl.Int16)


def value_of(bucket: str) -> pl.Expr:
    """Returns the value in whole milliseconds that each *bucket* stands for.

    It is an Int64 and within the relative error.
    """
    index = pl.col(bucket).cast(pl.Int64())
    magnitude_ms = GAMMA ** (index.abs() - 1).cast(pl.Float64()) * (1 - RELATIVE_ERROR)
    return pl.when(index == 0).then(0).otherwise((magnitude_ms * index.sign()).round()).cast(pl.Int64())
