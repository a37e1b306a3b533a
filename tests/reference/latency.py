"""Computes end-to-end latency one record at a time.

The rules are those of Kafka Streams (KIP-613). Milliseconds throughout; instants are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce

from tidemark.errors import InvalidTimestamp
from tidemark.semantics.latency import Latency, Times


class OnInvalid(StrEnum):
    """Policy for records without a usable timestamp.

    The choices are those of Kafka Streams' three TimestampExtractors.
    """

    FAIL = "fail"
    DROP = "drop"
    USE_PARTITION_TIME = "use_partition_time"


def e2e_latency_ms(timestamp_ms: int, *, finished_at_ms: int) -> int:
    """Returns the latency of one record that was finished at *finished_at_ms*."""
    return finished_at_ms - timestamp_ms


def times_of(timestamps_ms: Iterable[int]) -> Times:
    """Returns the summary of the *timestamps_ms* of a batch."""
    values = [*timestamps_ms]
    return Times(n=len(values), min_ms=min(values, default=None), max_ms=max(values, default=None), sum_ms=sum(values))


def mean_ms(latency: Latency) -> float | None:
    """Returns the mean latency; None without records."""
    return latency.sum_ms / latency.n if latency.n else None


def merged(latencies: Iterable[Latency]) -> Latency:
    """Returns the latencies of all records of several batches.

    Order and grouping do not matter.
    """
    return reduce(_merge, latencies, Latency())


def usable_timestamp_ms(timestamp_ms: int | None, policy: OnInvalid, *, partition_time_ms: int | None) -> int | None:
    """Returns the timestamp to use; None when the record is dropped.

    A dropped record is counted. A timestamp is usable if it is present and not negative, as everywhere in Kafka.

    Args:
        timestamp_ms: the record's timestamp.
        policy: the policy of the source.
        partition_time_ms: the highest timestamp read from the record's partition before it, None before the first.

    Raises:
        InvalidTimestamp: the timestamp is not usable, and the policy is to fail or there is no partition time to use.
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
    lowest = [latency.min_ms for latency in (one, other) if latency.min_ms is not None]
    highest = [latency.max_ms for latency in (one, other) if latency.max_ms is not None]
    return Latency(
        n=one.n + other.n,
        min_ms=min(lowest, default=None),
        max_ms=max(highest, default=None),
        sum_ms=one.sum_ms + other.sum_ms,
    )
