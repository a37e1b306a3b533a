"""Asks brokers for partitions, offsets and limits, and sends records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import polars as pl
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicDescription,
)

from tidemark.clock import Clock
from tidemark.errors import InvalidArgument, InvalidSpec, TidemarkError
from tidemark.kernels.records.limits import TopicLimits
from tidemark.kernels.records.marks import MARK, mark_text
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import Clusters, topic_command
from tidemark.model.project.kafka_security import ClientSettings, Protocol
from tidemark.model.project.rights import MissingRight, Operation
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.progress import TopicPartition
from tidemark.semantics.tracing import span_of_batch
from tidemark.stream.kafka.access import (
    NEWEST_LOCAL,
    LoginDenied,
    LoginInterrupted,
    Refusals,
    list_topics,
    login_refusal,
    make_client,
    missing_from,
    missing_right_of,
    unauthorized_group,
    unauthorized_topic,
)
from tidemark.stream.kafka.broker import SeveralTopics, TopicState
from tidemark.stream.kafka.groups import Offsets
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.kafka.publishing import TIMEOUT_S, KafkaTopicWriter, RecordSender

log = logging.getLogger("tidemark.stream")

ASKED_EVERY_MS = 60_000
"""A sink's topic is asked again for limits and partitions after this, because they may have changed."""
NO_TOPIC_ID = "A" * 22
"""The id of topics without one: a UUID of zeros."""
UNLIMITED_BYTES = 1_000_000_000
"""Largest request of a client in bytes, for a topic whose limit is not known: it refuses too large records itself."""


class MissingTopic(TidemarkError):
    """Raised when a topic does not exist."""


_Topic = tuple[str, str]
"""Cluster and name of a topic."""
T = TypeVar("T")


def _topic(sink: Sink) -> _Topic:
    return sink.kafka, sink.topic or ""


def no_answer(error: KafkaException, within_s: float) -> str:
    """Describes that no broker answered within *within_s* seconds."""
    return f"no Kafka broker answered within {within_s:g} s ({error.args[0].str()})"


class KafkaBroker:
    """Talks to the brokers of *clusters* for a stream of *topology*.

    Clusters have the names that sources and sinks use. Records are published at least once: a batch that is run again
    sends them again with the same batch and sequence in their header `tidemark-id` (kernels/records/headers.py), so
    that readers drop them. The time of sending is by *clock* (epoch ms).
    """

    def __init__(self, clusters: Clusters, topology: str, sub_topology: str, clock: Clock) -> None:
        self._clusters = clusters
        # Secrets are looked up once: a file that is rewritten while the stream runs stops no batch.
        self._client_settings = {name: each.client for name, each in clusters.items()}
        self._refusals = {name: Refusals() for name in clusters}
        self._admins: dict[str, AdminClient] = {}
        for name, each in clusters.items():
            settings = {**self._client_settings[name], "error_cb": self._refusals[name]}
            self._admins[name] = make_client(AdminClient, each, settings)
        self._producers: dict[_Topic, tuple[ClientSettings, Producer]] = {}
        self._limits: dict[_Topic, tuple[int, TopicLimits]] = {}
        self._counts: dict[_Topic, tuple[int, int]] = {}
        self._topology, self._writer, self._clock = topology, f"{topology}/{sub_topology}", clock

    def refuse_silence(self) -> None:
        """Raises InvalidArgument if the brokers of a cluster do not answer."""
        for name, admin in self._admins.items():
            try:
                list_topics(admin, self._clusters[name], self._refusals[name], TIMEOUT_S)
            except KafkaException as error:
                reason = no_answer(error, TIMEOUT_S)
                where = f"{self._clusters[name].bootstrap} (cluster {name})"
                msg = f"--bootstrap {where}: {reason}; start the broker, correct the address, or leave out --bootstrap"
                raise InvalidArgument(msg) from error

    def refuse_denied(self) -> None:
        """Raises LoginDenied if a cluster refuses the login of this process."""
        for name, admin in self._admins.items():
            cluster = self._clusters[name]
            if cluster.security.protocol is not Protocol.PLAINTEXT:
                try:
                    list_topics(admin, cluster, self._refusals[name], TIMEOUT_S)
                except LoginInterrupted as error:
                    log.warning("%s", error)
                except KafkaException:
                    pass  # brokers that do not answer are no error here: Spark waits for them

    def silent(self) -> dict[str, str]:
        """Returns the address of each cluster of which no broker answers, by name; a refused login is an answer."""
        # All are asked before the first answer is awaited.
        asked = {name: admin.describe_cluster(request_timeout=TIMEOUT_S) for name, admin in self._admins.items()}
        silent: dict[str, str] = {}
        for name, answer in asked.items():
            try:
                answer.result()
            except KafkaException as error:
                self._admins[name].poll(0)  # it calls error_cb
                if error.args[0].code() <= NEWEST_LOCAL and self._refusals[name].last_reason is None:
                    silent[name] = self._clusters[name].bootstrap
            else:
                self._refusals[name].forget()
        return silent

    def explained(self, error: Exception, of_stream: Iterable[Source]) -> Exception:
        """Returns *error*, or a clearer one if a cluster denied something to Spark.

        *of_stream* are the sources of the stream.
        """
        sources = [o for o in of_stream if o.topic and o.kafka in self._clusters]
        if topic := unauthorized_topic(error):
            source = next((o for o in sources if o.reads(topic)), None)
            if source is None:
                return error
            try:
                self.topic(source.alone(topic))
            except MissingRight as missing:
                return missing
            except (KafkaException, TidemarkError):
                return error
            return missing_from(self._clusters[source.kafka], Operation.READ, f"topic {topic}")
        names = {source.kafka for source in sources}
        # Java's error does not name its cluster, so it is clear only where there is one.
        if len(names) == 1:
            (name,) = names
            if group := unauthorized_group(error):
                return missing_from(self._clusters[name], Operation.READ, f"group {group}")
            if reason := login_refusal(error):
                return LoginDenied.by(self._clusters[name], reason)
        return error

    def topic(self, at: Source | Sink) -> TopicState:
        """Returns the topic of *at* as it is now.

        Raises:
            LoginDenied: the cluster refuses the login.
            MissingRight: the cluster does not grant the right to see it.
            TidemarkError: the topic does not exist.
        """
        if isinstance(at, Source) and at.reads_several:
            return self._several(at)
        (description,) = self._asked(at, [at.topic or ""]).values()
        return self._state(at, description)

    def _asked(self, at: Source | Sink, names: list[str]) -> Mapping[str, Future[TopicDescription]]:
        """Asks the cluster of *at* about the topics *names*, in one request."""
        if not names:
            return {}
        # One answer has the id and the number of partitions, so both are of the same topic.
        return self._admins[at.kafka].describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)

    def _state(self, at: Source | Sink, asked: Future[TopicDescription]) -> TopicState:
        """Awaits the answer that describes the topic of *at*."""
        try:
            description = asked.result()
        except KafkaException as error:
            self._admins[at.kafka].poll(0)  # it calls error_cb
            self._refusals[at.kafka].raise_unless_answered(error.args[0], self._clusters[at.kafka])
            raise self._not_described(error.args[0], at) from error
        self._refusals[at.kafka].forget()
        topic_id = str(description.topic_id)
        return TopicState(None if topic_id == NO_TOPIC_ID else topic_id, len(description.partitions))

    def _several(self, source: Source) -> SeveralTopics:
        """Returns the topics whose partitions *source* has numbered.

        Before its first batch *source* has numbered no partition. Then the topics of its list are returned, and a
        missing topic is an error, as it is for a source of one topic.
        """
        states: dict[str, TopicState] = {}
        # A topic that is not in the list any more keeps its numbers.
        names = sorted({each.topic for each in source.topic_partitions if source.reads(each.topic)} or source.topics)
        for name, asked in self._asked(source, names).items():
            try:
                states[name] = self._state(source.alone(name), asked)
            except MissingTopic:
                if not source.topic_partitions:
                    raise
        ids: dict[int, str | None] = {}
        for number, (topic, partition) in enumerate(source.topic_partitions):
            if topic in states and states[topic].has(partition):
                ids[number] = states[topic].id
        return SeveralTopics(None, len(source.topic_partitions), ids)

    def _not_described(self, error: KafkaError, at: Source | Sink) -> Exception:
        """Returns the error for the topic of *at*, which the cluster did not describe: it answered *error*."""
        topic = at.topic or ""
        if missing := missing_right_of(error.code(), topic, self._clusters[at.kafka], Operation.DESCRIBE):
            return missing
        if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            return KafkaException(error)
        address, create = self._clusters[at.kafka].bootstrap, f"create it first: `{topic_command(topic)}`"
        msg = f"topic {topic!r} at {address}: {error.str()}; {create} at the broker of this machine"
        return MissingTopic(msg)

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Returns the earliest and latest offset of each of *partitions*.

        The latest is the last stable offset, unless uncommitted records are read.
        """
        # Both requests are under way before the first answer is awaited.
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        earliest, latest = [self._asked_offsets(source, partitions, spec) for spec in specs]
        first, end = self._listed(source, earliest), self._listed(source, latest)
        return {
            number: (first[source.topic_partition(number)], end[source.topic_partition(number)])
            for number in partitions
        }

    def latest(self, source: Source, partitions: Sequence[int], *, committed: bool = True) -> Mapping[int, int]:
        """Returns the latest offset of each of *partitions*, as `offsets` does.

        If not *committed*, it is the offset after the newest record of any transaction.
        """
        spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        end = self._listed(source, self._asked_offsets(source, partitions, spec, committed=committed))
        return {number: end[source.topic_partition(number)] for number in partitions}

    def starts(self, source: Source) -> dict[TopicPartition, int]:
        """Returns the offset at which *source* begins in each partition, as its `starting_offsets` say.

        If they are an instant, a partition begins with its first record of that timestamp or a later one, or at its end
        if it has none.
        """
        starts: dict[TopicPartition, int] = {}
        for of_one_topic in source.each_topic(self.existing(source)):
            name, numbers = of_one_topic.topic or "", range(self.topic(of_one_topic).partitions)
            offsets = {TopicPartition(name, number): end for number, end in self.latest(of_one_topic, numbers).items()}
            if isinstance(source.starting_offsets, int):
                spec = OffsetSpec.for_timestamp(source.starting_offsets)
                found = self._listed(of_one_topic, self._asked_offsets(of_one_topic, numbers, spec))
                offsets |= {partition: offset for partition, offset in found.items() if offset >= 0}
            starts |= offsets
        return starts

    def existing(self, source: Source) -> list[str]:
        """Returns the topics that a pattern of *source* may match."""
        if source.topic_pattern is None:
            return []
        name = source.kafka
        return [*list_topics(self._admins[name], self._clusters[name], self._refusals[name], TIMEOUT_S).topics]

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns the last stable offset of those of *partitions* that have records of an open transaction behind it.

        There are none if uncommitted records are read.
        """
        if self._clusters[source.kafka].reads_uncommitted:
            return {}
        # The end is asked for first, so that records that come meanwhile do not look like those of an open transaction.
        ends = self.latest(source, partitions, committed=False)
        stable = self.latest(source, partitions)
        return {number: offset for number, offset in stable.items() if offset < ends[number]}

    def _asked_offsets(
        self, source: Source, partitions: Sequence[int], spec: OffsetSpec, *, committed: bool = True
    ) -> Mapping[KafkaTopicPartition, Future[ListOffsetsResultInfo]]:
        """Asks for an offset of each of *partitions*.

        Kafka's latest offset is the one after the newest record. If *committed*, and unless uncommitted records are
        read, it is the last stable offset instead: the offset of the first record of an open transaction.
        """
        # A pattern may match no topic yet, and Kafka's client refuses to ask for nothing.
        if not partitions:
            return {}
        asked = [KafkaTopicPartition(*source.topic_partition(number)) for number in partitions]
        if committed and not self._clusters[source.kafka].reads_uncommitted:
            level = IsolationLevel.READ_COMMITTED
        else:
            level = IsolationLevel.READ_UNCOMMITTED
        return self._admins[source.kafka].list_offsets(
            dict.fromkeys(asked, spec), isolation_level=level, request_timeout=TIMEOUT_S
        )

    def _listed(
        self, source: Source, answers: Mapping[KafkaTopicPartition, Future[ListOffsetsResultInfo]]
    ) -> dict[TopicPartition, int]:
        """Awaits the offsets of partitions of *source*."""
        offsets: dict[TopicPartition, int] = {}
        for asked, answer in answers.items():
            try:
                offsets[TopicPartition(asked.topic, asked.partition)] = answer.result().offset
            except KafkaException as error:
                cluster, code = self._clusters[source.kafka], error.args[0].code()
                missing = missing_right_of(code, asked.topic, cluster, Operation.DESCRIBE)
                raise missing or error from error
        return offsets

    def write_group(self, group: str, offsets: Offsets) -> list[str]:
        """Writes *offsets* into the consumer group *group* of each cluster.

        Returns why clusters have refused some, for people; the list is empty if all are written.
        """
        # All clusters are asked before the first answer is awaited, so that a silent one delays no other.
        asked = {
            name: self._asked_to_write(group, name, of_cluster) for name, of_cluster in offsets.items() if of_cluster
        }
        reasons: list[str] = []
        for name, answer in asked.items():
            try:
                written = answer.result().topic_partitions or []
            except KafkaException as error:
                reasons.append(self._not_written(error.args[0], group, name))
            else:
                self._refusals[name].forget()
                failed = [self._not_written(each.error, group, name, each.topic) for each in written if each.error]
                reasons += dict.fromkeys(failed)
        return reasons

    def _asked_to_write(
        self, group: str, cluster: str, offsets: Mapping[TopicPartition, int]
    ) -> Future[ConsumerGroupTopicPartitions]:
        positions = [KafkaTopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, positions)]
        return self._admins[cluster].alter_consumer_group_offsets(request, request_timeout=TIMEOUT_S)[group]

    def _not_written(self, error: KafkaError, group: str, name: str, topic: str = "") -> str:
        """Returns why the cluster *name* answered *error* to offsets of *group*, and of *topic* if it named one."""
        cluster = self._clusters[name]
        self._admins[name].poll(0)  # it calls error_cb
        try:
            self._refusals[name].raise_unless_answered(error, cluster)
        except (LoginDenied, LoginInterrupted) as refused:
            return str(refused)
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return str(missing_from(cluster, Operation.READ, f"group {group}"))
        if missing := missing_right_of(error.code(), topic, cluster, Operation.READ):
            return str(missing)
        where = f"topic {topic} of kafka.{name}" if topic else f"kafka.{name}"
        return f"{where}: {error.str()}"

    def limits(self, sink: Sink) -> TopicLimits:
        """Returns the limits of the topic of *sink*, at most ASKED_EVERY_MS old.

        A setting that the broker does not return is no limit.
        """
        return self._lately(self._limits, sink, lambda before: self._current_limits(sink, before or TopicLimits()))

    def _lately(self, answers: dict[_Topic, tuple[int, T]], sink: Sink, ask: Callable[[T | None], T]) -> T:
        """Returns what *ask* has answered for the topic of *sink*, at most ASKED_EVERY_MS ago.

        An older answer is renewed: *ask* gets it, or None at first.
        """
        topic = _topic(sink)
        asked_at_ms, answer = answers.get(topic, (None, None))
        if asked_at_ms is None or self._clock() - asked_at_ms >= ASKED_EVERY_MS:
            answers[topic] = self._clock(), ask(answer)
        return answers[topic][1]

    def _current_limits(self, sink: Sink, before: TopicLimits) -> TopicLimits:
        """Asks the broker for the limits of the topic of *sink*.

        Returns:
            The limits *before* if the broker does not return its settings.
        """
        settings = self._settings(sink)
        if settings is None:
            return before
        # A topic that stamps records itself does not check their timestamps.
        by_broker = settings.get("message.timestamp.type") == "LogAppendTime"
        past, future = (None if by_broker else settings.get(f"message.timestamp.{side}.max.ms") for side in _SIDES)
        return TopicLimits(
            max_bytes=_number(settings.get("max.message.bytes")), before_ms=_number(past), after_ms=_number(future)
        )

    def _settings(self, sink: Sink) -> dict[str, str] | None:
        """Returns the settings of the topic of *sink*; None if the broker does not return them, or cannot be asked."""
        resource, admin = ConfigResource(ConfigResource.Type.TOPIC, sink.topic or ""), self._admins.get(sink.kafka)
        if admin is None:
            return None
        try:
            settings = admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            log.warning("topic %s: cannot read its settings: %s", sink.topic, error)
            return None
        return {name: entry.value for name, entry in settings.items()}

    def publish(self, outgoing: OutgoingRows) -> list[pl.DataFrame]:
        """Sends *outgoing* and waits until the broker has it.

        Returns:
            Rows of `dead_letters` for the records that the topic refused.
        """
        publishing = self.publishing(outgoing)
        producer, refusals = self._producer(outgoing.sink), self._refusals[outgoing.sink.kafka]
        return publishing.send(producer, range(publishing.partitions), refusals)

    def publishing(self, outgoing: OutgoingRows) -> KafkaTopicWriter:
        """Returns a callable that sends *outgoing* in tasks."""
        sink = outgoing.sink
        partitions = self._lately(self._counts, sink, lambda _: self.topic(sink).partitions)
        span = span_of_batch(self._writer, outgoing.epoch, outgoing.batch_id, outgoing.decided_at_ms)
        return KafkaTopicWriter(
            outgoing=outgoing,
            partitions=partitions,
            tasks=min(outgoing.tasks, partitions),
            cluster=self._clusters[sink.kafka],
            client=self._client(sink),
            writer=self._writer,
            hop=f"{self._topology}/{sink.name}:{self._clock()}",
            traceparent=span.traceparent if sink.traces else None,
        )

    def mark(self, sink: Sink, watermark_ms: int | None, *, idle: bool) -> None:
        """Sends a mark of time to each partition of *sink*'s topic, behind all records published so far."""
        cluster, refusals = self._clusters[sink.kafka], self._refusals[sink.kafka]
        sending = RecordSender(self._producer(sink), sink.topic or "", cluster, refusals)
        headers: list[tuple[str, str | bytes | None]] = [(MARK, mark_text(self._writer, watermark_ms, idle=idle))]
        for number in range(self.topic(sink).partitions):
            sending.send(number, None, None, number, self._clock(), headers)
        # A topic that became compacted refuses marks, for example. A mark is not a record, so nothing is lost.
        if refused := sending.refused():
            log.warning("topic %s rejects marks of time: %s", sink.topic, next(iter(refused.values())))

    def is_compacted(self, sink: Sink) -> bool:
        """Returns True if the topic of *sink* is compacted, and False if the broker does not return its settings."""
        # A compacted topic keeps the newest record of each key, and refuses records without a key.
        return "compact" in (self._settings(sink) or {}).get("cleanup.policy", "")

    def _producer(self, sink: Sink) -> Producer:
        """Returns the producer for *sink*; it changes with the topic's limit."""
        topic, client = _topic(sink), self._client(sink)
        # librdkafka takes settings when a producer is made, so another limit needs another producer.
        if topic not in self._producers or self._producers[topic][0] != client:
            settings = {**client, "error_cb": self._refusals[sink.kafka]}
            self._producers[topic] = client, make_client(Producer, self._clusters[sink.kafka], settings)
        return self._producers[topic][1]

    def _client(self, sink: Sink) -> ClientSettings:
        """Returns the settings of a producer for *sink* whose batches are no larger than the topic accepts."""
        most = self.limits(sink).max_bytes or UNLIMITED_BYTES
        # librdkafka accepts `message.max.bytes` from 1,000 to 1,000,000,000.
        return {
            **self._client_settings[sink.kafka],
            # Retries of the client neither repeat nor reorder records.
            "enable.idempotence": True,
            # All records of a batch are there at once, so waiting for more only delays them.
            "linger.ms": 0,
            "message.max.bytes": min(max(most, 1_000), UNLIMITED_BYTES),
            # The broker's limit is for whole batches. 1,000,000 bytes is librdkafka's default.
            "batch.size": min(most, 1_000_000),
        }


def refuse_marks_in_compacted(topology: Topology, sub: SubTopology, broker: KafkaBroker) -> None:
    """Raises InvalidSpec with all mistakes of `marks_in_compacted`."""
    if mistakes := [*marks_in_compacted(topology, sub, broker)]:
        raise InvalidSpec("\n".join(map(str, mistakes)))


def marks_in_compacted(topology: Topology, sub: SubTopology, broker: KafkaBroker) -> Iterator[InvalidSpec]:
    """Yields a mistake for each sink with marks whose topic refuses them."""
    for sink in sub.sinks:
        if sink.marks and broker.is_compacted(sink):
            problem = f"is true, but topic {sink.topic!r} is compacted and rejects records without a key"
            yield InvalidSpec.at(topology.file, f"operators.{sink.name}.marks", problem, "leave it out")


_SIDES = ("before", "after")


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
