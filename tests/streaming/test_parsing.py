"""What real Spark makes of what lies in a real topic: fields, record time, and a reason for what nobody can use.

The functions are those of the streams; here they read a topic as one batch.
"""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from tidemark.errors import InvalidArgument
from tidemark.kernels.marks import with_marks
from tidemark.semantics.progress import InputProgress
from tidemark.spec.connections import DEFAULT, Cluster
from tidemark.spec.intervals import utc
from tidemark.spec.operators import Format, Kind, NotANumber, Sink, Source
from tidemark.stream.kafka import KafkaBroker
from tidemark.stream.parsing import kafka_records, table_rows
from tidemark.stream.sources import collect, kafka_options

NOON_S = 1_400_000_000
NOON = NOON_S * 1_000
MICROSECOND = timedelta(microseconds=1)
RANGE = (946_684_800_000, 4_102_444_800_000)  # 2000 to 2100
FIELDS = {"id": "string", "n": "int", "at": "bigint"}
AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "n", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "zone", "type": ["null", "string"]},
    ],
}


def source(topic: str, **changes: Any) -> Source:
    common = {"name": topic, "kind": Kind.SOURCE, "topic": topic, "timestamp_range_ms": RANGE, "bound_ms": 0}
    return Source(**{**common, "fields": FIELDS, "timestamp": "at", **changes})


def send(address: str, topic: str, *records: tuple[bytes | None, bytes | None], timestamp_ms: int = NOON + 7) -> None:
    new = NewTopic(topic, 1, 1, config={"max.message.bytes": "20000000"})
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([new])[topic].result()
    producer = Producer({"bootstrap.servers": address, "message.max.bytes": 20_000_000})
    for key, value in records:
        producer.produce(topic, value, key, 0, timestamp=timestamp_ms)
    assert producer.flush(60) == 0


def read(spark: SparkSession, address: str, source: Source) -> list[dict[str, Any]]:
    """What the driver would get of the topic of *source*, in offset order."""
    raw = spark.read.format("kafka").options(**kafka_options(source, Cluster(address))).load()
    return pl.DataFrame(collect(kafka_records(raw, source), {})).sort("offset").to_dicts()


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
    assert (rows[-1]["reason"], rows[-1]["value"]) == (None, None)
    assert rows[-1]["poison"] == {"id": "a", "n": 5, "at": NOON}


def test_nan_is_kept_or_quarantined(spark: SparkSession, broker: str) -> None:
    values = [body(x=float("nan")), body(x="NaN"), body(x=float("nan"), at=None), body(x=float("inf")), body(x=None)]
    send(broker, "nan", *((b"a", value) for value in values), (b"a", None))
    fields = {"id": "string", "x": "double", "at": "bigint"}
    nan, undated = "not_a_number", "missing_timestamp"
    quarantined = read(spark, broker, source("nan", key="id", fields=fields, nan=NotANumber.QUARANTINE))
    assert [row["reason"] for row in quarantined] == [nan, nan, nan, None, None, None]
    assert [row["value"] for row in quarantined[:3]] == values[:3]
    kept = read(spark, broker, source("nan", key="id", fields=fields))
    assert [row["reason"] for row in kept] == [None, None, undated, None, None, None]
    assert [row["nan"]["x"] for row in kept[3:5]] == [float("inf"), None]
    assert all(math.isnan(row["nan"]["x"]) for row in kept[:2])


def test_a_record_that_says_only_its_time_needs_no_key(spark: SparkSession, broker: str) -> None:
    send(broker, "alive", (None, body(id=None)), (None, body(id=None, at=-1)), (None, body(id=None, at=None)))
    reasons = [row["reason"] for row in read(spark, broker, source("alive"))]
    assert reasons == [None, "timestamp_out_of_range", "missing_timestamp"]


def test_a_record_without_a_key_can_be_used(spark: SparkSession, broker: str) -> None:
    send(broker, "unkeyed", (None, body(n=5)), (b"", body(n=6)))
    rows = read(spark, broker, source("unkeyed"))
    assert [(row["key"], row["reason"], row["unkeyed"]["n"]) for row in rows] == [(None, None, 5), (b"", None, 6)]
    keyed = read(spark, broker, source("unkeyed", key="id"))
    assert [(row["reason"], row["unkeyed"]["id"]) for row in keyed] == [(None, None), (None, "")]


@pytest.mark.parametrize(
    ("unit", "instant", "expected"),
    [
        ("s", NOON_S, NOON),
        ("ms", NOON + 1, NOON + 1),
        ("us", NOON * 1_000 + 1_999, NOON + 1),
        ("ns", NOON * 1_000_000 + 1_999_999, NOON + 1),
        ("s", 2**62, None),
        ("us", -1, -1),
    ],
)
def test_a_timestamp_is_scaled_from_its_unit(spark: SparkSession, unit: str, instant: int, expected: int) -> None:
    kafka = "binary('a') as key, 0 as partition, 0L as offset, now() as timestamp, array() as headers"
    raw = spark.sql(f"select {kafka}, binary('{json.dumps({'id': 'a', 'at': instant})}') as value")
    (row,) = kafka_records(raw, source("scaled", timestamp_unit=unit)).collect()
    assert row.timestamp_ms == expected
    assert (row.reason is None) == (expected is not None and expected > 0)


def test_event_times_are_what_the_page_of_recipes_says(spark: SparkSession) -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(timestamp|bigint)` \| (?:`(\w+)`)? ?\| `(.*)` \| (\S+) \|$", text, re.MULTILINE)
    assert len(rows) == 20
    kafka = "binary('a') as key, 0 as partition, now() as timestamp, array() as headers"
    found: dict[int, str] = {}
    for kind, unit in {row[:2] for row in rows}:
        of_kind = {n: written for n, (*is_, written, _) in enumerate(rows) if is_ == [kind, unit]}
        values = ", ".join(f"({n}L, binary('{{\"at\": {written}}}'))" for n, written in of_kind.items())
        raw = spark.sql(f"select {kafka}, offset, value from values {values} as t(offset, value)")
        reading = source("times", fields={"at": kind}, timestamp_unit=unit or "ms")
        for row in kafka_records(raw, reading).collect():
            at = row.reason or utc(row.timestamp_ms).isoformat(timespec="milliseconds")
            found[row.offset] = at.removesuffix("+00:00")
    assert found == {n: expected for n, (*_, expected) in enumerate(rows)}


def test_a_timestamp_is_text_in_iso_8601_or_that_of_kafka(spark: SparkSession, broker: str) -> None:
    day = "2014-05-13"
    texts = [f"{day}T16:53:20.000001Z", f"{day}T18:53:20.000001999+02:00", f"{day} 16:53:20", f"{day}T16:53:19.9999Z"]
    wrong = ["16:53", "2014", 7, "0000-01-01T00:00:00Z", f"{day}T25:00:00Z"]
    send(broker, "texts", *((b"a", body(at=text)) for text in [*texts, *wrong]))
    rows = read(spark, broker, source("texts", fields={"id": "string", "at": "timestamp"}))
    assert [row["timestamp_ms"] for row in rows[:4]] == [NOON, NOON, NOON, NOON - 1]
    assert [row["reason"] for row in rows] == [None] * 4 + ["wrong_type"] * 5
    # What is smaller than a microsecond is cut off.
    instant = datetime.fromtimestamp(NOON_S, UTC)
    assert [(row["texts"]["at"] - instant) // MICROSECOND for row in rows[:4]] == [1, 1, 0, -100]
    kafka = read(spark, broker, source("texts", fields={"id": "string"}, timestamp=None))
    assert [row["timestamp_ms"] for row in kafka] == [NOON + 7] * 9


def test_a_timestamp_of_a_table_keeps_its_microseconds(spark: SparkSession) -> None:
    select = "'a' as id, timestamp '2014-05-13 16:53:20.000001Z' as at, timestamp_ntz '2014-05-13 16:53:20.5' as ntz"
    far = "timestamp '2014-05-13 16:53:20Z' + make_interval(8000) as seen"
    raw = spark.sql(f"select {select}, {far}, struct(1L as at_ms, 'f' as file, 0L as start) as written")
    fields = {"id": "string", "at": "timestamp", "seen": "timestamp"}
    reading = replace(source("t", fields=fields, other_fields="rest"), topic=None, delta="t")
    (row,) = pl.DataFrame(collect(table_rows(raw, reading), {})).to_dicts()
    assert (row["timestamp_ms"], row["reason"]) == (NOON, "wrong_type")  # the year 10014
    assert row["t"]["at"] == datetime.fromtimestamp(NOON_S, UTC) + MICROSECOND
    assert row["t"]["rest"] == '{"ntz":"2014-05-13T16:53:20.500000"}'
    assert json.loads(row["value"])["at"] == "2014-05-13T16:53:20.000001Z"


def test_the_key_fills_a_field_and_a_null_value_deletes_it(spark: SparkSession, broker: str) -> None:
    send(broker, "keyed", (b"k", body(n=1)), (b"k", None), (None, None), (b"\xff", None))
    rows = read(spark, broker, source("keyed", key="id"))
    assert [(r["deleted"], r["reason"], r["timestamp_ms"], r["keyed"]) for r in rows[:2]] == [
        (False, None, NOON, {"id": "k", "n": 1, "at": NOON}),
        (True, None, None, {"id": "k", "n": None, "at": None}),
    ]
    assert [row["reason"] for row in rows[2:]] == ["null_key", "invalid_key"]
    (_, deleted, *_) = read(spark, broker, source("keyed", key="id", timestamp=None))
    assert deleted["timestamp_ms"] == NOON + 7


@pytest.mark.parametrize(
    ("place", "unit", "word"),
    [({"tombstone_header": "at"}, "s", "bigint"), ({"tombstone_field": "a t"}, "ms", "timestamp")],
)
def test_a_header_or_a_field_of_the_key_has_a_tombstones_time(
    spark: SparkSession, place: dict[str, str], unit: str, word: str
) -> None:
    said = [
        str(NOON_S) if word == "bigint" else "2014-05-13T16:53:20Z",
        None,
        "soon",
        "1" if word == "bigint" else "1970-01-01",
    ]
    named = "tombstone_header" in place
    records = [
        (
            ("k" if named else json.dumps({"a t": text} if text else {})).encode(),
            [("at", b"0"), ("at", text.encode())] if named and text else [],
            0, offset, None, datetime(2026, 1, 1, tzinfo=UTC),
        )
        for offset, text in enumerate(said)
    ]  # fmt: skip
    raw = spark.createDataFrame(
        records,
        "key binary, headers array<struct<key: string, value: binary>>, partition int, offset bigint, value binary, "
        "timestamp timestamp",
    )
    fields = {"id": "string", "n": "int", "at": word}
    rows = kafka_records(raw, source("t", key="id", timestamp_unit=unit, fields=fields, **place)).collect()
    assert [row.timestamp_ms for row in rows[:3]] == [NOON, None, None]
    assert [row.reason for row in rows] == [None, None, "wrong_type", "timestamp_out_of_range"]


def test_fields_that_are_not_declared_are_kept_where_a_column_is_named_for_them(
    spark: SparkSession, broker: str
) -> None:
    send(broker, "drift", (b"a", body()), (b"a", body(zone="z", list=[1, {"k": "5"}], none=None)))
    rows = read(spark, broker, source("drift", other_fields="rest"))
    assert rows[0]["drift"]["rest"] is None
    assert json.loads(rows[1]["drift"]["rest"]) == {"zone": "z", "list": [1, {"k": "5"}], "none": None}


def test_a_column_is_filled_by_a_field_of_another_name(spark: SparkSession, broker: str) -> None:
    record = {"ID": "a", "event Time": NOON, "id": "other", "n": 7}
    send(broker, "named", (b"k", json.dumps(record).encode()), (b"k", json.dumps({**record, "n": "x"}).encode()))
    named = {"id": "ID", "at": "event Time"}
    rows = read(spark, broker, source("named", named=named, other_fields="rest"))
    assert (rows[0]["timestamp_ms"], rows[0]["reason"]) == (NOON, None)
    assert rows[0]["named"] == {"id": "a", "n": 7, "at": NOON, "rest": '{"id":"other"}'}
    assert rows[1]["reason"] == "wrong_type"
    written = "struct(1L as at_ms, 'f' as file, 0L as start) as written"
    raw = spark.sql(f"select 'a' as ID, {NOON}L as `event Time`, 7 as n, 'z' as zone, {written}")
    reading = replace(source("t", named=named, other_fields="rest"), topic=None, delta="t")
    (row,) = pl.DataFrame(collect(table_rows(raw, reading), {})).to_dicts()
    assert (row["timestamp_ms"], row["t"]) == (NOON, {"id": "a", "n": 7, "at": NOON, "rest": '{"zone":"z"}'})


def test_two_keys_with_half_a_character_each_are_not_made_one(spark: SparkSession, broker: str) -> None:
    def told(id_: bytes, more: bytes = b"") -> bytes:
        return b'{"id": "' + id_ + b'", "at": %d%s}' % (NOON, more)

    whole = [(rb"a\\ud800", r"a\ud800"), (rb"\ud83d\ude00", "\U0001f600"), (b"a?", "a?")]
    half = [rb"a\ud800", rb"a\uDBFF", rb"a\udc00", rb"\ude00\ud83d", rb"\\ud83d\ude00", rb"\\\ud800"]
    elsewhere = told(b"a", rb', "zone": "\ud800"')
    send(broker, "halves", *((b"k", told(id_)) for id_ in [*half, *(id_ for id_, _ in whole)]), (b"k", elsewhere))
    rows = read(spark, broker, source("halves"))
    assert [row["reason"] for row in rows] == ["invalid_utf8"] * 6 + [None] * 4
    assert [row["halves"]["id"] for row in rows[6:]] == [*(id_ for _, id_ in whole), "a"]
    kept = read(spark, broker, source("halves", other_fields="rest"))
    assert (kept[-1]["reason"], kept[-1]["value"]) == ("invalid_utf8", elsewhere)


def test_a_field_that_comes_twice_does_not_take_the_others_away(spark: SparkSession, broker: str) -> None:
    twice = b'{"id": "a", "at": %d, "zone": "z", "deep": [{"k": 1, "k": 2}]}' % NOON
    wrong = b'{"id": "a", "at": "no", "deep": {"k": 1, "k": 2}}'
    send(broker, "twice", (b"k", twice), (b"k", wrong))
    rows = read(spark, broker, source("twice", other_fields="rest"))
    assert json.loads(rows[0]["twice"]["rest"]) == {"zone": "z", "deep": [{"k": 2}]}
    assert [row["reason"] for row in rows] == [None, "wrong_type"]


@pytest.mark.parametrize("changes", [{}, {"key": "id"}, {"timestamp": None}, {"other_fields": "rest"}])
def test_a_mark_of_time_is_told_from_records(spark: SparkSession, broker: str, changes: dict[str, Any]) -> None:
    topic = f"marked_{next(iter(changes), 'plain')}"
    send(broker, topic, (b"a", body()))
    sink = Sink(name="out", kind=Kind.SINK, topic=topic)
    KafkaBroker({DEFAULT: Cluster(broker)}, "up", "s", lambda: NOON).mark(sink, NOON + 5_000, idle=True)
    reading = replace(source(topic, written_by=("up/s",), bound_ms=2_000), **changes)
    raw = spark.read.format("kafka").options(**kafka_options(reading, Cluster(broker))).load()
    records = pl.DataFrame(collect(kafka_records(raw, reading), {})).sort("offset")
    rows, marks = with_marks(reading, records, InputProgress())
    assert rows.select("timestamp_ms", "reason", "deleted").rows()[1] == (NOON + 7_001, None, False)
    assert (rows["reason"].to_list(), marks.idle) == ([None, None], {0: True})


def avro(**fields: Any) -> bytes:
    written = io.BytesIO()
    record = {"id": "a", "n": None, "at": NOON, "zone": None, **fields}
    fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), record)
    return written.getvalue()


def test_avro_that_can_be_read_is_and_what_cannot_is_malformed(spark: SparkSession, broker: str) -> None:
    two_gigabytes = b"\x02\xfe\xff\xff\xff\x0fabc"  # a string that says it is 2**31 - 1 bytes long
    malformed = [b"", b"\xff" * 9, b"{}", avro()[:-3], two_gigabytes]
    invalid = avro(id="\x7f").replace(b"\x7f", b"\xff")
    send(broker, "avro", (b"a", avro(n=5, zone="z")), *((b"a", value) for value in malformed), (b"a", invalid))
    fields = {"id": "string", "n": "bigint", "at": "timestamp"}
    rows = read(
        spark,
        broker,
        source("avro", format=Format.AVRO, avro_schema=json.dumps(AVRO), fields=fields, other_fields="rest"),
    )
    assert rows[0]["avro"] == {"id": "a", "n": 5, "at": datetime.fromtimestamp(NOON_S, UTC), "rest": '{"zone":"z"}'}
    assert [row["reason"] for row in rows] == [None, *["malformed_avro"] * 5, "invalid_utf8"]
    assert [row["value"] for row in rows[1:]] == [*malformed, invalid]


def test_a_field_that_the_avro_schema_does_not_have_is_refused_before_the_stream_starts(spark: SparkSession) -> None:
    kafka = (
        "binary('a') as key, 0 as partition, 0L as offset, now() as timestamp, array() as headers, binary('') as value"
    )
    raw = spark.sql(f"select {kafka}")
    missing = source("a", format=Format.AVRO, avro_schema=json.dumps(AVRO), fields={"area": "string", "at": "bigint"})
    with pytest.raises(InvalidArgument, match=r"operators.a.fields names area; what it reads has: id, n, at, zone"):
        kafka_records(raw, missing)
    wrong = source("a", format=Format.AVRO, avro_schema=json.dumps(AVRO), fields={"n": "string", "at": "bigint"})
    with pytest.raises(InvalidArgument, match=r"n is int, not string; at is timestamp, not bigint"):
        kafka_records(raw, wrong)
