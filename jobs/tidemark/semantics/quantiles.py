"""The rule for a quantile: which of some measured lengths it is.

The *q*-quantile of N lengths is the ⌈*q* · N⌉-th in ascending order (nearest rank, the inverse of the empirical
distribution: Hyndman and Fan 1996, definition 1). So it is always a length that was measured, a share of at least *q*
is no longer, and less than *q* is shorter. An SLA on a quantile and an objective that counts slow records therefore
agree, also about few records: of two the 99th percentile is the longer one. The median is the quantile 0.5, of an even
number the lower of the two in the middle. Quantiles that come from buckets (`buckets.quantile`), as those of SLAs do,
have the same rank, and are within 1 % of the length.
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
    """Returns the place of the *q*-quantile of *n* lengths, counted from 0 in ascending order."""
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
    place = place_sql(f"count({column})", q)
    return f"(list({column} ORDER BY {column}) FILTER ({column} IS NOT NULL))[{place}]"


def place_sql(n: str, q: float) -> str:
    """Returns the place of the *q*-quantile of *n* lengths in SQL of DuckDB, counted from 1 in ascending order.

    *n* is an expression, and becomes part of the text: write it yourself.
    """
    return f"greatest(1, ceil(round({q!r}::DOUBLE * {n}, {DIGITS}))::BIGINT)"


def median_sql(column: str) -> str:
    """Returns the median of an expression as an aggregate of DuckDB, as `quantile_sql` does."""
    return quantile_sql(column, MEDIAN)
