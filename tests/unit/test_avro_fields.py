"""Records in Avro become fields, from bytes worked out by hand.

An int, a long and a length n are the zigzag varint of n: 2n, and for negative numbers -2n - 1.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl

from tidemark.kernels.formats.avro_fields import avro_fields, avro_types

READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "temp_c", "type": "double"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["COLD", "WARM"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [
                    {"name": "lat", "type": "int"},
                    {"name": "tags", "type": {"type": "array", "items": "string"}},
                ],
            },
        },
    ],
}
VALUE = bytes.fromhex(
    "04 61 31"  # device = "a1", of 2 bytes
    "00 00 00 00 00 00 F8 3F"  # temp_c = 1.5
    "02 05"  # n: the second branch, -3
    "D0 0F"  # at = 1,000 ms: 2,000 is 15 * 128 + 80
    "02"  # kind: the second symbol
    "04 04 D2"  # price: 2 bytes, 1,234 hundredths
    "04 FF 00"  # raw
    "02"  # day: one day after 1970-01-01
    "0E 02 02 78 00"  # place: lat 7; tags: one item of 1 byte, and the end
)
SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def read(words: dict[str, str], *, others: bool = False, **changes: Any) -> dict[str, Any]:
    found = avro_fields(pl.Series([VALUE]), words, json.dumps(READING | changes), others=others)
    assert found.reasons.to_list() == [None]
    row = {name: column[0] for name, column in found.columns.items()}
    return {**row, **({"others": json.loads(found.others[0])} if others else {})}


def test_wire_bytes_become_values_of_each_type() -> None:
    words = {
        "device": "string",
        "temp_c": "double",
        "n": "bigint",
        "at": "timestamp",
        "kind": "string",
        "price": "double",
    }
    assert read(words) == {"device": "a1", "temp_c": 1.5, "n": -3, "at": SECOND, "kind": "WARM", "price": 12.34}


def test_a_string_has_the_text_of_any_other_value() -> None:
    words = dict.fromkeys(("n", "temp_c", "at", "price", "raw", "day", "place"), "string")
    assert read(words) == {
        "n": "-3",
        "temp_c": "1.5",
        "at": "1970-01-01T00:00:01Z",
        "price": "12.34",
        "raw": "/wA=",
        "day": "1970-01-02",
        "place": '{"lat":7,"tags":["x"]}',
    }


def test_other_fields_are_a_json_object() -> None:
    words = dict.fromkeys(("device", "temp_c", "n", "at", "day"), "string")
    others = {"kind": "WARM", "price": "12.34", "raw": "/wA=", "place": {"lat": 7, "tags": ["x"]}}
    assert read(words, others=True)["others"] == others


def test_a_field_that_the_schema_lacks_is_null() -> None:
    assert read({"device": "string", "colour": "string", "hue": "timestamp"}) == {
        "device": "a1",
        "colour": None,
        "hue": None,
    }


def test_types_of_other_schemas_are_resolved() -> None:
    place = {"type": "record", "name": "plant.Place", "fields": [{"name": "lat", "type": "int"}]}
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "place", "type": "plant.Place"}]})
    found = avro_fields(pl.Series([b"\x0e"]), {"place": "string"}, schema, referenced=(json.dumps(place),))
    assert found.columns["place"].to_list() == ['{"lat":7}']
    assert avro_types(schema) == {"place": "plant.Place"}


def test_unknown_logical_types_are_those_beneath() -> None:
    """Avro demands that readers ignore them."""
    types = [
        ("long", "big.serial"),
        ("string", None),
        ("int", 5),
        ("string", "timestamp-millis"),
        ("bytes", "decimals"),
    ]
    fields = [{"name": f"f{n}", "type": {"type": t, "logicalType": logical}} for n, (t, logical) in enumerate(types)]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    assert avro_types(schema) == {"f0": "bigint", "f1": "string", "f2": "int", "f3": "string", "f4": "binary"}
    words = {"f0": "bigint", "f1": "string", "f2": "int", "f3": "string", "f4": "string"}
    found = avro_fields(pl.Series([bytes.fromhex("0E 02 61 05 02 62 02 FF")]), words, schema)
    assert [column[0] for column in found.columns.values()] == [7, "a", -3, "b", "/w=="]


ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "long"},
                        {
                            "name": "price",
                            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
                        },
                        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {"name": "time", "type": "string"},
    ],
}
"""Of the form of Debezium: two fields have a type that one of them defines."""
CHANGED = bytes.fromhex(
    "00"  # before: null
    "02 0A 04 04 D2 D0 0F"  # after: id 5; price 1,234 hundredths; at 1,000 ms
    "06 31 65 33"  # time = "1e3"
)


def test_a_path_leads_into_records() -> None:
    words = {
        "after.id": "bigint",
        "after.price": "decimal(12,2)",
        "after.at": "timestamp",
        "before.id": "int",
        "time": "bigint",
    }
    found = avro_fields(pl.Series([CHANGED]), words, json.dumps(ENVELOPE), time="time", others=True)
    assert found.reasons.to_list() == [None]
    assert {path: column[0] for path, column in found.columns.items()} == {
        "after.id": 5,
        "after.price": Decimal("12.34"),
        "after.at": SECOND,
        "before.id": None,
        "time": 1000,
    }
    assert json.loads(found.others[0]) == {"after": {"id": 5, "price": "12.34", "at": "1970-01-01T00:00:01Z"}}
    types = avro_types(json.dumps(ENVELOPE), [*words, "after.x", "time.x"])
    assert {path: types.get(path) for path in (*words, "after.x", "time.x")} == {
        "after.id": "bigint",
        "after.price": "decimal(9,2)",
        "after.at": "timestamp",
        "before.id": "bigint",
        "time": "string",
        "after.x": None,
        "time.x": None,
    }


def test_a_decimal_is_read_with_its_digits() -> None:
    words = {"price": "decimal(12,4)", "n": "decimal(19,0)"}
    assert read(words) == {"price": Decimal("12.3400"), "n": Decimal(-3)}
