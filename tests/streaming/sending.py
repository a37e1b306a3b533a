"""Sends feeds faster than real time, or numbered records at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Producer

DELIVERED_WITHIN_S = 60


NOON_MS = 1_400_000_000_000


def source_of_numbers(name: str, topic: str) -> str:
    """Returns the source *name* of the stream `all`, which reads what `send_numbers` sends to *topic*."""
    return f"""
[operators.{name}]
kind = "source"
sub_topology = "all"
topic = "{topic}"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 min"
"""


def passing(name: str, topic: str) -> str:
    """Returns a topology *name* that copies *topic* to the table `kept`.

    It has one driver, and numbered records.
    """
    return f"""
name = "{name}"
window = "5 s"
trigger = "1 s"
{source_of_numbers("events", topic)}
[operators.kept]
kind = "sink"
input = "events"
table = "kept"
"""


def send_numbers(address: str, topic: str, *numbers: int, partition: int = 0) -> None:
    """Sends *numbers* to a *partition* of *topic* and waits for acknowledgement."""
    producer = Producer({"bootstrap.servers": address})
    for n in numbers:
        producer.produce(topic, json.dumps({"n": n, "at": NOON_MS + n}), "k", partition)
    assert producer.flush(30) == 0


class WriterPosition(NamedTuple):
    """A feed record with its sending time in feed time.

    `timestamp_ms` is to be Kafka's own.
    """

    at_ms: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def send(
    feed: Iterable[WriterPosition],
    address: str,
    *,
    speed: float,
    elsewhere: Mapping[str, Callable[[WriterPosition], None]] | None = None,
) -> None:
    """Sends *feed* in order and returns when Kafka has acknowledged all.

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
