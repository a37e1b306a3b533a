"""Stream time of a task and how late its records are against it, as Kafka Streams sees them.

Stream time is the highest timestamp processed so far, partition time the same per partition; None before the first
record. Source: Kafka Streams, PartitionGroup. Epoch milliseconds; `dataclasses.asdict` of a state is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class StreamTime:
    """How far one task has come."""

    stream_time_ms: int | None = None
    partition_times_ms: Mapping[str, int] = field(default_factory=dict)


def next_partition(heads_ms: Mapping[str, int]) -> str:
    """The partition whose record is processed next, given the timestamp of the first record of each that has one.

    The lowest timestamp; of equal ones the first by name.
    """
    return min(heads_ms, key=lambda partition: (heads_ms[partition], partition))


def processed(state: StreamTime, partition: str, timestamp_ms: int) -> tuple[StreamTime, int]:
    """The state after a record of *partition*, and the record's lateness in ms: 0 unless it is behind stream time."""
    stream_time_ms = max(timestamp_ms, timestamp_ms if state.stream_time_ms is None else state.stream_time_ms)
    partition_time_ms = max(timestamp_ms, state.partition_times_ms.get(partition, timestamp_ms))
    times = {**state.partition_times_ms, partition: partition_time_ms}
    return StreamTime(stream_time_ms=stream_time_ms, partition_times_ms=times), stream_time_ms - timestamp_ms
