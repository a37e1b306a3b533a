"""The brokers beside Spark's own reading: partitions and offsets to decide idleness by, and records for topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from tidemark.clock import Clock
from tidemark.errors import InvalidArgument, InvalidSpec, TidemarkError
from tidemark.kernels.headers import headers_to_send
from tidemark.kernels.limits import Limits
from tidemark.kernels.marks import MARK, mark_text
from tidemark.spec.connections import Clusters, topic_command
from tidemark.spec.operators import Sink, Source
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.broker import Refused
from tidemark.stream.encoding import to_send

log = logging.getLogger("tidemark.stream")

TIMEOUT_S = 10.0
ASKED_EVERY_MS = 60_000
"""The limits of a topic are requested again after this time, ms: they may change while a stream runs."""
UNLIMITED_BYTES = 1_000_000_000
"""Bytes that a client may send at most; a topic with an unknown limit refuses larger records itself."""
OF_A_RECORD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""What a broker refuses one record for, and with it those that were sent together with it."""


_Topic = tuple[str, str]
"""Cluster and name of a topic."""


def _topic(sink: Sink) -> _Topic:
    return sink.kafka, sink.topic or ""


def no_answer(error: KafkaException, within_s: float) -> str:
    """Return the words for a broker that answered a request with *error* within *within_s*."""
    return f"no Kafka broker answers there within {within_s:g} s ({error.args[0].str()})"


class PublishError(TidemarkError):
    """Raised when the broker did not take a record; the batch is run again and sends it again."""


class KafkaBroker:
    """The brokers of *clusters*, by the name that sources and sinks use, for one stream of *topology*.

    Records are published at least once: a batch that is run again sends them again, with the same batch and sequence
    in their header `tidemark-id` (kernels/headers.py), by which readers drop them. *clock* (epoch ms) tells when they
    were sent on.
    """

    def __init__(self, clusters: Clusters, topology: str, sub_topology: str, clock: Clock) -> None:
        # The group is never joined: these clients only ask for metadata and offsets.
        self._consumers = {
            name: Consumer({**each.client, "group.id": "tidemark-offsets"}) for name, each in clusters.items()
        }
        self._admins = {name: AdminClient(each.client) for name, each in clusters.items()}
        self._clusters = clusters
        self._producers: dict[_Topic, tuple[int, Producer]] = {}
        self._limits: dict[_Topic, tuple[int, Limits]] = {}
        self._topology, self._writer, self._clock = topology, f"{topology}/{sub_topology}", clock
        self._sent: dict[tuple[_Topic, int], int] = {}

    def refuse_silence(self) -> None:
        """Raise InvalidArgument unless the brokers answer."""
        for name, admin in self._admins.items():
            try:
                admin.list_topics(timeout=TIMEOUT_S)
            except KafkaException as error:
                seen = no_answer(error, TIMEOUT_S)
                where = f"{self._clusters[name].bootstrap} (cluster {name})"
                msg = f"--bootstrap {where}: {seen}; start it, correct the address, or leave it out"
                raise InvalidArgument(msg) from error

    def partitions(self, at: Source | Sink) -> int:
        """How many partitions the topic of *at* has; raises TidemarkError when there is no such topic."""
        topic = at.topic or ""
        found = self._consumers[at.kafka].list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None:
            address = self._clusters[at.kafka].bootstrap
            create = f"create it first: `{topic_command(topic)}`"
            msg = f"topic {topic!r} at {address}: {found.error.str()}; {create} at the broker of this machine"
            raise TidemarkError(msg)
        return len(found.partitions)

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Of each of *partitions* of *source* the earliest offset and the one after its newest record."""
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        earliest, latest = (self._listed(source, partitions, spec) for spec in specs)
        return {number: (earliest[number], latest[number]) for number in partitions}

    def _listed(self, source: Source, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        """The offset of each of *partitions* by *spec*: one request for all of them."""
        places = {TopicPartition(source.topic or "", number): spec for number in partitions}
        answers = self._admins[source.kafka].list_offsets(places, request_timeout=TIMEOUT_S)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    def limits(self, sink: Sink) -> Limits:
        """What the topic of *sink* takes, asked every ASKED_EVERY_MS; what the broker does not tell is no limit."""
        topic = _topic(sink)
        asked_at_ms, known = self._limits.get(topic, (None, Limits()))
        if asked_at_ms is None or self._clock() - asked_at_ms >= ASKED_EVERY_MS:
            self._limits[topic] = self._clock(), self._asked(sink, known)
        return self._limits[topic][1]

    def _asked(self, sink: Sink, known: Limits) -> Limits:
        """The limits of the topic of *sink* as the broker tells them; those *known* where it does not."""
        said = self._settings(sink)
        if said is None:
            return known
        by_broker = said.get("message.timestamp.type") == "LogAppendTime"
        before, after = (None if by_broker else said.get(f"message.timestamp.{side}.max.ms") for side in _SIDES)
        return Limits(
            max_bytes=_number(said.get("max.message.bytes")), before_ms=_number(before), after_ms=_number(after)
        )

    def _settings(self, sink: Sink) -> dict[str, str] | None:
        """The settings of the topic of *sink*; None where the broker does not tell, or is not known."""
        resource, admin = ConfigResource(ConfigResource.Type.TOPIC, sink.topic or ""), self._admins.get(sink.kafka)
        if admin is None:
            return None
        try:
            settings = admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            log.warning("topic %s: the broker does not tell its settings: %s", sink.topic, error)
            return None
        return {name: entry.value for name, entry in settings.items()}

    def publish(self, sink: Sink, rows: pl.DataFrame, *, batch_id: int, epoch: int) -> list[Refused]:
        """Send *rows* to the topic of *sink* and return when the broker has all but those that it refused.

        A row that deletes its key has no value. One that does not fit the sink's schema is refused, and so is one that
        the topic does not take, for its size or its time; those that were sent together with it are sent again, alone.
        Raises PublishError for whatever else went wrong.
        """
        topic = _topic(sink)
        # Two sinks with one topic count on, or the records of the second would look like repeats of the first.
        first = self._sent.get((topic, batch_id), 0)
        hop = f"{self._topology}/{sink.name}:{self._clock()}"
        partitions = self.partitions(sink) if rows["_key"].null_count() or (rows["_key"] == "").any() else 1
        sending = _Sending(self._producer(sink), sink.topic or "")
        places = rows.select("_key", "_timestamp_ms", "_headers")

        def send(row: int, value: str | bytes | None, sequence: int) -> None:
            key, timestamp_ms, received = places.row(row)
            id_ = f"{self._writer}/{epoch}/{batch_id}/{sequence}"
            headers = headers_to_send(received, id_=id_, hop=hop)
            # Without a key a partition is drawn by lot, and a record that is sent again would be no repeat there.
            sending.send(row, value, key, -1 if key else (first + row) % partitions, timestamp_ms, headers)

        values, refused = to_send(sink, rows)
        for row, value in values.items():
            send(row, value, first + row)
        failed = sending.failed()
        sequence = first + rows.height
        for row in sorted(row for row, error in failed.items() if error.code() in OF_A_RECORD):
            # With a number of its own: records behind it have arrived, and it would be a repeat of one before these.
            send(row, values[row], sequence)
            sequence += 1
            again = sending.failed()
            if row not in again:
                del failed[row]
            elif again[row].code() in OF_A_RECORD:
                del failed[row]
                refused.append(Refused(row, again[row].str()))
        self._sent = {place: n for place, n in self._sent.items() if place[1] == batch_id and place[0] != topic}
        self._sent[topic, batch_id] = sequence
        if failed:
            errors = [error.str() for error in failed.values()][:1]
            most = f"all but {len(failed)} of {rows.height} records"
            msg = f"topic {sink.topic!r} took {most}: {errors}; the batch is sent again"
            raise PublishError(msg)
        return refused

    def mark(self, sink: Sink, watermark_ms: int | None, *, idle: bool) -> None:
        """Send a mark of time to each partition of the topic of *sink*, behind all that was published.

        A topic that takes none, as one that has been compacted since, goes without: a mark is no record.
        """
        topic = sink.topic or ""
        sending = _Sending(self._producer(sink), topic)
        headers: list[tuple[str, str | bytes | None]] = [(MARK, mark_text(self._writer, watermark_ms, idle=idle))]
        for number in range(self.partitions(sink)):
            sending.send(number, None, None, number, self._clock(), headers)
        failed = sending.failed()
        if others := [error.str() for error in failed.values() if error.code() not in OF_A_RECORD]:
            msg = f"topic {topic!r} did not take marks of time: {others[:1]}; they are sent again"
            raise PublishError(msg)
        if failed:
            log.warning("topic %s refuses marks of time: %s", topic, next(iter(failed.values())).str())

    def is_compacted(self, sink: Sink) -> bool:
        """Whether the topic of *sink* keeps the newest record of each key, as far as the broker tells.

        Such a topic takes no record without a key.
        """
        return "compact" in (self._settings(sink) or {}).get("cleanup.policy", "")

    def _producer(self, sink: Sink) -> Producer:
        """The producer for *sink*, which puts no more records together than its topic takes at once."""
        topic, most = _topic(sink), self.limits(sink).max_bytes or UNLIMITED_BYTES
        if topic not in self._producers or self._producers[topic][0] != most:
            settings = {
                **self._clusters[sink.kafka].client,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.max.bytes": min(max(most, 1_000), UNLIMITED_BYTES),
                "batch.size": min(most, 1_000_000),
            }
            self._producers[topic] = most, Producer(settings)
        return self._producers[topic][1]


def refuse_marks_in_compacted(topology: Topology, sub: SubTopology, broker: KafkaBroker) -> None:
    """Raise InvalidSpec with all of `marks_in_compacted`."""
    if mistakes := [*marks_in_compacted(topology, sub, broker)]:
        raise InvalidSpec("\n".join(map(str, mistakes)))


def marks_in_compacted(topology: Topology, sub: SubTopology, broker: KafkaBroker) -> Iterator[InvalidSpec]:
    """A mistake for each sink of *sub* that is to send marks of time to a topic that takes none."""
    for sink in sub.operators:
        if isinstance(sink, Sink) and sink.marks and broker.is_compacted(sink):
            problem = f"is true and topic {sink.topic!r} is compacted, which takes no record without a key"
            yield InvalidSpec.at(topology.file, f"operators.{sink.name}.marks", problem, "leave it out")


class _Sending:
    """Records on their way to *topic*, by their row."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._errors: dict[int, KafkaError] = {}

    def send(
        self,
        row: int,
        value: str | bytes | None,
        key: str | None,
        partition: int,
        timestamp_ms: int,
        headers: list[tuple[str, str | bytes | None]],
    ) -> None:
        """Hand *row* to the client; one whose queue is full takes it when there is room again."""

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._errors[row] = error

        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition, timestamp=timestamp_ms, headers=headers, on_delivery=delivered
                )
            except BufferError:
                self._producer.poll(0.1)
                continue
            except KafkaException as error:
                self._errors[row] = error.args[0]
            self._producer.poll(0)
            return

    def failed(self) -> dict[int, KafkaError]:
        """Once the broker has answered: the rows since the last call that it does not have, and why."""
        if unsent := self._producer.flush(TIMEOUT_S):
            msg = f"topic {self._topic!r}: the broker did not answer for {unsent} records; the batch is sent again"
            raise PublishError(msg)
        failed, self._errors = self._errors, {}
        return failed


_SIDES = ("before", "after")


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
