"""The rule of `tidemark.semantics.quantiles` for whole columns."""

from __future__ import annotations

import polars as pl

from tidemark.semantics.quantiles import DIGITS, MEDIAN


def rank(n: pl.Expr, q: float) -> pl.Expr:
    """Returns the index of the *q*-quantile among *n* lengths in ascending order, from 0."""
    index = (n * q).round(DIGITS).ceil().cast(pl.Int64()) - 1
    return index.clip(0)


def quantile_of(lengths: pl.Expr, q: float) -> pl.Expr:
    """Returns the *q*-quantile of *lengths*, as an aggregate; null without a length."""
    known = lengths.drop_nulls()
    return known.sort().get(rank(known.len(), q), null_on_oob=True)


def median_of(lengths: pl.Expr) -> pl.Expr:
    """Returns the median of *lengths*, one of them, as an aggregate: Polars' own is the mean of two neighbours."""
    return quantile_of(lengths, MEDIAN)
