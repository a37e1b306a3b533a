"""End-to-end latency: the clock when an operator finished a record, less the record's timestamp, signed (KIP-613).

A batch needs no clock per record: what `Times` keeps of its records' timestamps and one clock read when the batch was
finished give the same statistics (KAFKA-14597). Milliseconds throughout; instants are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

from tidemark.errors import InvalidTimestamp


@dataclass(frozen=True, kw_only=True)
class Times:
    """What latency needs to know of the timestamps of n records; `min_ms` and `max_ms` are None for none."""

    n: int = 0
    min_ms: int | None = None
    max_ms: int | None = None
    sum_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latencies of n records: never clamped, negative where a timestamp lies ahead of the clock; None for none."""

    n: int = 0
    min_ms: int | None = None
    max_ms: int | None = None
    sum_ms: int = 0

    @property
    def avg_ms(self) -> float | None:
        """The mean; None without records."""
        return self.sum_ms / self.n if self.n else None


class OnInvalid(StrEnum):
    """What happens to a record without a usable timestamp, after Kafka Streams' three TimestampExtractors."""

    FAIL = "fail"
    DROP = "drop"
    USE_PARTITION_TIME = "use_partition_time"


def e2e_latency_ms(timestamp_ms: int, *, finished_at_ms: int) -> int:
    """The latency of one record that was finished at *finished_at_ms*."""
    return finished_at_ms - timestamp_ms


def times_of(timestamps_ms: Iterable[int]) -> Times:
    """What latency needs to know of the *timestamps_ms* of a batch."""
    values = [*timestamps_ms]
    return Times(n=len(values), min_ms=min(values, default=None), max_ms=max(values, default=None), sum_ms=sum(values))


def latency_at(times: Times, *, finished_at_ms: int) -> Latency:
    """The latencies of a batch finished at *finished_at_ms*: min is that less the newest timestamp, and so on."""
    return Latency(
        n=times.n,
        min_ms=None if times.max_ms is None else finished_at_ms - times.max_ms,
        max_ms=None if times.min_ms is None else finished_at_ms - times.min_ms,
        sum_ms=finished_at_ms * times.n - times.sum_ms,
    )


def merged(latencies: Iterable[Latency]) -> Latency:
    """The latencies of all records of several batches, in any order and grouping."""
    return reduce(_merge, latencies, Latency())


def usable_timestamp_ms(timestamp_ms: int | None, policy: OnInvalid, *, partition_time_ms: int | None) -> int | None:
    """The timestamp to go on with; None when the record is to be dropped, and counted as dropped.

    A timestamp is usable if it is there and not negative, as everywhere in Kafka. *partition_time_ms* is the highest
    timestamp read from the record's partition before it, None before the first.

    Raises:
        InvalidTimestamp: it is not usable and the policy is to fail, or there is no partition time to use.
    """
    if timestamp_ms is not None and timestamp_ms >= 0:
        return timestamp_ms
    if policy is OnInvalid.DROP:
        return None
    if policy is OnInvalid.USE_PARTITION_TIME and partition_time_ms is not None:
        return partition_time_ms
    msg = (
        f"a record's timestamp is 0 or more, got {timestamp_ms} with partition time {partition_time_ms} "
        f"and the policy {policy}; `{OnInvalid.DROP}` sets such records aside"
    )
    raise InvalidTimestamp(msg)


def _merge(one: Latency, other: Latency) -> Latency:
    return Latency(
        n=one.n + other.n,
        min_ms=min((x for x in (one.min_ms, other.min_ms) if x is not None), default=None),
        max_ms=max((x for x in (one.max_ms, other.max_ms) if x is not None), default=None),
        sum_ms=one.sum_ms + other.sum_ms,
    )
