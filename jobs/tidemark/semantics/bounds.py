"""What a source's bound costs: completeness against latency, from how far behind its records came.

With a longer bound fewer records are late, and every result that waits for the watermark waits that much longer. A
record counts as late where it is beyond the bound alone, whatever lateness is allowed besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate

from tidemark.semantics.buckets import RELATIVE_ERROR, bucket_of, value_of

SHARES = ("50", "90", "99", "99.9", "99.99", "100")
"""Percent of the records that are to be in time at least, and thereby the bounds that are compared."""


@dataclass(frozen=True)
class BoundCost:
    """One bound: why it is compared, the records that are `late` with it, and by how much results wait (ms)."""

    choice: str
    bound_ms: int
    records: int
    late: int
    late_share: float
    wait_ms: int


def bound_costs(counts: Sequence[tuple[int, int]], *, bound_ms: int) -> list[BoundCost]:
    """No bound, those that SHARES ask for, and the current *bound_ms*; *counts* has a bucket of needed bounds and n.

    An asked one is the longest of its bucket, at most 2 % more than the records need. Without records there is none.
    """
    if not any(n for _, n in counts):
        return []
    asked = {f"{share} % in time": _bound_ms(counts, Decimal(share)) for share in SHARES}
    return [_cost(choice, length_ms, counts) for choice, length_ms in {"none": 0, **asked, "current": bound_ms}.items()]


def _bound_ms(counts: Sequence[tuple[int, int]], share: Decimal) -> int:
    """The upper edge, in whole ms, of the first bucket up to which there are *share* percent of the records."""
    ordered = sorted(counts)
    whole = sum(n for _, n in ordered)
    in_time = accumulate(n for _, n in ordered)
    bucket = next(bucket for (bucket, _), n in zip(ordered, in_time, strict=True) if n * 100 >= share * whole)
    return math.floor(value_of(bucket) / (1 - RELATIVE_ERROR) + 1e-6)


def _cost(choice: str, bound_ms: int, counts: Sequence[tuple[int, int]]) -> BoundCost:
    records = sum(n for _, n in counts)
    late = sum(n for bucket, n in counts if bucket > bucket_of(bound_ms))
    return BoundCost(choice, bound_ms, records, late, late / records, bound_ms)
