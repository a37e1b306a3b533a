"""Describes what a contest asks of every peer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import polars as pl
from confluent_kafka import Consumer, KafkaError, TopicPartition
from contests.workload import PARTITIONS, TYPES, Expected

PROJECT = Path(__file__).parents[3]
WORK = PROJECT / ".contests"
"""Folder with jars, the broker and what peers write."""
JAVA = ("java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
ANSWER_WITHIN_S = 30


class Promise(StrEnum):
    """Promises of a peer about its rows after a crash."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"
    NONE = "none"


@dataclass(frozen=True)
class Place:
    """Folder, topics and name of one run."""

    home: Path
    address: str
    input: str
    output: str
    group: str


class Peer(ABC):
    """A system in a contest, and how it runs."""

    name: str
    title: str
    promise: Promise
    settings: ClassVar[Mapping[str, str]]
    expected = Expected.CHANGES
    has_state = True

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Returns the versions of its parts."""

    @abstractmethod
    def command(self, place: Place) -> list[str]:
        """Returns the command that starts it, or starts it again."""

    @abstractmethod
    def progress(self, place: Place) -> dict[int, int]:
        """Returns the ends of its durable records, by partition."""

    @abstractmethod
    def emitted(self, place: Place) -> pl.DataFrame:
        """Returns its rows, as TYPES; those of a key in order."""


class KafkaPeer(Peer):
    """A peer that writes to a topic and commits offsets."""

    def progress(self, place: Place) -> dict[int, int]:
        return committed(place)

    def emitted(self, place: Place) -> pl.DataFrame:
        # Per partition in the order of offsets, and a key is in one partition.
        text = b"\n".join(values_of(place.address, place.output))
        return pl.read_ndjson(text, schema=TYPES) if text else pl.DataFrame(schema=TYPES)


def committed(place: Place) -> dict[int, int]:
    """Returns the offsets that the group of *place* has committed."""
    # Else an open transaction of a killed peer would delay the answer, and so its restart, until the broker aborts it.
    settings = {"isolation.level": "read_uncommitted", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": place.address, "group.id": place.group, **settings})
    try:
        parts = [TopicPartition(place.input, number) for number in range(PARTITIONS)]
        offsets = consumer.committed(parts, timeout=ANSWER_WITHIN_S)
        return {each.partition: each.offset for each in offsets if each.offset >= 0}
    finally:
        consumer.close()


def ends_of(address: str, topic: str) -> dict[int, int]:
    """Returns the end of each partition of *topic*."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "ends", "log_level": 0})
    try:
        parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {each.partition: consumer.get_watermark_offsets(each, timeout=ANSWER_WITHIN_S)[1] for each in parts}
    finally:
        consumer.close()


def values_of(address: str, topic: str) -> list[bytes]:
    """Returns all committed values of *topic*, up to its last stable offset."""
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, "group.id": "values", "log_level": 0, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    open_parts = set(values)
    while open_parts:
        messages = consumer.consume(100_000, 1.0)
        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None:
                values[partition].append(message.value())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_parts.discard(partition)
    consumer.close()
    return [value for part in values.values() for value in part]


def jar_versions(folder: Path, *artifacts: str) -> dict[str, str]:
    """Returns the versions of *artifacts* in a folder of jars."""
    return {name: next(folder.glob(f"{name}-[0-9]*.jar")).stem.removeprefix(f"{name}-") for name in artifacts}


def package_versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python *packages*."""
    return {name: version(name) for name in packages}
