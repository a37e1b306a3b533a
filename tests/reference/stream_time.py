"""Computes the stream time of a task as Kafka Streams does.

The lateness of a record is its distance behind stream time, the highest timestamp processed so far. Partition time is
the same per partition. Both are epoch milliseconds, None before the first record. Source: Kafka Streams,
PartitionGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class StreamTime:
    """Progress of a task."""

    stream_time_ms: int | None = None
    partition_times_ms: Mapping[str, int] = field(default_factory=dict)


def next_partition(heads_ms: Mapping[str, int]) -> str:
    """Returns the partition whose record is processed next.

    *heads_ms* has the timestamp of each partition's next record. The lowest one is processed; of equal ones the first
    partition by name.
    """
    return min(heads_ms, key=lambda partition: (heads_ms[partition], partition))


def processed(state: StreamTime, partition: str, timestamp_ms: int) -> tuple[StreamTime, int]:
    """Returns the state after a record, and its lateness in ms.

    The lateness is 0 unless the record is behind stream time.
    """
    stream_time_ms = max(timestamp_ms, timestamp_ms if state.stream_time_ms is None else state.stream_time_ms)
    partition_time_ms = max(timestamp_ms, state.partition_times_ms.get(partition, timestamp_ms))
    times = {**state.partition_times_ms, partition: partition_time_ms}
    return StreamTime(stream_time_ms=stream_time_ms, partition_times_ms=times), stream_time_ms - timestamp_ms
