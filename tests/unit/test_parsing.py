"""Parsing of topic records: fields, record time, and reasons for rejection."""

from __future__ import annotations

import io
import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import fastavro
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parsed_source import AVRO, MICROSECOND, NOON, NOON_S, source
from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import HEADERS
from tidemark.kernels.formats.avro_fields import avro_types
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_fields import NanPolicy
from tidemark.model.settings.intervals import utc
from tidemark.model.toml_operators import RESERVED
from tidemark.stream.read.fitting import require_fitting
from tidemark.stream.read.parsing import parsed

RAW = pl.Schema({"key": pl.Binary(), "value": pl.Binary(), "headers": HEADERS})


def records(*of_topic: tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Any]) -> pl.DataFrame:
    """Returns a topic's rows as Spark reads them.

    Each has key, value and headers; the broker got them at NOON + 7.
    """
    rows = [(*record, *[None] * (3 - len(record))) for record in of_topic]
    place = {"source": pl.lit("t"), "partition": pl.lit(0, pl.Int32), "offset": pl.int_range(pl.len())}
    return pl.DataFrame(rows, schema=RAW, orient="row").with_columns(**place, clock_ms=pl.lit(NOON + 7, pl.Int64))


def read(raw: pl.DataFrame, source: Source) -> list[dict[str, Any]]:
    return parsed(source, raw).to_dicts()


def body(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "at": NOON, **fields}).encode()


def test_nan_is_kept_or_quarantined() -> None:
    values = [body(x=float("nan")), body(x="NaN"), body(x=float("nan"), at=None), body(x=float("inf")), body(x=None)]
    found = records(*((b"a", value) for value in values), (b"a", None))
    fields = {"id": "string", "x": "double", "at": "bigint"}
    nan, undated = "not_a_number", "missing_timestamp"
    quarantined = read(found, source(key="id", fields=fields, nan=NanPolicy.QUARANTINE))
    assert [row["reason"] for row in quarantined] == [nan, nan, nan, None, None, None]
    assert [row["value"] for row in quarantined[:3]] == values[:3]
    kept = read(found, source(key="id", fields=fields))
    assert [row["reason"] for row in kept] == [None, None, undated, None, None, None]
    assert [row["t"]["x"] for row in kept[3:5]] == [float("inf"), None]
    assert all(math.isnan(row["t"]["x"]) for row in kept[:2])


PATHS = {"id": "string", "n": "int", "fare": "decimal(12,2)", "whole": "string", "at": "decimal(16,6)"}
NAMED = {"id": "`user.id`", "n": "data.`a.b`.n", "fare": "data.fare", "whole": "data", "at": "data.occurredAt"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            '{"user.id":"a","data":{"occurredAt":1400000000.25,"a.b":{"n":7},"fare":7.31},"user":{"id":"b"}}',
            ("a", 7, Decimal("7.31"), '{"a.b":{"n":7},"fare":7.31,"occurredAt":1400000000.25}'),
        ),
        ('{"data":{"occurredAt":"1.4e9","fare":"-0.50"}}', (None, None, Decimal("-0.50"), ANY)),
        ('{"data":{"occurredAt":1400000000,"fare":1e2,"a.b":null}}', (None, None, Decimal(100), ANY)),
        ('{"data":{"occurredAt":1400000000,"fare":7.310},"x":NaN}', (None, None, Decimal("7.31"), ANY)),
        ('{"data":{"occurredAt":1400000000,"fare":7.311}}', "wrong_type"),
        ('{"data":{"occurredAt":1400000000,"fare":12345678901}}', "wrong_type"),
        ('{"data":{"occurredAt":1400000000,"fare":NaN}}', "wrong_type"),
        ('{"data":{"occurredAt":1400000000,"fare":true}}', "wrong_type"),
        ('{"data":{"occurredAt":1400000000,"a.b":5}}', "wrong_type"),
        ('{"data":[{"occurredAt":1400000000}]}', "wrong_type"),
        ('{"data":{"occurredAt":{}}}', "wrong_type"),
        ('{"data":{"fare":1}}', "missing_timestamp"),
        ('{"data":null,"occurredAt":1400000000}', "missing_timestamp"),
    ],
)
def test_a_field_may_be_inside_an_object(content: str, expected: Any) -> None:
    reading = source(fields=PATHS, named=NAMED, timestamp_unit="s", other_fields="rest")
    (row,) = read(records((b"k", content.encode())), reading)
    assert (row["reason"] or tuple(row["t"].values())[:4]) == expected


def test_an_object_with_declared_fields_is_kept_whole_among_the_others() -> None:
    fields, named = {"n": "int", "at": "bigint"}, {"n": "data.n", "at": "data.at"}
    content = b'{"data":{"n":1,"at":%d,"more":[2]},"x":3}' % NOON
    (row,) = read(records((b"k", content)), source(fields=fields, named=named, other_fields="rest"))
    others = {"data": {"at": NOON, "more": [2], "n": 1}, "x": 3}
    assert row["t"] == {"n": 1, "at": NOON, "rest": json.dumps(others, separators=(",", ":"))}


def test_a_record_that_says_only_its_time_needs_no_key() -> None:
    found = records((None, body(id=None)), (None, body(id=None, at=-1)), (None, body(id=None, at=None)))
    reasons = [row["reason"] for row in read(found, source())]
    assert reasons == [None, "timestamp_out_of_range", "missing_timestamp"]


def test_a_record_without_a_key_can_be_used() -> None:
    found = records((None, body(n=5)), (b"", body(n=6)))
    rows = read(found, source())
    assert [(row["key"], row["reason"], row["t"]["n"]) for row in rows] == [(None, None, 5), (b"", None, 6)]
    keyed = read(found, source(key="id"))
    assert [(row["reason"], row["t"]["id"]) for row in keyed] == [(None, None), (None, "")]


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
def test_a_timestamp_is_scaled_from_its_unit(unit: str, instant: int, expected: int) -> None:
    found = records((b"a", json.dumps({"id": "a", "at": instant}).encode()))
    (row,) = read(found, source(timestamp_unit=unit))
    assert row["timestamp_ms"] == expected
    assert (row["reason"] is None) == (expected is not None and expected > 0)


RARE_EVENT_TIMES = (
    ("timestamp", "ms", '"2014-05-13 16:53:20,250"', "2014-05-13T16:53:20.250"),
    ("timestamp", "ms", '"2014-05-13T16:53Z"', "2014-05-13T16:53:00.000"),
    ("timestamp", "ms", '"2014-05-13T1653Z"', "wrong_type"),
    ("timestamp", "ms", '"1400000000250"', "wrong_type"),
    ("timestamp", "ms", '"Tue, 13 May 2014 16:53:20 GMT"', "wrong_type"),
    ("bigint", "ns", '"1400000000250999999"', "2014-05-13T16:53:20.250"),
    ("bigint", "s", "1.4e9", "2014-05-13T16:53:20.000"),
    ("bigint", "us", "1.400000000250999e15", "2014-05-13T16:53:20.250"),
    ("decimal(16,6)", "s", "1.40000000025e+9", "2014-05-13T16:53:20.250"),
    ("double", "s", '"1400000000.251"', "2014-05-13T16:53:20.251"),
    ("double", "ms", "1.40000000025e12", "2014-05-13T16:53:20.250"),
)
"""Type, unit, value in the record, and event time or reason: forms that the page of recipes does not list."""


def test_event_times_are_what_the_page_of_recipes_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    row_of_page = re.compile(
        r"^\| `(timestamp|bigint|double|decimal\(\d+,\d\))` \| (?:`(\w+)`)? ?\| `(.*)` \| (\S+) \|$", re.MULTILINE
    )
    rows = [*row_of_page.findall(text), *RARE_EVENT_TIMES]
    assert len(rows) == 33
    found: dict[int, str] = {}
    for n, (kind, unit, written, _) in enumerate(rows):
        reading = source(fields={"at": kind}, timestamp_unit=unit or "ms")
        (row,) = read(records((b"a", b'{"at": %s}' % written.encode())), reading)
        at = row["reason"] or utc(row["timestamp_ms"]).isoformat(timespec="milliseconds")
        found[n] = at.removesuffix("+00:00")
    assert found == {n: expected for n, (*_, expected) in enumerate(rows)}


def test_a_timestamp_is_text_in_iso_8601_or_that_of_kafka() -> None:
    day = "2014-05-13"
    texts = [f"{day}T16:53:20.000001Z", f"{day}T18:53:20.000001999+02:00", f"{day} 16:53:20", f"{day}T16:53:19.9999Z"]
    wrong = ["16:53", "2014", 7, "0000-01-01T00:00:00Z", f"{day}T25:00:00Z"]
    found = records(*((b"a", body(at=text)) for text in [*texts, *wrong]))
    rows = read(found, source(fields={"id": "string", "at": "timestamp"}))
    assert [row["timestamp_ms"] for row in rows[:4]] == [NOON, NOON, NOON, NOON - 1]
    assert [row["reason"] for row in rows] == [None] * 4 + ["wrong_type"] * 5
    # What is smaller than a microsecond is cut off.
    instant = datetime.fromtimestamp(NOON_S, UTC)
    assert [(row["t"]["at"] - instant) // MICROSECOND for row in rows[:4]] == [1, 1, 0, -100]
    kafka = read(found, source(fields={"id": "string"}, timestamp=None))
    assert [row["timestamp_ms"] for row in kafka] == [NOON + 7] * 9


def test_the_key_fills_a_field_and_a_null_value_deletes_it() -> None:
    found = records((b"k", body(n=1)), (b"k", None), (None, None), (b"\xff", None))
    rows = read(found, source(key="id"))
    assert [(r["deleted"], r["reason"], r["timestamp_ms"], r["t"]) for r in rows[:2]] == [
        (False, None, NOON, {"id": "k", "n": 1, "at": NOON}),
        (True, None, None, {"id": "k", "n": None, "at": None}),
    ]
    assert [row["reason"] for row in rows[2:]] == ["null_key", "invalid_key"]
    # A source that does not use the key takes any.
    assert [row["reason"] for row in read(records((b"\xff", body(n=1)), (b"\0\1", body(n=1))), source())] == [None] * 2
    (_, deleted, *_) = read(found, source(key="id", timestamp=None))
    assert deleted["timestamp_ms"] == NOON + 7


def test_no_operator_is_named_as_a_column_beside_its_records() -> None:
    raw = records((b"a", body())).with_columns(written=pl.lit(0), stamped_ms=pl.lit(0))
    assert {*raw.columns, *parsed(source("t"), raw).columns} - {"t"} == RESERVED


@pytest.mark.parametrize(
    ("place", "unit", "word"),
    [({"tombstone_header": "at"}, "s", "bigint"), ({"tombstone_field": "a t"}, "ms", "timestamp")],
)
def test_a_header_or_a_field_of_the_key_has_a_tombstones_time(place: dict[str, str], unit: str, word: str) -> None:
    said = [
        str(NOON_S) if word == "bigint" else "2014-05-13T16:53:20Z",
        None,
        "soon",
        "1" if word == "bigint" else "1970-01-01",
    ]
    named = "tombstone_header" in place
    found = records(
        *(
            (
                ("k" if named else json.dumps({"a t": text} if text else {})).encode(),
                None,
                [{"key": "at", "value": b"0"}, {"key": "at", "value": text.encode()}] if named and text else [],
            )
            for text in said
        )
    )
    fields = {"id": "string", "n": "int", "at": word}
    rows = read(found, source(key="id", timestamp_unit=unit, fields=fields, **place))
    assert [row["timestamp_ms"] for row in rows[:3]] == [NOON, None, None]
    assert [row["reason"] for row in rows] == [None, None, "wrong_type", "timestamp_out_of_range"]


def test_undeclared_fields_are_kept_in_the_named_column() -> None:
    found = records((b"a", body()), (b"a", body(zone="z", list=[1, {"k": "5"}], none=None)))
    rows = read(found, source(other_fields="rest"))
    assert rows[0]["t"]["rest"] is None
    assert json.loads(rows[1]["t"]["rest"]) == {"zone": "z", "list": [1, {"k": "5"}], "none": None}


def test_a_record_that_is_no_object_is_refused_between_others() -> None:
    values = [body(n=1), b"[1]", b"7", b"{", b'{"id": "b", "at": 1, "n": "\xff"}', body(n=2)]
    with_others = source(fields={"id": "string", "at": "bigint"}, other_fields="rest")
    found = read(records(*((b"k", value) for value in values)), with_others)
    assert [row["reason"] for row in found] == [
        None, "wrong_type", "wrong_type", "malformed_json", "invalid_utf8", None
    ]  # fmt: skip
    assert [row["t"]["rest"] for row in found] == ['{"n":1}', None, None, None, None, '{"n":2}']


def test_a_column_is_filled_by_a_field_of_another_name() -> None:
    record = {"ID": "a", "event Time": NOON, "id": "other", "n": 7}
    found = records((b"k", json.dumps(record).encode()), (b"k", json.dumps({**record, "n": "x"}).encode()))
    named = {"id": "ID", "at": "event Time"}
    rows = read(found, source(named=named, other_fields="rest"))
    assert (rows[0]["timestamp_ms"], rows[0]["reason"]) == (NOON, None)
    assert rows[0]["t"] == {"id": "a", "n": 7, "at": NOON, "rest": '{"id":"other"}'}
    assert rows[1]["reason"] == "wrong_type"


def test_two_keys_with_half_a_character_each_are_not_made_one() -> None:
    def told(id_: bytes, more: bytes = b"") -> bytes:
        return b'{"id": "' + id_ + b'", "at": %d%s}' % (NOON, more)

    whole = [(rb"a\\ud800", r"a\ud800"), (rb"\ud83d\ude00", "\U0001f600"), (b"a?", "a?")]
    half = [rb"a\ud800", rb"a\uDBFF", rb"a\udc00", rb"\ude00\ud83d", rb"\\ud83d\ude00", rb"\\\ud800"]
    elsewhere = told(b"a", rb', "zone": "\ud800"')
    found = records(*((b"k", told(id_)) for id_ in [*half, *(id_ for id_, _ in whole)]), (b"k", elsewhere))
    rows = read(found, source())
    assert [row["reason"] for row in rows] == ["invalid_utf8"] * 6 + [None] * 4
    assert [row["t"]["id"] for row in rows[6:]] == [*(id_ for _, id_ in whole), "a"]
    kept = read(found, source(other_fields="rest"))
    assert (kept[-1]["reason"], kept[-1]["value"]) == ("invalid_utf8", elsewhere)


def test_a_field_that_comes_twice_does_not_take_the_others_away() -> None:
    twice = b'{"id": "a", "at": %d, "zone": "z", "deep": [{"k": 1, "k": 2}]}' % NOON
    wrong = b'{"id": "a", "at": "no", "deep": {"k": 1, "k": 2}}'
    found = records((b"k", twice), (b"k", wrong))
    rows = read(found, source(other_fields="rest"))
    assert json.loads(rows[0]["t"]["rest"]) == {"zone": "z", "deep": [{"k": 2}]}
    assert [row["reason"] for row in rows] == [None, "wrong_type"]


def avro(**fields: Any) -> bytes:
    written = io.BytesIO()
    record = {"id": "a", "n": None, "at": NOON, "zone": None, **fields}
    fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), record)
    return written.getvalue()


def test_avro_that_can_be_read_is_and_what_cannot_is_malformed() -> None:
    two_gigabytes = b"\x02\xfe\xff\xff\xff\x0fabc"  # a string that says it is 2**31 - 1 bytes long
    malformed = [b"", b"\xff" * 9, b"{}", avro()[:-3], two_gigabytes]
    invalid = avro(id="\x7f").replace(b"\x7f", b"\xff")
    found = records((b"a", avro(n=5, zone="z")), *((b"a", value) for value in malformed), (b"a", invalid))
    fields = {"id": "string", "n": "bigint", "at": "timestamp"}
    rows = read(
        found,
        source(format=Format.AVRO, avro_schema=json.dumps(AVRO), fields=fields, other_fields="rest"),
    )
    assert rows[0]["t"] == {"id": "a", "n": 5, "at": datetime.fromtimestamp(NOON_S, UTC), "rest": '{"zone":"z"}'}
    assert [row["reason"] for row in rows] == [None, *["malformed_avro"] * 5, "invalid_utf8"]
    assert [row["value"] for row in rows[1:]] == [*malformed, invalid]


def test_a_field_that_the_avro_schema_lacks_is_refused_early() -> None:
    types = avro_types(json.dumps(AVRO))
    missing = source("a", fields={"area": "string", "at": "bigint"})
    with pytest.raises(InvalidArgument, match=r"operators.a.fields names area; it reads the fields: id, n, at, zone"):
        require_fitting(types, missing)
    with pytest.raises(InvalidArgument, match=r"n is int, not string; at is timestamp, not bigint"):
        require_fitting(types, source("a", fields={"n": "string", "at": "bigint"}))


@pytest.mark.parametrize(
    ("type_", "word"),
    [
        ("long", "bigint"),
        (["null", "int", "long"], "bigint"),
        (["float", "double"], "double"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, "string"),
        ({"type": "int", "logicalType": "date"}, "date"),
        (["null", {"type": "long", "logicalType": "local-timestamp-micros"}], "timestamp"),
        (["int", "string"], "one of int, string"),
    ],
)
def test_a_type_of_avro_has_the_name_that_fields_have_for_it(type_: Any, word: str) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": type_}]}
    assert avro_types(json.dumps(schema)) == {"x": word}


@pytest.mark.parametrize(
    ("unit", "written", "expected_us"),
    [("millis", -1, -1_000), ("micros", -1, -1), ("nanos", -1, -1), ("nanos", 1_999, 1), ("millis", 2**62, None)],
)
def test_an_instant_of_avro_is_in_microseconds(unit: str, written: int, expected_us: int | None) -> None:
    plain = {"type": "record", "name": "r", "fields": [{"name": "at", "type": "long"}]}
    timed = {**plain, "fields": [{"name": "at", "type": {"type": "long", "logicalType": f"timestamp-{unit}"}}]}
    value = io.BytesIO()
    fastavro.schemaless_writer(value, fastavro.parse_schema(plain), {"at": written})
    reading = source(format=Format.AVRO, avro_schema=json.dumps(timed), fields={"at": "timestamp"})
    (row,) = read(records((b"a", value.getvalue())), reading)
    epoch = datetime.fromtimestamp(0, UTC)
    at = row["t"]["at"]
    assert (None if at is None else (at - epoch) // MICROSECOND) == expected_us
    assert (row["reason"] == "wrong_type") == (expected_us is None)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode)), max_size=5))
def test_no_bytes_of_a_record_raise(values: list[bytes | None]) -> None:
    of_avro = source(format=Format.AVRO, avro_schema=json.dumps(AVRO), fields={"id": "string", "at": "timestamp"})
    for reading in (source(other_fields="rest"), of_avro):
        rows = read(records(*((value, value) for value in values)), reading)
        assert [row["value"] for row in rows] == values
        assert all(row["reason"] for row in rows)  # none of these has a time


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
FITS = {
    "string": lambda value: True,
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and -(2**31) <= value < 2**31,
    "double": lambda value: type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity", "INF"),
}


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys([*FITS, "more"], JSON)), max_size=4))
def test_a_field_has_its_value_or_its_record_is_of_a_wrong_type(objects: list[dict[str, Any]]) -> None:
    raw = records(*((b"a", json.dumps(found).encode()) for found in objects))
    rows = read(raw, source(fields={name: name for name in FITS}, timestamp=None, other_fields="rest"))
    for found, row in zip(objects, rows, strict=True):
        fits = all(found.get(name) is None or fit(found[name]) for name, fit in FITS.items())
        assert row["reason"] == (None if fits else "wrong_type")
        if fits:
            assert (row["t"]["boolean"], row["t"]["int"]) == (found.get("boolean"), found.get("int"))
            number = None if found.get("double") is None else float(found["double"])
            assert row["t"]["double"] == number or (math.isnan(number) and math.isnan(row["t"]["double"]))
            if isinstance(found.get("string"), str | None):
                assert row["t"]["string"] == found.get("string")
            assert (row["t"]["rest"] is None) == ("more" not in found)
