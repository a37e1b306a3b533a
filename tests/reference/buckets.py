"""Computes the value of a latency bucket in SQL."""

from __future__ import annotations

from tidemark.semantics.buckets import GAMMA, RELATIVE_ERROR


def bucket_value_sql(column: str) -> str:
    """Returns SQL for `value_of` over a bucket *column*, ms as a double.

    The value of null is null.
    """
    value = f"POWER({GAMMA}e0, ABS({column}) - 1) * {1 - RELATIVE_ERROR:.17g}e0"
    return f"CASE WHEN {column} = 0 THEN 0e0 ELSE SIGN({column}) * {value} END"
