"""A sink's records arrive in a real topic as readers expect."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fastavro
import polars as pl
import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from support.consumer_groups import group_offsets
from tidemark.cli.project.check import check
from tidemark.control.process import wait_until
from tidemark.errors import InvalidSpec
from tidemark.kernels.columns.schemas import HEADERS, record_schema
from tidemark.kernels.records.headers import split_repeated
from tidemark.kernels.records.limits import TopicLimits
from tidemark.local import broker as embedded
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import DEFAULT, Cluster
from tidemark.semantics.progress import StreamProgress, TopicPartition
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.notes import DecisionNotes, EntryNotes
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.kafka.encoding import to_send
from tidemark.stream.kafka.looks import ArrivalLooks
from tidemark.stream.kafka.outgoing import OutgoingRows

NOON = 1_400_000_000_000
AT = datetime.fromtimestamp(NOON // 1_000, UTC) + timedelta(microseconds=1)
ROW = {"id": "a", "n": 5, "at": AT, "_key": "a", "_timestamp_ms": NOON, "_deleted": False}
AVRO = {
    "type": "record",
    "name": "alert",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}


def rows(*changes: dict[str, object]) -> pl.DataFrame:
    schema = record_schema({"id": "string", "n": "int", "at": "timestamp"})
    return pl.DataFrame([{**ROW, **change} for change in changes], schema=schema)


def sink(name: str, topic: str, avro_schema: str | None = None) -> Sink:
    format_ = Format.AVRO if avro_schema else Format.JSON
    return Sink(name=name, topic=topic, format=format_, avro_schema=avro_schema)


def sender(address: str, *topics: str) -> KafkaBroker:
    embedded.create_topics(address, dict.fromkeys(topics, 1))
    return KafkaBroker({DEFAULT: Cluster(address)}, "t", "s", lambda: NOON + 9)


def outgoing(of: Sink, records: pl.DataFrame, *, batch_id: int = 7, epoch: int = 1, first: int = 0) -> OutgoingRows:
    return OutgoingRows(sink=of, rows=records.to_arrow(), batch_id=batch_id, epoch=epoch, first=first)


def sent(address: str, topic: str, number: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([KafkaTopicPartition(topic, 0, 0)])
    messages = consumer.consume(number, timeout=30)
    consumer.close()
    return messages


def test_a_record_is_sent_with_headers_and_a_deletion_valueless(broker: str) -> None:
    alerts = rows({"_headers": [{"key": "trace", "value": b"t"}]}, {"_deleted": True})
    sender(broker, "alerts").publish(outgoing(sink("out", "alerts"), alerts, epoch=2))
    first, second = sent(broker, "alerts", 2)
    assert json.loads(first.value() or b"") == {"id": "a", "n": 5, "at": "2014-05-13T16:53:20.000001+00:00"}
    assert (first.key(), first.timestamp()[1]) == (b"a", NOON)
    hop = ("tidemark-hop", b"t/out:1400000000009")
    assert first.headers() == [("trace", b"t"), ("tidemark-id", b"t/s/2/7/0"), hop]
    assert (second.key(), second.value()) == (b"a", None)
    assert second.headers() == [("tidemark-id", b"t/s/2/7/1"), hop]


def test_each_record_has_the_span_of_its_batch(broker: str) -> None:
    records = rows({"_headers": [{"key": "traceparent", "value": b"00-1"}]}, {})
    batch = replace(outgoing(replace(sink("out", "traced"), traces=True), records, epoch=2), decided_at_ms=NOON)
    sender(broker, "traced").publish(batch)
    # printf t/s/2/7/1400000000000 | sha256sum
    span = b"00-7a2c802d88b4e3df6ca1eac0253877ff-04a4b30256865442-01"
    own = [
        [value for key, value in message.headers() or [] if key == "traceparent"]
        for message in sent(broker, "traced", 2)
    ]
    assert own == [[span], [span]]


def test_the_limits_of_a_topic_are_those_that_the_broker_tells(broker: str) -> None:
    sending, by_default = sender(broker, "by_default"), sink("out", "by_default")
    assert sending.limits(by_default) == TopicLimits(max_bytes=1_048_588, before_ms=2**63 - 1, after_ms=3_600_000)
    settle(broker, "by_default", {"max.message.bytes": "2000", "message.timestamp.type": "LogAppendTime"})
    assert sender(broker, "by_default").limits(by_default) == TopicLimits(max_bytes=2_000)
    assert sending.limits(by_default).max_bytes == 1_048_588  # asked a moment ago


def test_only_what_a_topic_refuses_does_not_arrive(broker: str) -> None:
    sending = sender(broker, "refusing")
    sending.limits(sink("out", "refusing"))
    settle(broker, "refusing", {"max.message.bytes": "2000"})  # lowered since
    far = int(time.time() * 1_000) + 30 * 86_400_000
    batch = rows({"id": "a"}, {"id": "x" * 5_000}, {"id": "b"}, {"id": "f", "_timestamp_ms": far}, {"id": "c"})
    refused = pl.concat(sending.publish(outgoing(sink("out", "refusing"), batch)))
    assert sorted(json.loads(value)["id"] for value in refused["value"]) == ["f", "x" * 5_000]
    assert sorted(json.loads(m.value() or b"")["id"] for m in sent(broker, "refusing", 3)) == ["a", "b", "c"]
    places = [int(dict(m.headers() or [])["tidemark-id"].rsplit(b"/")[-1]) for m in sent(broker, "refusing", 3)]
    assert places == sorted(set(places))


def test_small_records_reach_a_topic_that_takes_little_at_once(broker: str) -> None:
    sending = sender(broker, "narrow")
    settle(broker, "narrow", {"max.message.bytes": "1500"})
    batch = rows(*({"id": f"{n:0300}"} for n in range(200)))
    assert sending.publish(outgoing(sink("out", "narrow"), batch)) == []
    assert [json.loads(m.value() or b"")["id"] for m in sent(broker, "narrow", 200)] == batch["id"].to_list()


MARKING = """
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string"
[operators.out]
kind = "sink"
input = "events"
topic = "marked"
marks = true
"""


def test_looks_say_what_had_arrived_before_an_instant(broker: str) -> None:
    embedded.create_topics(broker, {"looked": 2})
    read = Source(name="events", topic="looked", fields={"n": "int"}, timestamp_range_ms=(0, 2**60), bound_ms=0)
    now = [1_000]
    asked = KafkaBroker({DEFAULT: Cluster(broker)}, "t", "s", lambda: NOON)
    looks = ArrivalLooks(asked, Timeline(lambda: now[0]), lambda: [(read, [0, 1])])
    looks.look()
    producer = Producer({"bootstrap.servers": broker})
    producer.produce("looked", b"{}", partition=1)
    assert producer.flush(30) == 0
    now[0] = 3_000
    looks.look()
    # Partition, its end, and how long before the instant the look was.
    assert looks.before(3_000, "events") == [(0, 0, 2_000), (1, 0, 2_000)]
    assert looks.before(3_500, "events")[2:] == [(0, 0, 500), (1, 1, 500)]
    assert looks.before(3_500, "others") == []


def test_a_group_takes_offsets_unless_it_has_members_or_there_is_no_topic(broker: str) -> None:
    writer = sender(broker, "grouped")
    there, gone = TopicPartition("grouped", 0), TopicPartition("ungrouped", 3)
    wait_until(lambda: writer.write_group("of_lag", {DEFAULT: {there: 7}}) == [], "the group", 30)
    assert writer.write_group("of_lag", {DEFAULT: {there: 5, gone: 1}}) == [
        "topic ungrouped of kafka.default: Broker: Unknown topic or partition"
    ]
    assert group_offsets(broker, "of_lag") == {"grouped/0": 5}, "a group may be set back"
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "of_lag", "enable.auto.commit": False})
    consumer.subscribe(["grouped"])
    wait_until(lambda: consumer.poll(0.1) or bool(consumer.assignment()), "a member", 60)
    assert writer.write_group("of_lag", {DEFAULT: {there: 8}}) == [
        "topic grouped of kafka.default: Broker: Unknown member"
    ]
    consumer.close()
    assert group_offsets(broker, "of_lag") == {"grouped/0": 5}


def test_marks_reach_every_partition_and_no_compacted_topic(broker: str, tmp_path: Path) -> None:
    embedded.create_topics(broker, {"marked": 2})
    sending = KafkaBroker({DEFAULT: Cluster(broker)}, "t", "s", lambda: int(time.time() * 1_000))
    assert not sending.is_compacted(sink("out", "marked"))
    sending.mark(sink("out", "marked"), NOON, idle=True)
    for number in (0, 1):
        consumer = Consumer({"bootstrap.servers": broker, "group.id": "test", "enable.auto.commit": False})
        consumer.assign([KafkaTopicPartition("marked", number, 0)])
        (mark,) = consumer.consume(1, timeout=30)
        consumer.close()
        assert (mark.key(), mark.value()) == (None, None)
        assert mark.headers() == [("tidemark-mark", b"t/s:1400000000000:idle")]
    settle(broker, "marked", {"cleanup.policy": "compact"})
    assert sending.is_compacted(sink("out", "marked"))
    sending.mark(sink("out", "marked"), NOON, idle=False)  # refused, and nobody's end
    file = tmp_path / "play.toml"
    file.write_text(MARKING)
    with pytest.raises(InvalidSpec, match=r"play.toml: operators.out.marks: is true, but topic 'marked' is compacted"):
        check([file], tmp_path, addresses=[(DEFAULT, broker)])


def settle(address: str, topic: str, settings: dict[str, str]) -> None:
    """Give *topic* other *settings*, and wait until the broker tells them."""
    client = AdminClient({"bootstrap.servers": address})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    place = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    client.incremental_alter_configs([place])[place].result(30)

    def told() -> bool:
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = client.describe_configs([asked])[asked].result(30)
        return all(found[name].value == value for name, value in settings.items())

    wait_until(told, f"settings of {topic}", 30)


def test_a_repetition_with_fewer_refusals_loses_nothing(broker: str) -> None:
    one, two = sink("one", "both"), sink("two", "both")
    batch = {"one": rows({"id": "a"}, {"id": "x" * 5_000}), "two": rows({"id": "b"}, {"id": "c"})}
    seven = MicroBatch(batch_id=7, epoch=1, decided_at_ms=0, started_at_ms=0, read_at_ms=0)
    progress = StreamProgress(batch_id=7)
    notes = EntryNotes(decided=DecisionNotes(batch=seven, progress=progress, was=progress))
    entry = Entry(7, {name: part.to_arrow() for name, part in batch.items()}, notes)
    sending = sender(broker, "both")
    sending.limits(one)
    settle(broker, "both", {"max.message.bytes": "2000"})
    assert len(sending.publish(OutgoingRows.of(one, entry, [one, two]))) == 1
    sending.publish(replace(OutgoingRows.of(two, entry, [one, two]), rows=batch["two"][:1].to_arrow()))  # and is killed
    settle(broker, "both", {"max.message.bytes": "20000"})
    again = replace(entry, notes=EntryNotes(decided=replace(notes.decision, batch=replace(seven, epoch=2))))
    for each in (one, two):
        assert sender(broker, "both").publish(OutgoingRows.of(each, again, [one, two])) == []
    messages = sent(broker, "both", 6)
    read = pl.DataFrame(
        {
            "partition": [0] * len(messages),
            "headers": [[{"key": key, "value": value} for key, value in m.headers() or []] for m in messages],
        },
        schema={"partition": pl.Int32(), "headers": HEADERS},
    )
    new, _, _ = split_repeated(read.with_row_index("row"), {}, ["t/s"])
    assert [json.loads(messages[row].value() or b"")["id"] for row in new["row"]] == ["a", "b", "c"]


def test_avro_has_its_schemas_fields_and_instants_in_its_unit(broker: str) -> None:
    records = rows({}, {"at": None}, {"_deleted": True})
    sender(broker, "avro_out").publish(outgoing(sink("out", "avro_out", json.dumps(AVRO)), records))
    first, second, third = (message.value() for message in sent(broker, "avro_out", 3))
    raw = {**AVRO, "fields": [AVRO["fields"][0], {"name": "at", "type": ["null", "long"]}]}
    read = [
        fastavro.schemaless_reader(io.BytesIO(value or b""), fastavro.parse_schema(raw), None)
        for value in (first, second)
    ]
    assert read == [{"n": 5, "at": NOON * 1_000 + 1}, {"n": 5, "at": None}]
    assert third is None
    plain, _ = to_send(sink("out", "avro_out", json.dumps(raw)), records)
    read = fastavro.schemaless_reader(io.BytesIO(plain[0]), fastavro.parse_schema(raw), None)
    assert read == {"n": 5, "at": NOON}


def test_a_record_that_does_not_fit_its_avro_schema_is_named(broker: str) -> None:
    sending = sender(broker, "misfit")
    records = rows({"n": None}, {"n": 6})
    (refused,) = sending.publish(outgoing(sink("out", "misfit", json.dumps(AVRO)), records))
    (error,) = refused["detail"]
    assert re.match(r"operators.out.schema must fit its records: .* in \{'id': 'a', 'n': None", error)
    (message,) = sent(broker, "misfit", 1)
    assert dict(message.headers() or [])["tidemark-id"] == b"t/s/1/7/1"
