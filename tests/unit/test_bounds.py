"""A bound is completeness against latency."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from tidemark.semantics.bounds import SHARES, bound_costs
from tidemark.semantics.buckets import bucket_of

COUNTS = [(0, 900), (bucket_of(100), 60), (bucket_of(2_000), 30), (bucket_of(5_000), 10)]
"""Gaps of 1,000 records, 900 of them in order.

60, 30 and 10 came 100 ms, 2 s and 5 s behind.
"""


def test_each_bound_has_its_share_of_late_records_and_its_price() -> None:
    # Up to 0 ms there are 900 in time, up to 2 s 990, up to 5 s all. The bucket of 2 s ends at
    # 1.02 ** 384 = 2,006.6 ms, that of 5 s at 1.02 ** 431 = 5,089.6 ms.
    assert [(c.choice, c.bound_ms, c.late, c.late_share, c.wait_ms) for c in bound_costs(COUNTS, bound_ms=3_000)] == [
        ("none", 0, 100, 0.1, 0),
        ("50 % in time", 0, 100, 0.1, 0),
        ("90 % in time", 0, 100, 0.1, 0),
        ("99 % in time", 2_006, 10, 0.01, 2_006),
        ("99.9 % in time", 5_089, 0, 0.0, 5_089),
        ("99.99 % in time", 5_089, 0, 0.0, 5_089),
        ("100 % in time", 5_089, 0, 0.0, 5_089),
        ("current", 3_000, 10, 0.01, 3_000),
    ]


def test_without_records_there_is_nothing_to_compare() -> None:
    assert bound_costs([], bound_ms=3_000) == []


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=30), st.sampled_from(SHARES))
def test_a_bound_for_a_share_has_that_share_in_time(needed_ms: list[int], share: str) -> None:
    costs = {cost.choice: cost for cost in bound_costs([(bucket_of(ms), 1) for ms in needed_ms], bound_ms=0)}
    cost = costs[f"{share} % in time"]
    assert cost.late == sum(ms > cost.bound_ms for ms in needed_ms)
    assert cost.late * 100 <= len(needed_ms) * (100 - Decimal(share))
