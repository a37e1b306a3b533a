"""Reads records of a topic again, by their offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from confluent_kafka import Consumer, Message, TopicPartition

SILENT_S = 10.0
"""A topic that is silent for so long has no more records."""


def messages_at(consumer: Consumer, topic: str, number: int, offsets: Collection[int]) -> Iterator[Message]:
    """Yields the records of a partition at *offsets*, in order.

    Records that are gone are left out. *consumer* joins no group.
    """
    wanted = set(offsets)
    first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=SILENT_S)
    wanted &= set(range(first, end)) if wanted else set()
    if not wanted:
        return
    consumer.assign([TopicPartition(topic, number, min(wanted))])
    while (message := consumer.poll(SILENT_S)) is not None:
        offset = message.offset()
        if message.error() is None and offset in wanted:
            yield message
        if offset is None or offset >= max(wanted):
            return
