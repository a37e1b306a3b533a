"""Counts latencies in log-scaled buckets; percentiles are at most 1 % off.

The mapping is that of DDSketch (Masson, Rim and Lee, VLDB 2019) with γ = 1.02. A positive value *v* of whole
milliseconds is in bucket 1 + ⌈log_γ v⌉, a negative one in the bucket of −*v* with the sign turned, 0 in bucket 0. A
bucket stands for the value between its edges that is relatively as far from both. So a quantile read from buckets is
within α = (γ − 1) / (γ + 1) < 0.991 % of a value of that rank. The rest up to 1 % is room for engines whose logarithms
differ in the last digit. For example 5,000 ms is bucket 432, which stands for 5,039 ms. Where the smallest and the
largest value are known, a quantile is kept between them, so that no percentile is above the maximum beside it.

Buckets merge by adding up `n` per bucket, in any order and in any SQL engine. Values above a threshold are counted
beside the buckets, so that their share is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tidemark.errors import InvalidArgument
from tidemark.semantics.quantiles import rank

GAMMA = 1.02
RELATIVE_ERROR = (GAMMA - 1) / (GAMMA + 1)
_LN_GAMMA = math.log(GAMMA)


def bucket_of(value_ms: int) -> int:
    """Returns the int16 bucket of a signed 64-bit value in ms."""
    if value_ms == 0:
        return 0
    bucket = 1 + math.ceil(math.log(abs(value_ms)) / _LN_GAMMA)
    return bucket if value_ms > 0 else -bucket


def value_of(bucket: int) -> float:
    """Returns the value in milliseconds that *bucket* stands for."""
    if bucket == 0:
        return 0.0
    value_ms = GAMMA ** (abs(bucket) - 1) * (1 - RELATIVE_ERROR)
    return value_ms if bucket > 0 else -value_ms


def quantile(
    counts: Iterable[tuple[int, int]], q: float, *, min_ms: float | None = None, max_ms: float | None = None
) -> float | None:
    """Returns the *q*-quantile in milliseconds of values counted as (bucket, n).

    The result is the ⌈*q* · N⌉-th value (see `quantiles`), with a relative error of at most 1 %, or None without
    values. DDSketch uses another rank, ⌊*q* · (N − 1)⌋ counted from 0. *counts* may name a bucket more than once.

    *min_ms* and *max_ms* are the smallest and the largest of the values, if they are known. The result is kept between
    them. The exact quantile lies between them too, so this never makes the error larger.

    Raises:
        InvalidArgument: *q* is not between 0 and 1.
    """
    if not 0 <= q <= 1:
        msg = f"a quantile must be between 0 and 1, got {q}; the 99th percentile is 0.99"
        raise InvalidArgument(msg)
    ordered = sorted((bucket, n) for bucket, n in counts if n)
    to_skip = rank(sum(n for _, n in ordered), q)
    for bucket, n in ordered:
        if to_skip < n:
            value_ms = value_of(bucket)
            value_ms = value_ms if min_ms is None else max(value_ms, min_ms)
            return value_ms if max_ms is None else min(value_ms, max_ms)
        to_skip -= n
    return None


def bucket_sql(column: str) -> str:
    """Returns `bucket_of` as SQL over *column*, for DuckDB and Spark.

    Null stays null. All implementations agree on every value below ten thousand years. Beyond that a value at an edge
    may be in the neighbouring bucket, which has the same error. *column* becomes part of the text: pass only names and
    expressions that you wrote, never user input.
    """
    # 17 significant digits make the literal the same double as in Python.
    magnitude = f"CAST(CEIL(LN(ABS(CAST({column} AS DOUBLE))) / {_LN_GAMMA:.17g}e0) AS INT)"
    signed = f"WHEN {column} > 0 THEN 1 + {magnitude} WHEN {column} < 0 THEN -1 - {magnitude}"
    return f"CASE {signed} WHEN {column} = 0 THEN 0 END"
