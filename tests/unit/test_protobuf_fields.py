"""Records in Protobuf become fields, from bytes worked out by hand.

A tag is the number of the field times 8 plus its wire type: 0 varint, 1 of 8 bytes, 2 of a length, 5 of 4 bytes.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.kernels.formats.protobuf_fields import (
    InvalidDescriptors,
    message_at,
    message_names,
    protobuf_fields,
    protobuf_types,
)
from tidemark.stream.schemas.protoc import DoesNotCompile, compiled

READING = """
syntax = "proto3";
package plant;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";

message Reading {
  string device = 1;
  double temp_c = 2;
  optional int64 n = 3;
  google.protobuf.Timestamp at = 4;
  Kind kind = 5;
  bytes raw = 6;
  uint64 big = 7;
  Place place = 8;
  map<string, int32> counts = 9;
  sint32 z = 10;
  google.protobuf.Int64Value w = 11;
  repeated string tags = 12;
  float f = 13;
  bool ok = 14;
  enum Kind { COLD = 0; WARM = 1; }
  message Place { int32 lat = 1; repeated string tags = 2; google.protobuf.Timestamp since = 3; bytes raw = 4; }
}
message Alert {
  int32 n = 1;
  message Inner { string id = 1; }
}
"""
A1 = bytes.fromhex("0A 02 61 31")  # device = "a1"


@cache
def descriptors() -> bytes:
    return compiled(READING, {})


def read(value: bytes | None, fields: dict[str, str], *, others: bool = False) -> dict[str, Any]:
    found = protobuf_fields(pl.Series([value], dtype=pl.Binary), fields, descriptors(), "plant.Reading", others=others)
    row = {name: column[0] for name, column in found.columns.items()}
    return {**row, "others": found.others[0], "reason": found.reasons[0]}


def test_wire_bytes_become_values_of_each_type() -> None:
    value = A1 + bytes.fromhex(
        "11 00 00 00 00 00 00 F8 3F"  # temp_c = 1.5
        "18 FD FF FF FF FF FF FF FF FF 01"  # n = -3
        "22 05 08 01 10 CF 0F"  # at = 1 s and 1,999 ns
        "28 01"  # kind = WARM
        "32 02 FF 00"  # raw
        "38 05"  # big = 5
        "50 03"  # z = -2, zigzag
        "5A 02 08 07"  # w = 7
        "6D 00 00 20 C0"  # f = -2.5
        "70 01"  # ok = true
    )
    fields = {
        "device": "string",
        "temp_c": "double",
        "n": "bigint",
        "at": "timestamp",
        "kind": "string",
        "raw": "string",
        "big": "bigint",
        "z": "int",
        "w": "bigint",
        "f": "double",
        "ok": "boolean",
    }
    assert read(value, fields) == {
        "device": "a1",
        "temp_c": 1.5,
        "n": -3,
        "at": datetime(1970, 1, 1, 0, 0, 1, 1, UTC),
        "kind": "WARM",
        "raw": "/wA=",
        "big": 5,
        "z": -2,
        "w": 7,
        "f": -2.5,
        "ok": True,
        "others": None,
        "reason": None,
    }


def test_a_path_leads_into_messages() -> None:
    fields = {"place.lat": "int", "place.since": "timestamp", "n": "decimal(19,0)", "device": "bigint"}
    value = bytes.fromhex("0A 03 31 65 33 18 07 42 06 08 05 1A 02 08 01")  # device "1e3", n 7; place: lat 5, since 1 s
    found = protobuf_fields(pl.Series([value, b""]), fields, descriptors(), "plant.Reading", time="device")
    assert found.reasons.to_list() == [None, "wrong_type"]  # the text "" is no time
    assert [column[0] for column in found.columns.values()] == [5, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 7, 1000]
    absent = protobuf_fields(pl.Series([b""]), {"place.lat": "int"}, descriptors(), "plant.Reading")
    assert absent.columns["place.lat"].to_list() == [None]
    types = protobuf_types(descriptors(), "plant.Reading", ["place.lat", "place.x", "tags.x"])
    assert (types["place.lat"], types.get("place.x"), types.get("tags.x")) == ("int", None, None)


def test_messages_lists_and_maps_are_json_in_a_string() -> None:
    value = bytes.fromhex(
        "42 0B 08 07 12 01 78 1A 02 08 01 22 00"  # place = {lat 7, tags [x], since 1 s, raw empty}
        "4A 05 0A 01 6B 10 02"  # counts = {k: 2}
        "62 01 79 62 01 7A"  # tags = [y, z]
    )
    row = read(value, {"place": "string", "counts": "string", "tags": "string", "n": "string"})
    texts = {name: json.loads(row[name]) for name in ("place", "counts", "tags")}
    assert texts == {
        "place": {"lat": 7, "tags": ["x"], "since": "1970-01-01T00:00:01Z", "raw": ""},
        "counts": {"k": 2},
        "tags": ["y", "z"],
    }
    assert row["n"] is None


def test_what_is_absent_is_null_or_its_default() -> None:
    fields = {"device": "string", "n": "bigint", "at": "timestamp", "kind": "string", "w": "bigint", "place": "string"}
    nothing = {"device": "", "n": None, "at": None, "kind": "COLD", "w": None, "place": None}
    assert read(b"", fields) == {**nothing, "others": None, "reason": None}
    assert read(bytes.fromhex("18 00 5A 00"), fields) == {**nothing, "n": 0, "w": 0, "others": None, "reason": None}
    assert set(read(None, fields).values()) == {None}


def test_a_field_that_the_message_lacks_is_null() -> None:
    assert read(A1, {"device": "string", "colour": "string", "hue": "timestamp"}) == {
        "device": "a1",
        "colour": None,
        "hue": None,
        "others": None,
        "reason": None,
    }


def test_other_fields_are_a_json_object() -> None:
    row = read(A1 + bytes.fromhex("28 09 18 05"), {"device": "string"}, others=True)
    kept = {"n": 5, "kind": 9, "temp_c": 0.0, "raw": "", "big": 0, "z": 0, "f": 0.0, "ok": False}  # 9 has no name
    assert json.loads(row["others"]) == kept


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0A 05 61", "malformed_protobuf"),  # a length beyond the end
        ("FF FF FF", "malformed_protobuf"),  # a varint without an end
        ("0A 01 FF", "invalid_utf8"),
        ("42 03 12 01 FF", "invalid_utf8"),  # inside of place
        ("38 FF FF FF FF FF FF FF FF FF 01", "wrong_type"),  # big = 2^64 - 1
        ("22 08 08 FF FF FF FF FF FF 7F", "wrong_type"),  # at = 2^48 - 1 s, after the year 9999
        ("22 0B 08 FF FF FF FF FF FF FF FF FF 01", None),  # at = -1 s
        ("C2 3E 01 00", None),  # a field of a newer schema, number 1000
    ],
)
def test_an_unreadable_record_has_its_reason(value: str, reason: str | None) -> None:
    row = read(bytes.fromhex(value), {"device": "string", "big": "bigint", "at": "timestamp"})
    assert row["reason"] == reason
    if reason is not None:
        assert {row[name] for name in ("device", "big")} <= {None, "", 0}


def test_texts_of_proto2_are_checked_and_have_defaults() -> None:
    text = 'syntax = "proto2"; message Old { optional string id = 1; optional int32 n = 2 [default = 7]; }'
    old = compiled(text, {})
    values = pl.Series([bytes.fromhex("0A 01 FF"), b"", bytes.fromhex("0A 01 61 10 00")])
    found = protobuf_fields(values, {"id": "string", "n": "int"}, old, "Old")
    assert found.reasons.to_list() == ["invalid_utf8", None, None]
    assert [*zip(found.columns["id"], found.columns["n"], strict=True)][1:] == [(None, 7), ("a", 0)]


def test_a_field_may_have_the_name_of_a_method_of_messages() -> None:
    names = ("HasField", "DESCRIPTOR", "ParseFromString", "FromString")
    fields = " ".join(f"optional string {name} = {number};" for number, name in enumerate(names, 1))
    text = f'syntax = "proto3"; message Odd {{ {fields} Odd inner = 5; }}'
    value = bytes.fromhex(
        "0A 01 61 12 01 62 2A 03 0A 01 63"
    )  # HasField = "a", DESCRIPTOR = "b", inner { HasField = "c" }
    declared = dict.fromkeys([*names, "inner"], "string")
    found = protobuf_fields(pl.Series([value]), declared, compiled(text, {}), "Odd")
    assert [found.columns[name][0] for name in names] == ["a", "b", None, None]
    assert found.columns["inner"][0] == '{"HasField":"c"}'


def test_types_have_the_names_that_fields_have() -> None:
    assert protobuf_types(descriptors(), "plant.Reading") == {
        "device": "string",
        "temp_c": "double",
        "n": "bigint",
        "at": "timestamp",
        "kind": "string",
        "raw": "binary",
        "big": "unsigned bigint",
        "place": "message",
        "counts": "map",
        "z": "int",
        "w": "bigint",
        "tags": "array",
        "f": "float",
        "ok": "boolean",
    }


def test_indexes_name_a_message_of_the_schema() -> None:
    assert message_names(descriptors()) == ["plant.Reading", "plant.Alert"]
    found = [message_at(descriptors(), place) for place in ((0,), (0, 0), (1, 0), (2,), (1, 1), (-1,), ())]
    assert found == ["plant.Reading", "plant.Reading.Place", "plant.Alert.Inner", None, None, None, None]


def test_descriptors_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(InvalidDescriptors, match="is not a set of Protobuf descriptors"):
        message_names(b"\xff\xff")
    with pytest.raises(InvalidDescriptors, match=r"has no message plant\.Wrong; it has plant.Reading, plant.Alert"):
        protobuf_types(descriptors(), "plant.Wrong")


def test_a_schema_is_compiled_with_its_imports() -> None:
    main = 'syntax = "proto3"; import "a/b.proto"; message M { a.B b = 1; }'
    other = 'syntax = "proto3"; package a; message B { int32 n = 1; }'
    files = compiled(main, {"a/b.proto": other})
    assert message_names(files) == ["M"]
    found = protobuf_fields(pl.Series([bytes.fromhex("0A 02 08 05")]), {"b": "string"}, files, "M")
    assert found.columns["b"].to_list() == ['{"n":5}']


def test_types_of_kafka_connect_need_no_references() -> None:
    text = """
    syntax = "proto3";
    import "confluent/type/decimal.proto"; import "google/type/date.proto"; import "google/type/timeofday.proto";
    message Row {
      confluent.type.Decimal price = 1 [(confluent.field_meta) = {params: [{key: "scale", value: "2"}]}];
      google.type.Date day = 2;
      google.type.TimeOfDay at = 3;
    }
    """
    value = bytes.fromhex("0A 08 0A 02 04 D2 10 09 18 0212 07 08 DE 0F 10 01 18 021A 04 08 0C 20 07")
    found = protobuf_fields(
        pl.Series([value]), dict.fromkeys(("price", "day", "at"), "string"), compiled(text, {}), "Row"
    )
    assert [json.loads(column[0]) for column in found.columns.values()] == [
        {"value": "BNI=", "precision": 9, "scale": 2},
        {"year": 2014, "month": 1, "day": 2},
        {"hours": 12, "minutes": 0, "seconds": 0, "nanos": 7},
    ]


def test_an_any_of_an_unknown_type_is_kept() -> None:
    """`more` is an Any of type x/gone.Type with the bytes 08 07."""
    text = 'syntax = "proto3"; import "google/protobuf/any.proto"; message M { google.protobuf.Any more = 1; }'
    value = bytes.fromhex("0A 11 0A 0B") + b"x/gone.Type" + bytes.fromhex("12 02 08 07")
    found = protobuf_fields(pl.Series([value]), {"more": "string"}, compiled(text, {}), "M")
    assert found.reasons.to_list() == [None]
    assert json.loads(found.columns["more"][0]) == {"type_url": "x/gone.Type", "value": "CAc="}


@pytest.mark.parametrize(
    ("text", "imports", "error"),
    [
        ("message M {", {}, r"cannot be compiled: schema\.proto:1:"),
        ('syntax = "proto3"; import "gone.proto";', {}, "gone.proto: File not found"),
        ("message M {}", {"../out.proto": ""}, "not a relative path"),
        ("message M {}", {"/out.proto": ""}, "not a relative path"),
        ("message M {}", {"a": "", "a/b.proto": ""}, "cannot be written as files"),
        ("message M {}", {"a" * 300: ""}, "cannot be written as files"),
        ("message \ud800 {}", {}, "cannot be written as files"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str, imports: dict[str, str], error: str) -> None:
    with pytest.raises(DoesNotCompile, match=error):
        compiled(text, imports)


def test_no_file_of_a_schema_is_run(tmp_path: Path) -> None:
    """Names of imports come from the registry."""
    ran = tmp_path / "ran"
    program = f"open({str(ran)!r}, 'w')"
    names = ("grpc_tools.py", "importlib/__init__.py", "importlib/resources.py", "grpc_tools/protoc.py")
    compiled('syntax = "proto3"; message M {}', dict.fromkeys(names[:1], program))
    for name in names:
        compiled('syntax = "proto3"; message M {}', {name: program})
    assert not ran.exists()


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_have_a_reason(value: bytes) -> None:
    fields = {"device": "string", "n": "bigint", "at": "timestamp", "place": "string", "big": "bigint"}
    row = read(value, fields, others=True)
    assert row["reason"] in {None, "malformed_protobuf", "invalid_utf8", "wrong_type"}


@given(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
def test_what_is_written_is_read(device: str, n: int, temp: float) -> None:
    text = device.encode()
    written = b"\x0a" + bytes([len(text)]) + text + b"\x11" + struct.pack("<d", temp) + b"\x18" + _varint(n % 2**64)
    row = read(written, {"device": "string", "temp_c": "double", "n": "bigint"})
    assert (row["device"], row["temp_c"], row["n"]) == (device, temp, n)


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
