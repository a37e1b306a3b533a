"""Measures the disorder of a sample, and finds a covering bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemark.semantics.quantiles import quantile_of

TARGET = 0.99
"""Least share of the sampled records that a proposed bound covers."""


def behind_ms(times: Iterable[tuple[int, int]], now_ms: int) -> list[int]:
    """Returns how far each record is behind the newest one before it.

    *times* are partition and record time, in the order of offsets. 0 where a record is not behind. A record from the
    future moves time up to *now_ms* only, as in a stream.
    """
    newest: dict[int, int] = {}
    distances_ms = []
    for partition, time_ms in times:
        before_ms = newest.get(partition, time_ms)
        distances_ms.append(max(0, before_ms - time_ms))
        # A record from the future would make all records after it late.
        newest[partition] = max(before_ms, min(time_ms, now_ms))
    return distances_ms


def late_share(behind: Sequence[int], bound_ms: int) -> float:
    """Returns the share of records *behind* over *bound_ms*; 0 without records."""
    return sum(ms > bound_ms for ms in behind) / len(behind) if behind else 0.0


def covering_ms(behind: Sequence[int], share: float = TARGET) -> int:
    """Returns the least bound that covers a *share* of the records.

    0 without records.

    >>> covering_ms([0, 0, 500, 9_000], 0.75)
    500
    """
    return quantile_of(behind, share) if behind else 0
