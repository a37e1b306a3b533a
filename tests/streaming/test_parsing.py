"""Real Spark parses a real topic: fields, record time, rejection reasons.

The functions are those of the streams; here they read a topic as one batch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from support.parsed_source import NOON, source
from tidemark.kernels.records.marks import with_marks
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import DEFAULT, Cluster
from tidemark.semantics.progress import InputProgress
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.read.sources import collect, kafka_options, records_of


def send(address: str, topic: str, *records: tuple[bytes | None, bytes | None], timestamp_ms: int = NOON + 7) -> None:
    new = NewTopic(topic, 1, 1, config={"max.message.bytes": "20000000"})
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([new])[topic].result()
    producer = Producer({"bootstrap.servers": address, "message.max.bytes": 20_000_000})
    for key, value in records:
        producer.produce(topic, value, key, 0, timestamp=timestamp_ms)
    assert producer.flush(60) == 0


def read(spark: SparkSession, address: str, source: Source) -> list[dict[str, Any]]:
    """Returns *source*'s topic as the driver reads it, by offset."""
    raw = spark.read.format("kafka").options(**kafka_options(source, Cluster(address))).load()
    return collect(records_of(raw, source), [source]).sort("offset").to_dicts()


def body(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "at": NOON, **fields}).encode()


def test_poison_is_told_apart_and_comes_with_its_bytes(spark: SparkSession, broker: str) -> None:
    large = body(id="x" * 10_000_000, n="no number")
    poison = [
        (None, None, "null_value"),
        (None, body(n="five"), "wrong_type"),
        (b"\xff\xfe", body(), "invalid_key"),
        (b"a", None, "null_value"),
        (b"a", b'{"id": "\xff"}', "invalid_utf8"),
        (b"a", b"", "malformed_json"),
        (b"a", b'{"id": "a", "at":', "malformed_json"),
        (b"a", b'{"id": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "malformed_json"),
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
    send(broker, "poison", *((key, value) for key, value, _ in poison), (b"a", body(n=5)))
    rows = read(spark, broker, source("poison"))
    assert [(row["offset"], row["reason"]) for row in rows[:-1]] == [(i, why) for i, (*_, why) in enumerate(poison)]
    assert [(row["key"], row["value"]) for row in rows[:-1]] == [(key, value) for key, value, _ in poison]
    assert rows[-1]["reason"] is None
    assert rows[-1]["poison"] == {"id": "a", "n": 5, "at": NOON}


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
