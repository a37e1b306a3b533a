"""End-to-end latency: the instant at which a record was finished minus the record's timestamp, signed (KIP-613).

A batch needs no clock per record. The sums that `Times` keeps of timestamps, and one clock read when the batch was
finished, give the same statistics (KAFKA-14597). Milliseconds throughout; instants are epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Times:
    """Number, extremes and sum of the timestamps of n records; without records there are no extremes (None)."""

    n: int = 0
    min_ms: int | None = None
    max_ms: int | None = None
    sum_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Number, extremes and sum of the latencies of n records; without records there are no extremes (None).

    Latencies are never clamped: one is negative where a timestamp lies ahead of the clock.
    """

    n: int = 0
    min_ms: int | None = None
    max_ms: int | None = None
    sum_ms: int = 0


def latency_at(times: Times, *, finished_at_ms: int) -> Latency:
    """Returns the latencies of a batch that was finished at *finished_at_ms*."""
    # The oldest record has the longest latency, so minimum and maximum change places.
    return Latency(
        n=times.n,
        min_ms=None if times.max_ms is None else finished_at_ms - times.max_ms,
        max_ms=None if times.min_ms is None else finished_at_ms - times.min_ms,
        sum_ms=finished_at_ms * times.n - times.sum_ms,
    )
