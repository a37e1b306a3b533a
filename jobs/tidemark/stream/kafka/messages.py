"""Reads records of topics by their offsets, with Kafka's client instead of Spark."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping

import polars as pl
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from tidemark.kernels.columns.schemas import HEADERS
from tidemark.semantics.progress import TopicPartition

SILENT_S = 10.0
"""A topic without a record for so long counts as read to its end."""
FAILS_AFTER_S = 60.0
"""Records that must be there are awaited for so long."""
MOST_CLOCK_MS = (2**63 - 1) // 1_000
"""The latest time of a record, epoch ms, that is usable: Spark counts it in microseconds of 64 bits.

The times of a producer that sends nanoseconds are beyond, unless the broker refuses them.
"""
RECORD = {
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "key": pl.Binary(),
    "value": pl.Binary(),
    "clock_ms": pl.Int64(),
    "stamped_ms": pl.Int64(),
    "headers": HEADERS,
}
_AT_ONCE = 10_000


def record_of(message: Message, partition: int) -> dict[str, object]:
    """Returns *message* as a row with the columns RECORD, in the input partition *partition*.

    `clock_ms` is null if the broker's time is beyond MOST_CLOCK_MS. `stamped_ms` is the same, and null if the producer
    set it.
    """
    pairs: list[tuple[str, str | bytes | None]] = message.headers() or []  # type: ignore[assignment]
    headers = [{"key": name, "value": value} for name, value in pairs]
    kind, clock_ms = message.timestamp()
    is_known = abs(clock_ms) <= MOST_CLOCK_MS
    return {
        "partition": partition,
        "offset": message.offset(),
        "key": message.key(),
        "value": message.value(),
        "clock_ms": clock_ms if is_known else None,
        "stamped_ms": clock_ms if is_known and kind == TIMESTAMP_LOG_APPEND_TIME else None,
        "headers": headers or None,
    }


def messages_between(consumer: Consumer, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Message]:
    """Yields the records of partitions at offsets from the start of their range until its end.

    Offsets without a record are left out. A partition that ends before its range does is read to its end: the topic
    was made anew. *consumer* joins no group, and has `enable.partition.eof`.

    Raises:
        KafkaException: the records did not come.
    """
    ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
    consumer.assign([KafkaTopicPartition(*partition, ranges[partition][0]) for partition in ends])
    waits_until = time.monotonic() + FAILS_AFTER_S
    while ends:
        messages = consumer.consume(_AT_ONCE, timeout=1.0)
        if messages:
            waits_until = time.monotonic() + FAILS_AFTER_S
        elif time.monotonic() > waits_until:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        for message in messages:
            partition, offset = TopicPartition(message.topic() or "", message.partition() or 0), message.offset() or 0
            if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition not in ends:
                continue
            # The end of a partition is an event of its own: its last offsets may be marks of transactions.
            if error is not None:
                is_over = not _has_more(consumer, partition, offset, ends[partition])
            else:
                is_over = offset >= ends[partition] - 1
                if ranges[partition][0] <= offset < ends[partition]:
                    yield message
            if is_over:
                del ends[partition]


def _has_more(consumer: Consumer, partition: TopicPartition, offset: int, end: int) -> bool:
    """Returns True if a *partition* that ended at *offset* for its client goes on until *end*."""
    # A broker that has just become the leader may not know yet how far the partition goes.
    return offset < end <= consumer.get_watermark_offsets(KafkaTopicPartition(*partition), timeout=SILENT_S)[1]


def messages_at(consumer: Consumer, topic: str, number: int, offsets: Collection[int]) -> Iterator[Message]:
    """Yields the records of a partition at *offsets*, in order.

    Records that are gone are left out, and so are those of transactions that *consumer* does not read. It joins no
    group, and has `enable.partition.eof`: the last offsets may be marks of transactions, so no record tells the end.
    """
    wanted = set(offsets)
    first, end = consumer.get_watermark_offsets(KafkaTopicPartition(topic, number), timeout=SILENT_S)
    wanted &= set(range(first, end)) if wanted else set()
    if not wanted:
        return
    consumer.assign([KafkaTopicPartition(topic, number, min(wanted))])
    while (message := consumer.poll(SILENT_S)) is not None:
        offset = message.offset()
        if message.error() is None and offset in wanted:
            yield message
        if offset is None or offset >= max(wanted):
            return
