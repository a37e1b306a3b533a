"""Spark tasks send shards' records, and readers accept each once.

One of the tasks fails.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import confluent_kafka
import polars as pl
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row
from support.quiet_broker import Silence
from support.separate_executors import Apart
from support.topologies import sink, source, table, topology_of
from tidemark.control.process import wait_until
from tidemark.kernels.records.limits import TopicLimits
from tidemark.kernels.records.partitioners import partitions_of
from tidemark.local import broker as embedded
from tidemark.model.kinds.sink import Partitioner, Sink
from tidemark.model.project.connections import DEFAULT, Cluster
from tidemark.storage.files import Files
from tidemark.stream.kafka import outgoing
from tidemark.stream.kafka.access import Refusals
from tidemark.stream.kafka.broker import TopicWriter
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.kafka.publishing import KafkaTopicWriter
from tidemark.stream.shards import tasks
from tidemark.stream.shards.on_spark import SparkExecutors

PARTITIONS = 3
KEYS = 12
WRITER = topology_of(
    {"name": "writer"}, events=source(), newest=table(columns=["v"]), out=sink("newest", topic="from_tasks")
)
READER = topology_of(
    {"name": "reader"},
    sent=source(topic="from_tasks", fields="id string, v int", written_by="writer/events", timestamp=None),
    kept=sink("sent", table="kept"),
)


class Topics(Silence):
    """Topics that are played for reading and real for writing.

    The driver may send nothing itself.
    """

    def __init__(self, kafka: KafkaBroker) -> None:
        super().__init__(PARTITIONS)
        self._kafka = kafka

    def limits(self, sink: Sink) -> TopicLimits:
        return self._kafka.limits(sink)

    def publish(self, outgoing: OutgoingRows) -> list[pl.DataFrame]:
        msg = f"the driver got {outgoing.rows.num_rows} rows"
        raise AssertionError(msg)

    def publishing(self, outgoing: OutgoingRows) -> TopicWriter:
        return self._kafka.publishing(outgoing)


@dataclass(frozen=True)
class Interrupted:
    """Publishes, but fails once in the middle of the first task.

    At its first try it fails after the rows of three files of four, once *seen* is.
    """

    publishing: KafkaTopicWriter
    seen: Path

    @property
    def tasks(self) -> int:
        return self.publishing.tasks

    def __call__(self, task: int) -> list[pl.DataFrame]:
        attempt = TaskContext.get()
        if task or attempt is None or attempt.attemptNumber():
            return self.publishing(task)
        whole = self.publishing.outgoing
        assert isinstance(whole.rows, Files)
        part = replace(self.publishing, outgoing=replace(whole, rows=Files(whole.rows.files[:3])))
        part.send(confluent_kafka.Producer(dict(part.client)), range(0, part.partitions, self.tasks), Refusals())
        wait_until(self.seen.exists, "a look at the stage", 60)
        msg = "a part of it was sent"
        raise RuntimeError(msg)


class OnSpark(Apart):
    """Executors whose sending tasks run on *spark*, and one fails.

    The stage must not speculate.
    """

    def __init__(self, rows: pl.DataFrame, spark: SparkSession, home: Path) -> None:
        super().__init__(rows)
        self._spark, self._home = spark, home

    def publish(self, publishing: TopicWriter) -> list[pl.DataFrame]:
        assert isinstance(publishing, KafkaTopicWriter)
        seen = self._home / f"seen-{publishing.outgoing.epoch}-{publishing.outgoing.batch_id}"
        with ThreadPoolExecutor(1) as pool:
            executors = SparkExecutors(self._spark.range(0))
            running = pool.submit(executors.publish, Interrupted(publishing, seen))
            wait_until(lambda: running.done() or speculates(self._spark) == {False}, "a stage without copies", 60)
            seen.touch()
            return running.result()


def speculates(spark: SparkSession) -> set[bool]:
    """Returns, for running stages, if they may have task copies."""
    context = spark.sparkContext
    found = [
        context._jsc.sc().taskScheduler().taskSetManagerForAttempt(stage, 0)
        for stage in context.statusTracker().getActiveStageIds()
    ]
    return {stage.get().speculationEnabled() for stage in found if stage.isDefined()}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows are laid out in files, and sent by tasks."""
    monkeypatch.setattr(tasks, "MANY", 8)
    monkeypatch.setattr(outgoing, "MANY", 8)


def read(address: str) -> list[Message]:
    """All that is in the topic, partition by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    found: list[Message] = []
    for number in range(PARTITIONS):
        place = TopicPartition("from_tasks", number, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        found += consumer.consume(end, timeout=30)
    consumer.close()
    return found


def as_read(reader: Play, messages: Sequence[Message]) -> list[Row]:
    """Read *messages* as Spark does."""
    rows = []
    for message in messages:
        headers = [{"key": key, "value": value} for key, value in message.headers() or []]
        value = (
            pl.Series([message.value()]).cast(pl.String).str.json_decode(pl.Struct({"id": pl.String, "v": pl.Int32}))
        )
        place = {"partition": message.partition(), "offset": message.offset(), "headers": headers}
        rows.append(reader.row("sent", message.timestamp()[1], **value[0]) | place)
    return rows


def test_a_reader_takes_each_record_once_from_a_task_that_failed(
    tmp_path: Path, broker: str, spark: SparkSession
) -> None:
    assert spark.conf.get("spark.speculation") == "true"
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have it
    embedded.create_topics(broker, {"from_tasks": PARTITIONS, "plain": PARTITIONS})
    writer = Play(WRITER, tmp_path, partitions=PARTITIONS).in_shards(4, lambda rows: OnSpark(rows, spark, tmp_path))
    writer.broker = Topics(KafkaBroker({DEFAULT: Cluster(broker)}, "writer", "events", lambda: NOON))
    first, second = (
        [writer.row("events", NOON + n, key=f"k{n % KEYS}", id=f"k{n % KEYS}", v=n) for n in numbers]
        for numbers in (range(240), range(240, 300))
    )
    writer.start(reached=crash_at("committed out"))
    with pytest.raises(Crash):
        writer.process(0, first, at_ms=NOON)
    writer.start(epoch=2)
    writer.process(0, first, at_ms=NOON)
    writer.process(1, second, at_ms=NOON + 1_000)

    messages = read(broker)
    assert len(messages) > 240 + 300  # the first batch twice, and what failing tasks had sent
    reader = Play(READER, tmp_path / "reader", partitions=PARTITIONS)
    rows = as_read(reader, messages)
    reader.batch([row for row in rows if row["offset"] < 100], at_ms=NOON)
    reader.batch([row for row in rows if row["offset"] >= 100], at_ms=NOON + 1_000)
    kept = sorted(reader.rows("kept"), key=lambda row: (row["source_partition"], row["source_offset"]))
    per_key = defaultdict(list)
    for row in kept:
        per_key[row["id"]].append(row["v"])
    assert per_key == {f"k{key}": [*range(key, 300, KEYS)] for key in range(KEYS)}
    repeated = [row["duplicate"] for row in reader.rows("operator_batches") if row["operator"] == "sent"]
    assert sum(repeated) == len(messages) - 300

    plain: dict[bytes, set[int]] = defaultdict(set)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker, "partitioner": "murmur2_random"})
    for key in {message.key() for message in messages}:
        producer.produce("plain", b"", key, on_delivery=lambda _, sent: plain[sent.key()].add(sent.partition()))
    assert producer.flush(30) == 0
    found: dict[bytes, set[int]] = defaultdict(set)
    for message in messages:
        found[message.key() or b""].add(message.partition())
    assert found == plain


def test_a_keyed_record_goes_where_javas_producer_sends_it(spark: SparkSession) -> None:
    java: Any = spark._jvm.org.apache.kafka.clients.producer.internals.BuiltInPartitioner
    keys = ["", "a", "user-17", "Ünïcode €", *(f"key-{n}" * (n % 7) for n in range(60))]
    for partitions in (1, 3, 20):
        placed = partitions_of(pl.Series(keys), range(len(keys)), partitions, Partitioner.MURMUR2).to_list()
        assert placed == [java.partitionForKey(key.encode(), partitions) for key in keys]
