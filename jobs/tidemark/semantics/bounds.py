"""Computes the price of a source's bound: completeness against latency.

With a longer bound fewer records are late, and every result that waits for the watermark waits that much longer. Here a
record counts as late when it is beyond the bound, whatever lateness is allowed in addition.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate

from tidemark.semantics.buckets import RELATIVE_ERROR, bucket_of, value_of

SHARES = ("50", "90", "99", "99.9", "99.99", "100")
"""Percentages of records in time for which bounds are compared."""
COUNTED_AS_LATE = (
    "A record counts as late here if it is further than the bound behind the time that its source had reached before "
    "its batch, the newest of the partition that its watermark waited for. So shorter batches make more records late. "
    "The driver may set aside fewer: a record is late only when its window has closed."
)
"""Says how the numbers differ from those of late_records, for people."""


@dataclass(frozen=True)
class BoundCost:
    """The price of one bound.

    Attributes:
        choice: why this bound is compared: `none`, `99 % in time`, `current`.
        bound_ms: the bound.
        records: all records that were counted.
        late: the records among them that are late with this bound.
        late_share: `late` ÷ `records`.
        wait_ms: how long results wait for the watermark, which is the bound itself.
    """

    choice: str
    bound_ms: int
    records: int
    late: int
    late_share: float
    wait_ms: int


def bound_costs(counts: Sequence[tuple[int, int]], *, bound_ms: int) -> list[BoundCost]:
    """Returns the price of no bound, of the bound for each of SHARES, and of *bound_ms*; empty without records.

    Args:
        counts: how many records need a bound of so many ms, as (bucket of the bound, records).
        bound_ms: the current bound.
    """
    in_order = sorted(counts)
    buckets = [bucket for bucket, _ in in_order]
    in_time = [*accumulate(n for _, n in in_order)]
    if not in_time or not in_time[-1]:
        return []
    choices = {"none": 0}
    for share in SHARES:
        # The upper edge of a bucket is at most 2 % longer than the records need.
        choices[f"{share} % in time"] = _bound_ms(buckets, in_time, Decimal(share))
    choices["current"] = bound_ms
    return [_cost(choice, choice_ms, buckets, in_time) for choice, choice_ms in choices.items()]


def _bound_ms(buckets: Sequence[int], in_time: Sequence[int], share: Decimal) -> int:
    """Returns the bound in whole ms with which *share* percent of all records are in time.

    Args:
        buckets: buckets of the bounds that records need, in ascending order.
        in_time: for each of them, the number of records that need no longer bound.
        share: the percentage.
    """
    first_enough = bisect_left(in_time, share * in_time[-1], key=lambda n: Decimal(n * 100))
    # 1e-6 ms keeps a whole number whole after the division.
    return math.floor(value_of(buckets[first_enough]) / (1 - RELATIVE_ERROR) + 1e-6)


def _cost(choice: str, bound_ms: int, buckets: Sequence[int], in_time: Sequence[int]) -> BoundCost:
    # Records in the bucket of the bound count as in time, so the count is off by one bucket at most.
    n_buckets = bisect_right(buckets, bucket_of(bound_ms))
    records = in_time[-1]
    late = records - (in_time[n_buckets - 1] if n_buckets else 0)
    return BoundCost(choice, bound_ms, records, late, late / records, bound_ms)
