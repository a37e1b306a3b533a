"""The quantiles of `semantics.quantiles` on whole columns."""

from __future__ import annotations

import polars as pl

from tidemark.semantics.quantiles import MEDIAN


def median_of(column: pl.Expr) -> pl.Expr:
    """Returns the median of *column*, a value of it, as an aggregate; null without values.

    Polars' own `median` is the mean of two neighbours.
    """
    return column.quantile(MEDIAN, interpolation="equiprobable")
