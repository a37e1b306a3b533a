"""Real Spark parses a real topic: fields, record time, rejection reasons.

The functions are those of the streams; here they read a topic as one batch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from streaming.drivers import OnlyDriver, SharedDriver

from support.parsed_source import NOON, source
from support.topologies import sink, topology_of
from support.topologies import source as source_of
from tidemark.kernels.records.marks import with_marks
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import DEFAULT, Cluster
from tidemark.semantics.progress import InputProgress
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.read.sources import collect, kafka_options, read_again, records_of
from tidemark.stream.schemas.protoc import compiled


def create(address: str, topic: str) -> None:
    config = {"max.message.bytes": "20000000", "message.timestamp.after.max.ms": str(2**63 - 1)}
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result()


def send(address: str, topic: str, *records: tuple[bytes | None, bytes | None], timestamp_ms: int = NOON + 7) -> None:
    create(address, topic)
    # Records stay in order, also where the broker's first answers about a new topic make the client send some again.
    settings = {"bootstrap.servers": address, "message.max.bytes": 20_000_000, "enable.idempotence": True}
    producer = Producer(settings)
    for key, value in records:
        producer.produce(topic, value, key, 0, timestamp=timestamp_ms)
    assert producer.flush(60) == 0


def read(spark: SparkSession, address: str, source: Source) -> list[dict[str, Any]]:
    """Returns *source*'s topic as the driver reads it, by offset."""
    raw = spark.read.format("kafka").options(**kafka_options(source, Cluster(address))).load()
    return collect(records_of(raw, source), [source]).sort("offset").to_dicts()


def body(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "at": NOON, **fields}).encode()


TREE = {"type": "record", "name": "Tree", "fields": [{"name": "inner", "type": {"type": "array", "items": "Tree"}}]}
TREES = {
    "type": "record", "name": "R",
    "fields": [{"name": "at", "type": "long"}, {"name": "n", "type": "int"}, {"name": "id", "type": TREE}],
}  # fmt: skip
MESSAGE = """
syntax = "proto3"; package p; import "google/protobuf/any.proto";
message M { int64 at = 1; google.protobuf.Any id = 2; int32 n = 3; }
message Number { int32 n = 1; }
"""


def varint(number: int) -> bytes:
    """Returns a number from 0 on as Protobuf writes it."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def zigzag(number: int) -> bytes:
    """Returns a number from 0 on as Avro writes it."""
    return varint(2 * number)


def any_of_a_number(content: bytes) -> bytes:
    """Returns the field `id` with an Any of the type Number."""
    inner = b"\x0a\x0ax/p.Number\x12" + varint(len(content)) + content
    return b"\x12" + varint(len(inner)) + inner


def test_poison_is_told_apart_and_comes_with_its_bytes(spark: SparkSession, broker: str) -> None:
    large = body(id="x" * 10_000_000, n="no number")
    poison = [
        (None, None, "null_value"),
        (None, body(n="five"), "wrong_type"),
        (b"\xff\xfe", body(n="five"), "wrong_type"),
        (b"a", None, "null_value"),
        (b"a", b'{"id": "\xff"}', "invalid_utf8"),
        (b"a", b"", "malformed_json"),
        (b"a", b'{"id": "a", "at":', "malformed_json"),
        (b"a", b'{"id": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "beyond_limit"),
        (b"a", b'{"id": ' + b"[" * 100 + b"]" * 100 + b"}", "beyond_limit"),
        (b"a", rb'{"id": {"\ud800": 1}}', "invalid_utf8"),
        (b"a", b'{"n": ' + b"9" * 5_000 + b"}", "malformed_json"),
        (b"a", body(n="five"), "wrong_type"),
        (b"a", body(n=3_000_000_000), "wrong_type"),
        (b"a", b'[{"id": "a"}]', "wrong_type"),
        (b"a", b"null", "wrong_type"),
        (b"a", large, "wrong_type"),
        (b"a", body(at=None), "missing_timestamp"),
        (b"a", body(at=-1), "timestamp_out_of_range"),
        (b"a", body(at=2**63 - 1), "timestamp_out_of_range"),
        (b"a", body(at=2**63), "wrong_type"),
    ]
    send(broker, "poison", *((key, value) for key, value, _ in poison), (b"\xff", body(n=5)))
    rows = read(spark, broker, source("poison"))
    assert [(row["offset"], row["reason"]) for row in rows[:-1]] == [(i, why) for i, (*_, why) in enumerate(poison)]
    assert [(row["key"], row["value"]) for row in rows[:-1]] == [(key, value) for key, value, _ in poison]
    assert rows[-1]["reason"] is None
    assert rows[-1]["poison"] == {"id": "a", "n": 5, "at": NOON}
    at = zigzag(NOON)
    of_avro = [
        (at + zigzag(2**40) + b"\0", "wrong_type"),
        (at + zigzag(5) + b"\2" * 10_000 + b"\0" * 10_001, "beyond_limit"),
        (at + zigzag(5) + b"\0", None),
    ]
    at = b"\x08" + varint(NOON) + b"\x18\x05"
    of_protobuf = [(at + any_of_a_number(b"\xff\xff"), "malformed_protobuf"), (at + any_of_a_number(b"\x08\x01"), None)]
    avro = source("poison_avro", format=Format.AVRO, avro_schema=json.dumps(TREES))
    descriptors = compiled(MESSAGE, {})
    protobuf = source("poison_protobuf", format=Format.PROTOBUF, descriptors=descriptors, message="p.M")
    for reading, values in ((avro, of_avro), (protobuf, of_protobuf)):
        send(broker, reading.name, *((b"a", value) for value, _ in values))
        rows = read(spark, broker, reading)
        assert [(row["value"], row["reason"]) for row in rows[:-1]] == values[:-1]
        assert (rows[-1]["reason"], rows[-1][reading.name]["n"]) == (None, 5)


@pytest.mark.parametrize("changes", [{}, {"key": "id"}, {"timestamp": None}, {"other_fields": "rest"}])
def test_a_mark_of_time_is_told_from_records(spark: SparkSession, broker: str, changes: dict[str, Any]) -> None:
    topic = f"marked_{next(iter(changes), 'plain')}"
    send(broker, topic, (b"a", body()))
    sink = Sink(name="out", topic=topic)
    KafkaBroker({DEFAULT: Cluster(broker)}, "up", "s", lambda: NOON).mark(sink, NOON + 5_000, idle=True)
    reading = replace(source(topic, written_by=("up/s",), bound_ms=2_000), **changes)
    raw = spark.read.format("kafka").options(**kafka_options(reading, Cluster(broker))).load()
    records = collect(records_of(raw, reading), [reading]).sort("offset")
    rows, marks = with_marks(reading, records, InputProgress())
    assert rows.select("timestamp_ms", "reason", "deleted").rows()[1] == (NOON + 7_001, None, False)
    assert (rows["reason"].to_list(), marks.idle) == ([None, None], {0: True})


def test_a_time_of_the_broker_that_is_no_time_ends_no_stream(
    tmp_path: Path, broker: str, spark: SparkSession, shared: SharedDriver
) -> None:
    toml = topology_of(
        {"name": "beyond", "trigger": "1 s"},
        own=source_of("n int", topic="beyond_own"),
        brokers=source_of("n int", topic="beyond_brokers", timestamp=None),
        both={"kind": "union", "inputs": ["own", "brokers"]},
        kept=sink("both", table="kept"),
    )
    lines = source_of("n int", topic=None, files="in")
    mixed = topology_of(
        {"name": "beyond_mixed", "trigger": "1 s"},
        own=source_of("n int", topic="beyond_own"),
        lines=lines,
        both={"kind": "union", "inputs": ["own", "lines"]},
        kept=sink("both", table="kept"),
    )
    (tmp_path / "warehouse" / "in").mkdir(parents=True)
    (tmp_path / "warehouse" / "in" / "a.json").write_text(json.dumps({"n": 20, "event_time": NOON}))
    for topic in ("beyond_own", "beyond_brokers"):
        create(broker, topic)
    producer = Producer({"bootstrap.servers": broker})

    def produce(topic: str, n: int, timestamp_ms: int) -> None:
        value = json.dumps({"n": n, "event_time": NOON + n}).encode()
        producer.produce(topic, value, b"k", 0, timestamp=timestamp_ms, headers={"h": b"1"})

    nanoseconds = NOON * 1_000_000
    for n, timestamp_ms in enumerate([NOON, nanoseconds, NOON, nanoseconds]):
        produce("beyond_own", n, timestamp_ms)
        produce("beyond_brokers", 10 + n, timestamp_ms)
    assert producer.flush(60) == 0
    with (
        OnlyDriver(tmp_path, toml, broker, shared=shared) as driver,
        OnlyDriver(tmp_path, mixed, broker, shared=shared) as beside_files,
    ):
        driver.wait_for("kept", 6)
        beside_files.wait_for("kept", 5)
        # A batch without such a time is read by Spark again, and the next one with it is not.
        produce("beyond_own", 4, NOON)
        assert producer.flush(60) == 0
        driver.wait_for("kept", 7)
        produce("beyond_own", 5, nanoseconds)
        assert producer.flush(60) == 0
        rows = driver.wait_for("kept", 8)
        bad = driver.wait_for("quarantine", 2)
        (tmp_path / "warehouse" / "in" / "b.json").write_text(json.dumps({"n": 21, "event_time": NOON}))
        numbers = sorted(row["n"] for row in beside_files.wait_for("kept", 8))
        assert (driver.drain(), beside_files.drain()) == (0, 0)
        assert driver.log().count("has a record whose broker's time Spark cannot read") == 3
    assert numbers == [*range(6), 20, 21]
    assert {row["n"]: row["timestamp"] for row in rows} == {**{n: NOON + n for n in range(6)}, 10: NOON, 12: NOON}
    assert [(row["topic"], row["offset"], row["reason"]) for row in bad] == [
        ("beyond_brokers", offset, "invalid_timestamp") for offset in (1, 3)
    ]
    assert json.loads(bad[0]["value"])["n"] == 11
    (again,) = read_again(spark, source("beyond_own"), Cluster(broker), {0: (1, 2)}).to_dicts()
    assert (again["offset"], again["reason"]) == (1, "missing_timestamp")
