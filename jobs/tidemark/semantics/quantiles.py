"""The rule for a quantile of windows: which of some measured lengths it is.

The *q*-quantile of N lengths is the one of rank ⌊*q* · (N − 1)⌋, counted from 0 in ascending order. So it is always a
length that was measured, of two neighbours the lower one, as `numpy.quantile(..., method="lower")` takes it. The median
is the quantile 0.5. Quantiles that come from buckets (`buckets.quantile`), as those of SLAs do, have the same rank, and
are within 1 % of the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

MEDIAN = 0.5


def rank(n: int, q: float) -> int:
    """Returns the place of the *q*-quantile of *n* lengths, counted from 0 in ascending order."""
    return math.floor(q * (n - 1))


def quantile_of(lengths_ms: Iterable[int], q: float) -> int:
    """Returns the *q*-quantile of *lengths_ms*, which are not empty."""
    ordered = sorted(lengths_ms)
    return ordered[rank(len(ordered), q)]


def quantile_sql(column: str, q: float) -> str:
    """Returns the *q*-quantile of an expression as an aggregate of DuckDB; null without a value.

    DuckDB's own `quantile_disc` has another rank, and its `median` is the mean of two neighbours. *column* becomes part
    of the text: pass only names and expressions that you wrote, never user input.
    """
    place = f"1 + floor({q!r}::DOUBLE * (count({column}) - 1))::BIGINT"
    return f"(list({column} ORDER BY {column}) FILTER ({column} IS NOT NULL))[{place}]"


def median_sql(column: str) -> str:
    """Returns the median of an expression as an aggregate of DuckDB, as `quantile_sql` does."""
    return quantile_sql(column, MEDIAN)
