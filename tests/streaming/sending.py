"""Sends a feed: each record when its instant has come, that many times as fast as time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Producer

DELIVERED_WITHIN_S = 60


class Sent(NamedTuple):
    """A record of a feed: when it is sent, in its own time, and what; `timestamp_ms` is to be Kafka's own."""

    at_ms: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def send(
    feed: Iterable[Sent], address: str, *, speed: float, elsewhere: Mapping[str, Callable[[Sent], None]] | None = None
) -> None:
    """Send *feed*, whose records come in the order of their instants; return when Kafka has acknowledged all.

    What is for a "topic" in *elsewhere* is given to that function, after all that was sent before is acknowledged.
    """
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "acks": "all", "linger.ms": 0})
    began_s, first_ms = time.monotonic(), None
    for sent in feed:
        first_ms = sent.at_ms if first_ms is None else first_ms
        due_s = began_s + (sent.at_ms - first_ms) / 1000 / speed
        while (early_s := due_s - time.monotonic()) > 0:
            producer.poll(early_s)
        if elsewhere and sent.topic in elsewhere:
            assert producer.flush(DELIVERED_WITHIN_S) == 0
            elsewhere[sent.topic](sent)
        else:
            producer.produce(sent.topic, sent.value, sent.key, sent.partition, timestamp=sent.timestamp_ms)
    assert producer.flush(DELIVERED_WITHIN_S) == 0
