"""The rule for quantiles: which one of a list of measured lengths is the q-quantile.

The *q*-quantile of N lengths is the ⌈*q* · N⌉-th in ascending order (nearest rank, the inverse of the empirical
distribution: Hyndman and Fan 1996, definition 1). So it is always one of the measured lengths: a share of at least
*q* of them is no longer than it, and less than *q* is shorter. An SLA on a quantile and an objective that counts slow
records therefore agree, also about few records: of two records the 99th percentile is the longer one. The median is the
quantile 0.5, of an even number the lower of the two in the middle. Quantiles that come from buckets
(`buckets.quantile`), as those of SLAs do, have the same rank, and are within 1 % of the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

MEDIAN = 0.5
Length = TypeVar("Length", int, float)
DIGITS = 9
"""Digits of *q* · N that count: 0.07 · 100 is 7.000000000000001 as a double, and means 7."""


def rank(n: int, q: float) -> int:
    """Returns the index of the *q*-quantile among *n* lengths in ascending order, from 0."""
    return max(0, math.ceil(round(q * n, DIGITS)) - 1)


def quantile_of(lengths_ms: Iterable[Length], q: float) -> Length:
    """Returns the *q*-quantile of *lengths_ms*, which are not empty."""
    ordered = sorted(lengths_ms)
    return ordered[rank(len(ordered), q)]


def quantile_sql(column: str, q: float) -> str:
    """Returns the *q*-quantile of an expression as an aggregate of DuckDB; null without a value.

    DuckDB's own `quantile_disc` has another rank, and its `median` is the mean of two neighbours. *column* becomes part
    of the text: pass only names and expressions that you wrote, never user input.
    """
    rank_from_1 = rank_sql(f"count({column})", q)
    return f"(list({column} ORDER BY {column}) FILTER ({column} IS NOT NULL))[{rank_from_1}]"


def rank_sql(n: str, q: float) -> str:
    """Returns SQL of DuckDB for the index of the *q*-quantile among *n* lengths in ascending order, from 1.

    *n* is an expression, and becomes part of the text: write it yourself.
    """
    return f"greatest(1, ceil(round({q!r}::DOUBLE * {n}, {DIGITS}))::BIGINT)"


def median_sql(column: str) -> str:
    """Returns the median of an expression as an aggregate of DuckDB, as `quantile_sql` does."""
    return quantile_sql(column, MEDIAN)
