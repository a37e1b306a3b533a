"""Records of transactions at a real broker: committed ones are read, in every part of Tidemark, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from streaming.drivers import OnlyDriver, SharedDriver, reads_of
from streaming.sending import NOON_MS, passing

from tidemark.cli.explain.status import as_text
from tidemark.clock import wall_clock_ms
from tidemark.local import broker as embedded
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import DEFAULT, Cluster
from tidemark.model.project.kafka_security import Security
from tidemark.model.project.layout import Layout
from tidemark.model.topology import load
from tidemark.reports.documents.status import status_document
from tidemark.sample.topic_sample import SampledCluster
from tidemark.semantics.progress import TopicPartition
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.kafka.transactions import TransactionWatch
from tidemark.stream.read.beyond_spark import records_at
from tidemark.stream.read.sources import kafka_options
from tidemark.trace.counts import reconcile
from tidemark.trace.outcomes import RecordPosition
from tidemark.trace.record import Tracer
from tidemark.trace.topics import Topics
from tidemark.why.walk import why

TOPIC = "transactions"


class Transactions:
    """A producer of transactions at *address*."""

    def __init__(self, address: str, name: str) -> None:
        settings = {"bootstrap.servers": address, "transactional.id": name, "transaction.timeout.ms": 600_000}
        self.producer = Producer(settings)
        self.producer.init_transactions(30)

    def send(self, *numbers: int, partition: int = 0, topic: str = TOPIC) -> None:
        """Sends records in a transaction that stays open."""
        self.producer.begin_transaction()
        for n in numbers:
            self.producer.produce(topic, json.dumps({"n": n, "at": NOON_MS + n}), "k", partition)
        assert self.producer.flush(30) == 0

    def commit(self, *numbers: int, partition: int = 0, topic: str = TOPIC) -> None:
        self.send(*numbers, partition=partition, topic=topic)
        self.producer.commit_transaction(30)

    def abort(self, *numbers: int, partition: int = 0, topic: str = TOPIC) -> None:
        self.send(*numbers, partition=partition, topic=topic)
        self.producer.abort_transaction(30)


def with_transactions(broker: str, topic: str) -> Transactions:
    """Creates *topic* with two partitions, in which records below 100 are committed or of a transaction that is open.

    Partition 0 has two aborted records, their mark, records 0 and 1, their mark, three aborted records, and their mark:
    offsets until 10. Partition 1 has record 2, its mark, and record 3 of the open transaction, which is returned.
    """
    embedded.create_topics(broker, {topic: 2})
    ended, open_ = Transactions(broker, f"{topic}-ended"), Transactions(broker, f"{topic}-open")
    ended.abort(100, 101, topic=topic)
    ended.commit(0, 1, topic=topic)
    ended.abort(102, 103, 104, topic=topic)
    ended.commit(2, partition=1, topic=topic)
    open_.send(3, partition=1, topic=topic)
    return open_


@pytest.fixture(scope="module")
def stays_open(broker: str) -> Transactions:
    """Creates TOPIC."""
    return with_transactions(broker, TOPIC)


def source(name: str = TOPIC) -> Source:
    return Source(
        name="events",
        topic=name,
        fields={"n": "bigint", "at": "bigint"},
        timestamp="at",
        timestamp_range_ms=(0, 2**60),
        bound_ms=0,
    )


def test_a_broker_tells_the_last_stable_offset_and_open_transactions(stays_open: Transactions, broker: str) -> None:
    committed = KafkaBroker({DEFAULT: Cluster(broker)}, "t", "s", lambda: 0)
    assert committed.offsets(source(), [0, 1]) == {0: (0, 10), 1: (0, 2)}
    assert committed.open_transactions(source(), [0, 1]) == {1: 2}
    now_ms = [NOON_MS]
    watch = TransactionWatch(committed, lambda: [(source(), [0, 1])], lambda: now_ms[0])
    watch.look()
    assert watch.open == ()
    now_ms[0] += 10_000
    watch.look()
    (open_,) = watch.open
    assert (open_.partition, open_.topic_partition, open_.stable_offset, open_.since_ms) == (
        1,
        TopicPartition(TOPIC, 1),
        2,
        NOON_MS,
    )


def test_a_sample_has_committed_records_alone(stays_open: Transactions, broker: str) -> None:
    sample = SampledCluster(Cluster(broker)).sample(TOPIC)
    assert [(each.partition, each.offset) for each in sample.records] == [(0, 3), (0, 4), (1, 0)]
    assert (sample.there, sample.complete) == (3, True)
    # Of the newest four offsets of partition 0 none has a committed record.
    older = SampledCluster(Cluster(broker)).sample(TOPIC, most=8)
    assert [(each.partition, each.offset) for each in older.records] == [(0, 3), (0, 4), (1, 0)]


def test_a_topic_of_aborted_records_alone_is_not_called_empty(broker: str) -> None:
    embedded.create_topics(broker, {"aborted": 1})
    Transactions(broker, "aborted").abort(1, topic="aborted")
    sample = SampledCluster(Cluster(broker)).sample("aborted")
    assert (sample.records, sample.why_empty) == ((), "has no committed record")


def test_one_setting_reads_uncommitted_records_everywhere(stays_open: Transactions, broker: str) -> None:
    cluster = Cluster(broker, security=Security(settings={"isolation.level": "read_uncommitted"}))
    client = KafkaBroker({DEFAULT: cluster}, "t", "s", lambda: 0)
    assert client.offsets(source(), [0, 1]) == {0: (0, 10), 1: (0, 3)}
    assert client.open_transactions(source(), [0, 1]) == {}
    every = [(0, offset) for offset in (0, 1, 3, 4, 6, 7, 8)] + [(1, 0), (1, 2)]
    assert [(each.partition, each.offset) for each in SampledCluster(cluster).sample(TOPIC).records] == every
    read = Topics({DEFAULT: cluster}, lambda source, partition: TopicPartition(source.topic or "", partition))
    assert read.ends(source(), []) == {0: (0, 10), 1: (0, 3)}
    rows = read(source(), 0, range(10))
    assert rows is not None
    assert [(0, offset) for offset in rows["offset"]] == every[:7]
    for of, level in ((cluster, "read_uncommitted"), (Cluster(broker), "read_committed")):
        assert kafka_options(source(), of)["kafka.isolation.level"] == level
        beyond = records_at(source(), of, {0: (0, 10), 1: (0, 2)})["offset"].to_list()
        assert beyond == ([0, 1, 3, 4, 6, 7, 8, 0] if of is cluster else [3, 4, 0])


def topics(broker: str) -> Topics:
    return Topics({DEFAULT: Cluster(broker)}, lambda source, partition: TopicPartition(source.topic or "", partition))


def test_offsets_without_a_record_have_their_reasons(stays_open: Transactions, broker: str) -> None:
    read = topics(broker)
    assert read.ends(source(), []) == {0: (0, 10), 1: (0, 2)}
    rows = read(source(), 0, range(10))
    assert rows is not None
    assert rows["offset"].to_list() == [3, 4]
    without = [*range(3), *range(5, 10)]
    said = "5 of aborted transactions, 3 of marks of transactions"
    assert read.why_without_record(source(), 0, without) == said
    topic = NewTopic("compacted", 1, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": broker})  # while it lives, its answers come
    admin.create_topics([topic])["compacted"].result(30)
    compacted = Transactions(broker, "compacted")
    compacted.commit(1, topic="compacted")
    said = "1 of marks of transactions, or of records that compaction deleted"
    assert read.why_without_record(source("compacted"), 0, [1]) == said


def test_a_stream_reads_committed_records_alone(broker: str, tmp_path: Path, shared: SharedDriver) -> None:
    open_ = with_transactions(broker, "committed")
    with OnlyDriver(tmp_path, passing("committed", "committed"), broker, shared=shared) as driver:
        assert [row["n"] for row in driver.wait_for("kept", 3)] == [0, 1, 2]
        (first,) = driver.wait_for("batches", 1)
        (reads,) = reads_of(driver.rows("partition_batches")).values()
        ends = {part.partition: (part.until_offset, part.latest_offset) for part in reads}
        assert (first["records_in"], ends) == (3, {0: (10, 10), 1: (2, 2)})
        topology = load(tmp_path / "committed.toml")
        tracer = Tracer(topology, Layout(tmp_path / "warehouse"), topics(broker), topics(broker).aborted)
        traced = [tracer.trace(RecordPosition("events", 0, offset)).results[0] for offset in (3, 6)]
        assert [(result.outcome, result.reason) for result in traced] == [
            ("passed", ""),
            ("unread", "it is of an aborted transaction"),
        ]
        whole = reconcile(
            tracer,
            topics(broker).ends,
            "events",
            start_ms=NOON_MS,
            end_ms=NOON_MS + 3_600_000,
            why_without_record=topics(broker).why_without_record,
        )
        assert whole.differences == []
        # The first batch reads from the first record on.
        assert [remark for remark in whole.remarks if "have no record" in remark] == [
            "events, partition 0: 5 of the offsets 5 to 9 have no record: 3 of aborted transactions, 2 of marks of "
            "transactions",
            "events, partition 1: 1 of the offsets 1 to 1 have no record: 1 of marks of transactions",
        ]
        open_.producer.commit_transaction(30)
        assert [row["n"] for row in driver.wait_for("kept", 4)] == [0, 1, 2, 3]
        assert driver.drain() == 0


@pytest.mark.long  # looks are 10 s apart; test_why.py has the finding, and test_broker_watch.py the looks
def test_a_transaction_that_stays_open_is_named(broker: str, tmp_path: Path, shared: SharedDriver) -> None:
    open_ = with_transactions(broker, "hangs")
    with OnlyDriver(tmp_path, passing("hangs", "hangs"), broker, shared=shared) as driver:
        driver.wait_for("kept", 3)
        topology, layout = load(tmp_path / "hangs.toml"), Layout(tmp_path / "warehouse")

        def causes() -> list[str]:
            return [each.line for each in why(topology, layout, at_ms=wall_clock_ms())]

        named = "open_transaction: events partition 1 "
        driver.wait(lambda: any(line.startswith(named) for line in causes()), "the finding about the transaction")
        model = status_document(layout.warehouse, topology, at_ms=wall_clock_ms())
        said = as_text([{**model, "page": None}])
        assert "topic hangs, partition 1: a transaction is open, so the last stable offset is 2 and has not" in said
        (beat,) = [row for row in driver.rows("heartbeats") if row["open_transactions"]][:1]
        (found,) = beat["open_transactions"]
        assert (found["topic_partition"], found["stable_offset"]) == ("hangs/1", 2)
        assert (beat["records_behind"], beat["eta_at"]) == (0, None)
        open_.producer.abort_transaction(30)
        driver.wait(lambda: not any(line.startswith("open_transaction") for line in causes()), "the end of the finding")
