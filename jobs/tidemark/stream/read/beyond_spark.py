"""Reads topics with Kafka's client where Spark's reader overflows over the time of a record.

Spark counts the time of each record, in the message's own timestamp, in microseconds of 64 bits. It fails if a time is
too large, for example because a producer has set nanoseconds; `MOST_CLOCK_MS` (kafka/messages.py) is the largest that
it can read. A batch with such a record is read here instead, by its offsets, with null for that time. As a rule whole
topics are like this, so the batches after it are read here, too, until one has no such record.

If a stream also reads a table or a hop (a table between two streams), Spark cannot read a planned batch without its
topics. Such a stream continues with a query that plans topics and reads none of them, until its driver ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import polars as pl
from confluent_kafka import Consumer

from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import Cluster, Clusters
from tidemark.stream.kafka.access import make_client, text_with_causes
from tidemark.stream.kafka.messages import RECORD, messages_between, record_of
from tidemark.stream.read.data_loss import Offsets
from tidemark.stream.read.parts import BatchPart, to_read


class TopicsUnreadable(Exception):
    """Raised to end a query whose topics Spark cannot read; the next query does not read them."""


def overflows(error: Exception) -> bool:
    """Returns True if Spark's reader of topics raised *error* over the time of a record."""
    text = text_with_causes(error)
    return "long overflow" in text and "KafkaRecordToRowConverter" in text


def records_at(source: Source, cluster: Cluster, offsets: Offsets) -> pl.DataFrame:
    """Returns the raw rows of *source*'s topic at *offsets*, which are by input partition."""
    number_of = {source.topic_partition(number): number for number in offsets}
    settings = {
        **cluster.client,
        "group.id": "tidemark-stream",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # stream/read/data_loss.py finds and reports lost records
    }
    with closing(make_client(Consumer, cluster, settings)) as consumer:
        ranges = {topic_partition: offsets[number] for topic_partition, number in number_of.items()}
        rows: list[dict[str, object]] = []
        for message in messages_between(consumer, ranges):
            topic_partition = (message.topic(), message.partition())
            rows.append(record_of(message, number_of[topic_partition]))  # type: ignore[index]
    return pl.DataFrame(rows, schema=RECORD).with_columns(source=pl.lit(source.name))


class BeyondSpark:
    """Reads topics for batches that Spark cannot read.

    Attributes:
        is_needed: the last batch had a record that Spark's reader cannot read, or the query reads no topics.
        always: the query reads no topics.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self.is_needed = self.always = False

    def rows(self, sources: Iterable[Source], part: BatchPart) -> pl.DataFrame:
        """Returns the raw rows of *part* of a batch at the *sources*."""
        frames = [pl.DataFrame(schema={**RECORD, "source": pl.String()})]
        for source in sources:
            if source.topic and (offsets := to_read(part, source.topic)):
                numbered = source.with_topic_partitions(part.places.get(source.name, ()))
                frames.append(records_at(numbered, self._clusters[source.kafka], offsets))
        rows = pl.concat(frames)
        self.is_needed = self.always or rows["clock_ms"].null_count() > 0
        return rows
