"""What a sink sends arrives in a real topic as its readers expect it."""

from __future__ import annotations

import io
import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fastavro
import polars as pl
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tidemark.cli.check import check
from tidemark.embedded import broker as embedded
from tidemark.embedded.process import wait_until
from tidemark.errors import InvalidSpec
from tidemark.kernels.limits import Limits
from tidemark.kernels.schemas import record_schema
from tidemark.spec.connections import DEFAULT, Cluster
from tidemark.spec.operators import Format, Kind, Sink
from tidemark.stream.encoding import to_send
from tidemark.stream.kafka import KafkaBroker

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
    return Sink(name=name, kind=Kind.SINK, topic=topic, format=format_, avro_schema=avro_schema)


def sender(address: str, *topics: str) -> KafkaBroker:
    embedded.create_topics(address, dict.fromkeys(topics, 1))
    return KafkaBroker({DEFAULT: Cluster(address)}, "t", "s", lambda: NOON + 9)


def sent(address: str, topic: str, number: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(number, timeout=30)
    consumer.close()
    return messages


def test_a_record_is_sent_with_its_headers_and_one_that_deletes_has_no_value(broker: str) -> None:
    alerts = rows({"_headers": [{"key": "trace", "value": b"t"}]}, {"_deleted": True})
    sender(broker, "alerts").publish(sink("out", "alerts"), alerts, batch_id=7, epoch=2)
    first, second = sent(broker, "alerts", 2)
    assert json.loads(first.value() or b"") == {"id": "a", "n": 5, "at": "2014-05-13T16:53:20.000001+00:00"}
    assert (first.key(), first.timestamp()[1]) == (b"a", NOON)
    hop = ("tidemark-hop", b"t/out:1400000000009")
    assert first.headers() == [("trace", b"t"), ("tidemark-id", b"t/s/2/7/0"), hop]
    assert (second.key(), second.value()) == (b"a", None)
    assert second.headers() == [("tidemark-id", b"t/s/2/7/1"), hop]


def test_the_limits_of_a_topic_are_those_that_the_broker_tells(broker: str) -> None:
    sending, by_default = sender(broker, "by_default"), sink("out", "by_default")
    assert sending.limits(by_default) == Limits(max_bytes=1_048_588, before_ms=2**63 - 1, after_ms=3_600_000)
    settle(broker, "by_default", {"max.message.bytes": "2000", "message.timestamp.type": "LogAppendTime"})
    assert sender(broker, "by_default").limits(by_default) == Limits(max_bytes=2_000)
    assert sending.limits(by_default).max_bytes == 1_048_588  # asked a moment ago


def test_only_what_a_topic_refuses_does_not_arrive(broker: str) -> None:
    sending = sender(broker, "refusing")
    sending.limits(sink("out", "refusing"))
    settle(broker, "refusing", {"max.message.bytes": "2000"})  # lowered since
    far = int(time.time() * 1_000) + 30 * 86_400_000
    batch = rows({"id": "a"}, {"id": "x" * 5_000}, {"id": "b"}, {"id": "f", "_timestamp_ms": far}, {"id": "c"})
    refused = sending.publish(sink("out", "refusing"), batch, batch_id=7, epoch=1)
    assert [place.row for place in refused] == [1, 3]
    assert sorted(json.loads(m.value() or b"")["id"] for m in sent(broker, "refusing", 3)) == ["a", "b", "c"]
    places = [int(dict(m.headers() or [])["tidemark-id"].rsplit(b"/")[-1]) for m in sent(broker, "refusing", 3)]
    assert places == sorted(set(places))


def test_small_records_reach_a_topic_that_takes_little_at_once(broker: str) -> None:
    sending = sender(broker, "narrow")
    settle(broker, "narrow", {"max.message.bytes": "1500"})
    batch = rows(*({"id": f"{n:0300}"} for n in range(200)))
    assert sending.publish(sink("out", "narrow"), batch, batch_id=7, epoch=1) == []
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


def test_marks_reach_every_partition_and_no_compacted_topic(broker: str, tmp_path: Path) -> None:
    embedded.create_topics(broker, {"marked": 2})
    sending = KafkaBroker({DEFAULT: Cluster(broker)}, "t", "s", lambda: int(time.time() * 1_000))
    assert not sending.is_compacted(sink("out", "marked"))
    sending.mark(sink("out", "marked"), NOON, idle=True)
    for number in (0, 1):
        consumer = Consumer({"bootstrap.servers": broker, "group.id": "test", "enable.auto.commit": False})
        consumer.assign([TopicPartition("marked", number, 0)])
        (mark,) = consumer.consume(1, timeout=30)
        consumer.close()
        assert (mark.key(), mark.value()) == (None, None)
        assert mark.headers() == [("tidemark-mark", b"t/s:1400000000000:idle")]
    settle(broker, "marked", {"cleanup.policy": "compact"})
    assert sending.is_compacted(sink("out", "marked"))
    sending.mark(sink("out", "marked"), NOON, idle=False)  # refused, and nobody's end
    file = tmp_path / "play.toml"
    file.write_text(MARKING)
    with pytest.raises(InvalidSpec, match=r"play.toml: operators.out.marks: is true and topic 'marked' is compacted"):
        check([file], tmp_path, given=[(DEFAULT, broker)])


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


def test_two_sinks_with_one_topic_number_their_records_in_one_sequence_which_a_repetition_repeats(broker: str) -> None:
    for epoch in (1, 2):
        sending = sender(broker, "both")
        for name in ("one", "two"):
            sending.publish(sink(name, "both"), rows({}, {}), batch_id=7, epoch=epoch)
    sending.publish(sink("one", "both"), rows({}), batch_id=8, epoch=2)
    ids = [dict(message.headers() or [])["tidemark-id"] for message in sent(broker, "both", 9)]
    again = [f"t/s/{epoch}/7/{sequence}".encode() for epoch in (1, 2) for sequence in range(4)]
    assert ids == [*again, b"t/s/2/8/0"]


def test_avro_has_the_fields_of_its_schema_and_instants_in_its_unit(broker: str) -> None:
    records = rows({}, {"at": None}, {"_deleted": True})
    sender(broker, "avro_out").publish(sink("out", "avro_out", json.dumps(AVRO)), records, batch_id=0, epoch=1)
    first, second, third = (message.value() for message in sent(broker, "avro_out", 3))
    raw = {**AVRO, "fields": [AVRO["fields"][0], {"name": "at", "type": ["null", "long"]}]}
    read = [
        fastavro.schemaless_reader(io.BytesIO(value or b""), fastavro.parse_schema(raw), None)
        for value in (first, second)
    ]
    assert read == [{"n": 5, "at": NOON * 1_000 + 1}, {"n": 5, "at": None}]
    assert third is None
    plain, _ = to_send(sink("out", "avro_out", json.dumps(raw)), records)  # epoch ms, as in older versions
    read = fastavro.schemaless_reader(io.BytesIO(plain[0]), fastavro.parse_schema(raw), None)
    assert read == {"n": 5, "at": NOON}


def test_a_record_that_does_not_fit_its_avro_schema_is_named(broker: str) -> None:
    sending = sender(broker, "misfit")
    records = rows({"n": None}, {"n": 6})
    (refused,) = sending.publish(sink("out", "misfit", json.dumps(AVRO)), records, batch_id=0, epoch=1)
    assert refused.row == 0
    assert re.match(r"operators.out.avro_schema must fit its records: .* in \{'id': 'a', 'n': None", refused.error)
    (message,) = sent(broker, "misfit", 1)
    assert dict(message.headers() or [])["tidemark-id"] == b"t/s/1/0/1"
