"""Reads records and ends of the topics of a topology's sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from types import MappingProxyType

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from tidemark.errors import InvalidArgument
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import DEFAULT, Clusters, without_address
from tidemark.model.project.kafka_security import ISOLATION, READ_UNCOMMITTED
from tidemark.semantics.progress import TopicPartition
from tidemark.stream.kafka.access import make_client
from tidemark.stream.kafka.messages import RECORD, SILENT_S, messages_at, record_of
from tidemark.stream.read.parsing import SchemasOf, no_schemas, parsed
from tidemark.trace.record import without_topic

_NO_SUCH_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
TopicPartitionOf = Callable[[Source, int], TopicPartition]
"""Returns topic and Kafka's number of an input partition."""


class Topics:
    """The topics of sources at *clusters*, by the name of a cluster.

    *schemas* gets the schemas of registries. *topic_partition_of* returns the topic and Kafka's number of an input
    partition, for sources over several topics. *stopped* says that the broker of this machine does not run, and how
    to start it; the cluster `default` is that broker if it has no other address.
    """

    def __init__(
        self,
        clusters: Clusters,
        topic_partition_of: TopicPartitionOf,
        schemas: SchemasOf = no_schemas,
        stopped: str | None = None,
    ) -> None:
        self._clusters, self._topic_partition_of, self._schemas, self._stopped = (
            clusters,
            topic_partition_of,
            schemas,
            stopped,
        )

    def why_unread(self, source: Source) -> str | None:
        """Returns why no record of *source* can be read again; None if its broker can be asked."""
        if source.topic is None or source.kafka in self._clusters:
            return without_topic(source)
        return self._stopped if self._stopped and source.kafka == DEFAULT else without_address(source.kafka)

    def __call__(self, source: Source, partition: int, offsets: Collection[int]) -> pl.DataFrame | None:
        """Returns the parsed rows of *source* at *offsets* of an input partition.

        Rows that are gone are left out. The result is None if the source reads no topic, or its cluster is not known.

        Raises:
            InvalidArgument: the broker does not answer.
        """
        if source.topic is None or source.kafka not in self._clusters:
            return None
        with closing(self._consumer(source)) as consumer:
            messages = self._messages(consumer, source, partition, offsets)
            records = [record_of(message, partition) for message in messages]
        raw = pl.DataFrame(records, schema=RECORD).with_columns(source=pl.lit(source.name))
        return parsed(source, raw, self._schemas(raw, [source]))

    def aborted(self, source: Source, partition: int, offsets: Collection[int]) -> Collection[int]:
        """Returns those of *offsets* of an input partition at which there is a record of an aborted transaction.

        No record is read at *offsets*. Without a topic, or a known cluster, none is found.

        Raises:
            InvalidArgument: the broker does not answer.
        """
        if source.topic is None or source.kafka not in self._clusters:
            return ()
        with closing(self._consumer(source, {ISOLATION: READ_UNCOMMITTED})) as consumer:
            return [message.offset() or 0 for message in self._messages(consumer, source, partition, offsets)]

    def why_without_record(self, source: Source, partition: int, offsets: Collection[int]) -> str:
        """Returns why no record is read at *offsets* of an input partition: each reason with its number of offsets.

        Raises:
            InvalidArgument: the broker does not answer.
        """
        aborted = len(self.aborted(source, partition, offsets))
        reasons = [f"{aborted} of aborted transactions"] if aborted else []
        if others := len(offsets) - aborted:
            # Only a topic that is compacted loses single records.
            may_be_deleted = self._is_compacted(source, partition) is not False
            deleted = ", or of records that compaction deleted" if may_be_deleted else ""
            reasons.append(f"{others} of marks of transactions{deleted}")
        return ", ".join(reasons)

    def _messages(
        self, consumer: Consumer, source: Source, partition: int, offsets: Collection[int]
    ) -> Iterator[Message]:
        """Yields the records of *source* at *offsets* of an input partition."""
        place = self._topic_partition_of(source, partition)
        try:
            yield from messages_at(consumer, place.topic, place.partition, offsets)
        except KafkaException as error:
            raise self._no_answer(source, error) from error

    def _is_compacted(self, source: Source, partition: int) -> bool | None:
        """Returns True if the topic of an input partition is compacted; None if the broker does not say so."""
        cluster = self._clusters[source.kafka]
        topic = ConfigResource(ConfigResource.Type.TOPIC, self._topic_partition_of(source, partition).topic)
        admin = make_client(AdminClient, cluster, {**cluster.client, "log_level": 0})
        try:
            settings = admin.describe_configs([topic], request_timeout=SILENT_S)[topic].result(SILENT_S)
        except (KafkaException, TimeoutError):
            return None
        return "compact" in settings["cleanup.policy"].value

    def ends(self, source: Source, partitions: Collection[int]) -> Mapping[int, tuple[int, int]]:
        """Returns the first and the next offset of partitions at the broker.

        These are *partitions*, and those that were added to the topic since. The result is empty if the source reads no
        topic, or its cluster is not known.

        Raises:
            InvalidArgument: the broker does not answer.
        """
        if source.topic is None or source.kafka not in self._clusters:
            return {}
        ends: dict[int, tuple[int, int]] = {}
        with closing(self._consumer(source)) as consumer:
            for number in sorted({*partitions, *self._numbers(consumer, source)}):
                place = self._topic_partition_of(source, number)
                at = KafkaTopicPartition(place.topic, place.partition)
                try:
                    ends[number] = consumer.get_watermark_offsets(at, timeout=SILENT_S)
                except KafkaException as error:
                    raise self._no_answer(source, error) from error
        return ends

    def _numbers(self, consumer: Consumer, source: Source) -> Collection[int]:
        """Returns the partitions of the topic now; of several topics, none."""
        if source.reads_several:
            return ()
        try:
            topics = consumer.list_topics(source.topic or "", timeout=SILENT_S).topics
            return [*topics[source.topic or ""].partitions]
        except KafkaException as error:
            raise self._no_answer(source, error) from error

    def _consumer(self, source: Source, settings: Mapping[str, str] = MappingProxyType({})) -> Consumer:
        cluster = self._clusters[source.kafka]
        group = {
            "group.id": "tidemark-trace",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
        return make_client(Consumer, cluster, {**cluster.client, **settings, **group})

    def _no_answer(self, source: Source, error: KafkaException) -> InvalidArgument:
        address = self._clusters[source.kafka].bootstrap
        if error.args[0].code() in _NO_SUCH_TOPIC:
            return InvalidArgument(
                f"{address} has no topic {source.topic}; create it, or give the address of its broker"
            )
        return InvalidArgument(f"{address}: {error.args[0].str()}; start the broker, or give its address")
