"""Reads the newest records of every partition of a topic.

The number of records is bounded. No group is joined, nothing is committed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import Cluster
from tidemark.selection import names_in
from tidemark.stream.kafka.access import Refusals, list_topics, make_client
from tidemark.stream.kafka.client import no_answer

MOST_RECORDS = 2_000
"""Most records of a topic, over all of its partitions."""
MOST_S = 10.0
"""A sample ends after this time, with the records read by then."""
TIMEOUT_S = 10.0
"""Timeout for each answer of the broker."""
AT_ONCE = 500
OLDER = 4
"""Where the newest offsets of a partition have no record, this many times as many older ones are read next."""
QUIET = {"log_level": 0}
"""Silences the client's log: an unreachable broker becomes an error of ours."""


@dataclass(frozen=True)
class SampledRecord:
    """A record as its topic has it; *timestamp_ms* is Kafka's."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@dataclass(frozen=True)
class TopicSample:
    """The newest *records* of a topic by partition and offset.

    *ends* has the first and the next offset of each partition. The sample is *complete* if it did not end too early,
    and *whole* if it has every record.
    """

    topic: str
    ends: Mapping[int, tuple[int, int]]
    records: tuple[SampledRecord, ...]
    complete: bool
    whole: bool = False

    @property
    def there(self) -> int:
        """The number of records in the topic; unless the sample is whole, of its offsets.

        Compaction and transactions leave out offsets, so there may be fewer records.
        """
        return len(self.records) if self.whole else sum(end - first for first, end in self.ends.values())

    @property
    def why_empty(self) -> str:
        """Why it has no record, as part of a sentence about the topic."""
        if not self.complete:
            return "gave no record in time"
        return "has no committed record" if any(end > first for first, end in self.ends.values()) else "is empty"


class SampledCluster:
    """A Kafka *cluster* of which only metadata and records are read, each answer within *within_s* seconds."""

    def __init__(self, cluster: Cluster, within_s: float = TIMEOUT_S) -> None:
        self._cluster, self.address, self._refusals, self._within_s = cluster, cluster.bootstrap, Refusals(), within_s
        self._admin = make_client(AdminClient, cluster, {**cluster.client, **QUIET, "error_cb": self._refusals})

    @cached_property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each topic.

        Raises:
            InvalidArgument: no broker answers.
            LoginDenied: the cluster refuses the login.
        """
        try:
            topics = list_topics(self._admin, self._cluster, self._refusals, self._within_s).topics
        except KafkaException as error:
            msg = f"{self.address}: {no_answer(error, self._within_s)}; start it, or correct the address"
            raise InvalidArgument(msg) from error
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def rights(self, topic: str) -> frozenset[str] | None:
        """Returns the client's rights on *topic* (READ, …); None if not reported."""
        answers = self._admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=self._within_s
        )
        try:
            allowed = answers[topic].result(self._within_s).authorized_operations
        except KafkaException as error:
            refused = error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            return frozenset() if refused else None
        except TimeoutError:
            return None
        return None if allowed is None else frozenset(names_in(allowed))

    def sample(self, topic: str, *, most: int = MOST_RECORDS, within_s: float = MOST_S) -> TopicSample:
        """Reads at most *most* records of *topic*, equally many of each partition.

        It reads those that come *within_s*.

        Raises:
            InvalidArgument: the topic may not be read.
        """
        group = {"group.id": "tidemark-sample", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = make_client(Consumer, self._cluster, {**self._cluster.client, **QUIET, **group})
        try:
            return self._sampled(consumer, topic, most, time.monotonic() + within_s)
        except KafkaException as error:
            msg = f"topic {topic} at {self.address}: cannot be read: {error.args[0].str()}; {ask_for('READ', topic)}"
            raise InvalidArgument(msg) from error
        finally:
            consumer.close()

    def _sampled(self, consumer: Consumer, topic: str, most: int, until: float) -> TopicSample:
        numbers = range(self.partitions[topic])
        ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=self._within_s) for n in numbers}
        each = max(1, most // max(1, len(ends)))
        first_read = {n: end for n, (_, end) in ends.items()}
        wanted = {n: (max(first, end - each), end) for n, (first, end) in ends.items() if end > first}
        records: list[SampledRecord] = []
        unread: set[int] = set()
        while wanted and not unread:
            read, unread = _read(consumer, topic, wanted, until)
            records += read
            first_read |= {n: start for n, (start, _) in wanted.items()}
            # The newest offsets may be those of aborted transactions alone, so older ones are read then.
            empty = {*wanted} - {record.partition for record in read}
            older: dict[int, tuple[int, int]] = {}
            for n, (start, end) in wanted.items():
                if n in empty and start > ends[n][0]:
                    older[n] = max(ends[n][0], start - OLDER * (end - start)), start
            wanted = older
        newest: list[SampledRecord] = []
        for number in numbers:
            own = sorted((record for record in records if record.partition == number), key=lambda record: record.offset)
            newest += own[-each:]
        has_all = first_read == {n: first for n, (first, _) in ends.items()}
        whole = has_all and not unread and len(newest) == len(records)
        return TopicSample(topic, ends, tuple(newest), complete=not unread, whole=whole)


def _read(
    consumer: Consumer, topic: str, ranges: Mapping[int, tuple[int, int]], until: float
) -> tuple[list[SampledRecord], set[int]]:
    """Reads the records of *topic* in *ranges* of offsets, by partition.

    Returns them, and the partitions of which not all were read *until* then, by the monotonic clock.
    """
    consumer.assign([TopicPartition(topic, n, start) for n, (start, _) in ranges.items()])
    records: list[SampledRecord] = []
    unread = set(ranges)
    while unread and (seconds_left := until - time.monotonic()) > 0:
        for message in consumer.consume(AT_ONCE, timeout=min(1.0, seconds_left)):
            number, offset = message.partition() or 0, message.offset() or 0
            if (error := message.error()) is not None:
                # The end of a partition is an event of its own: its last offsets may be marks of transactions.
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                unread.discard(number)
                continue
            if offset < ranges[number][1]:
                records.append(_record(message, number, offset))
            if offset >= ranges[number][1] - 1:
                unread.discard(number)
    return records, unread


def ask_for(right: str, topic: str) -> str:
    """Returns the remedy where a *right* is missing."""
    return f"ask the administrator of that cluster for the right {right} on topic {topic}"


def _record(message: Message, partition: int, offset: int) -> SampledRecord:
    headers = tuple((name, value.encode() if isinstance(value, str) else value) for name, value in _headers(message))
    return SampledRecord(partition, offset, message.key(), message.value(), headers, message.timestamp()[1])


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    return message.headers() or []  # type: ignore[return-value]
