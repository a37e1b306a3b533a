"""No content of a record raises an error, stops its neighbours, or costs more than its bytes."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parsed_source import NOON, source
from tidemark.errors import InvalidSpec
from tidemark.kernels.columns.schemas import HEADERS, record_schema
from tidemark.kernels.formats.data_files import file_rows
from tidemark.kernels.formats.written_schema import SchemaKind, WrittenSchema
from tidemark.kernels.records.arrivals import held_schema
from tidemark.kernels.records.headers import HOP, headers_to_send
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_place import Elsewhere
from tidemark.model.settings.record_limits import RecordLimits
from tidemark.model.topology import parse
from tidemark.semantics.progress import InputProgress
from tidemark.stream.read import parsing
from tidemark.stream.read.intake import source_rows
from tidemark.stream.read.parsing import parsed
from tidemark.stream.schemas.protoc import compiled

FIELDS = {"id": "string", "n": "int", "x": "double", "seen": "timestamp", "at": "bigint"}
RAW = {
    "source": pl.String(), "partition": pl.Int32(), "offset": pl.Int64(), "key": pl.Binary(), "value": pl.Binary(),
    "headers": HEADERS, "clock_ms": pl.Int64(),
}  # fmt: skip
Row = dict[str, Any]
SINK = {"kind": "sink", "input": "a", "table": "b"}
LIMITED = RecordLimits(max_depth=10, max_digits=20, max_empty_items=30)


def rows(
    reading: Source, *values: bytes | None, keys: list[bytes | None] | None = None, schemas: Any = None
) -> list[Row]:
    """Returns the parsed rows of records with these values, each with the key `k` unless *keys* are given."""
    of_topic = zip(keys or [b"k"] * len(values), values, strict=True)
    records = [("t", 0, offset, key, value, None, NOON) for offset, (key, value) in enumerate(of_topic)]
    raw = pl.DataFrame(records, schema=RAW, orient="row")
    return parsed(reading, raw, {"main": schemas or {}}).to_dicts()


def outcomes(reading: Source, good: bytes, bad: dict[str, bytes], **more: Any) -> dict[str, tuple[str | None, str]]:
    """Returns reason and detail of each *bad* record, all of which are read with *good* ones between them."""
    values = [value for each in bad.values() for value in (good, each)]
    found = rows(reading, *values, good, **more)
    assert [row["reason"] for row in found[::2]] == [None] * (len(bad) + 1)
    assert all(row[reading.name] == found[0][reading.name] for row in found[::2])
    assert [row["value"] for row in found] == [*values, good]
    for row in found[1::2]:
        assert row["reason"] is None or set(row[reading.name].values()) == {None}
    return {name: (row["reason"], row["detail"] or "") for name, row in zip(bad, found[1::2], strict=True)}


def refused(found: dict[str, tuple[str | None, str]]) -> dict[str, tuple[str | None, str]]:
    """Returns the reason of each record, and the first word of its detail: an error's type or the key of a limit."""
    return {name: (reason, detail.replace(":", " ").split(" ")[0]) for name, (reason, detail) in found.items()}


def of_json(more: str | bytes) -> bytes:
    written = more.encode() if isinstance(more, str) else more
    return b'{"at": %d, %s}' % (NOON, written)


def nested(levels: int, begin: str = "[", end: str = "]") -> str:
    return begin * levels + end * levels


JSON = {
    "half a character in a name": (r'"\ud800": 1', None, ""),
    "in a name in a declared field": (r'"id": {"\udfff": 1}', "invalid_utf8", "UnicodeEncodeError"),
    "in a value": (r'"id": "\ud800"', "invalid_utf8", "UnicodeEncodeError"),
    "an overlong character": (b'"id": "\xc0\x80"', "invalid_utf8", "UnicodeDecodeError"),
    "a character of CESU-8": (b'"id": "\xed\xa0\x80"', "invalid_utf8", "UnicodeDecodeError"),
    "a control character": ('"id": "a\0b"', "malformed_json", "JSONDecodeError"),
    "an escaped zero": (r'"id": "a\u0000b"', None, ""),
    "a number of 4,000 digits": ('"id": ' + "1" * 4_000, None, ""),
    "a number of 10,000 digits": ('"id": ' + "1" * 10_000, "malformed_json", "ValueError"),
    "the same as a double": ('"x": ' + "1" * 400, "wrong_type", "ValidationError"),
    "the same as an int": ('"n": ' + "1" * 400, "wrong_type", "ValidationError"),
    "an infinite number": ('"x": 1e400', None, ""),
    "an int that is infinite": ('"n": 1e400', "wrong_type", "ValidationError"),
    "no number": ('"n": NaN', "wrong_type", "ValidationError"),
    "a year before the first": ('"seen": "0000-01-01T00:00:00Z"', "wrong_type", "Expected"),
    "a year after the last": ('"seen": "9999-12-31T23:59:59-23:59"', "wrong_type", "Expected"),
    "a name that comes twice": ('"id": "a", "id": [1]', None, ""),
    "lists 300 deep": (f'"id": {nested(300)}', "beyond_limit", "max_depth"),
    "lists 300 deep in an unknown field": (f'"zone": {nested(300)}', "beyond_limit", "max_depth"),
    "objects 2,000 deep": ('"id": ' + '{"a":' * 2_000 + "1" + "}" * 2_000, "beyond_limit", "max_depth"),
    "lists 100,000 deep": (f'"id": {nested(100_000)}', "beyond_limit", "max_depth"),
    "the deepest": (f'"id": {nested(99)}', None, ""),
    "one level more": (f'"id": {nested(100)}', "beyond_limit", "max_depth"),
    "brackets in a text": (f'"id": "{nested(300)}"', None, ""),
    "brackets in an escaped text": (rf'"id": "\"{nested(300)}\\"', None, ""),
    "many lists": ('"id": [' + "[]," * 300 + "[]]", None, ""),
}


AROUND = ["{}", ' {"at": 1}', ",", "a", "]", "}", "\0", "\ufeff", "\x0b", "\u00a0", "\u2028", "[" * 300]
"""What a producer may have sent behind an object by mistake."""


def test_no_record_in_json_stops_its_neighbours() -> None:
    found = outcomes(
        source(fields=FIELDS), of_json('"id": "a"'), {name: of_json(case[0]) for name, case in JSON.items()}
    )
    assert refused(found) == {name: (reason, word) for name, (_, reason, word) in JSON.items()}


def test_no_record_that_is_no_object_stops_its_neighbours() -> None:
    whole = {
        b"": "malformed_json", b"null": "wrong_type", b"[1]": "wrong_type", b"\xef\xbb\xbf{}": "malformed_json",
        "{}".encode("utf-16"): "invalid_utf8", b"[" * 10**6: "beyond_limit", b"\xff" * 10**6: "invalid_utf8",
        b"\0{}": "malformed_json", b",{}": "malformed_json", b"7 {}": "malformed_json",
    } | {b"{}" + text.encode(): "malformed_json" for text in AROUND}  # fmt: skip
    found = outcomes(source(fields=FIELDS), of_json('"id": "a"'), {str(n): each for n, each in enumerate(whole)})
    assert [reason for reason, _ in found.values()] == [*whole.values()]


BLANK = st.text(alphabet=" \t\r\n", max_size=4)


@settings(max_examples=40)
@given(BLANK, st.sampled_from(["NaN", "1.5"]), st.one_of(BLANK, st.sampled_from(AROUND), st.text(max_size=3)))
def test_only_blanks_and_line_breaks_may_surround_an_object(before: str, number: str, behind: str) -> None:
    # Python's parser reads NaN, msgspec does not, and both refuse the same texts.
    written = before.encode() + of_json(f'"x": {number}') + behind.encode()
    (row,) = rows(source(fields=FIELDS), written)
    assert row["reason"] == ("malformed_json" if behind.strip(" \t\r\n") else None)


def test_a_name_with_half_a_character_is_invalid_where_other_fields_are_kept() -> None:
    more = {"name": rb'"\ud800": 1', "of an object": rb'"zone": {"\ud800": 1}', "value": rb'"zone": "\ud800"'}
    keeping = source(fields=FIELDS, other_fields="rest")
    found = outcomes(keeping, of_json('"id": "a"'), {name: of_json(each) for name, each in more.items()})
    assert {reason for reason, _ in found.values()} == {"invalid_utf8"}


def zigzag(number: int) -> bytes:
    """Returns a number as Avro writes it."""
    left, written = (number << 1) ^ (number >> 63), b""
    while left > 0x7F:
        written, left = written + bytes([left & 0x7F | 0x80]), left >> 7
    return written + bytes([left])


def a_list(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def of(type_: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": logical, **more}


def decimal(unscaled: int) -> bytes:
    """Returns a decimal as Avro writes it, with its length."""
    content = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return zigzag(len(content)) + content


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "inner", "type": a_list("Tree")}]}
EMPTY = {"type": "record", "name": "Empty", "fields": []}
DECIMAL = of("bytes", "decimal", precision=9, scale=2)
LONG_DECIMAL = of("bytes", "decimal", precision=500_000, scale=2)
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
OF_NULLS = {"type": "map", "values": "null"}
AVRO = {
    "an int beyond 32 bits": ("int", "int", zigzag(2**40), "wrong_type", "TypeError"),
    "such an int as a text": ("int", "string", zigzag(2**40), None, ""),
    "a number without an end": ("long", "bigint", b"\xff" * 9, "malformed_avro", "IndexError"),
    "a record 10,000 levels deep": (NODE, "string", b"\2" * 10_000 + b"\0", "beyond_limit", "max_depth"),
    "a tree 10,000 levels deep": (TREE, "string", b"\2" * 10_000 + b"\0" * 10_001, "beyond_limit", "max_depth"),
    "a record 100 levels deep": (NODE, "string", b"\2" * 98 + b"\0", None, ""),
    "a record 101 levels deep": (NODE, "string", b"\2" * 99 + b"\0", "beyond_limit", "max_depth"),
    "a level that is cut off": (NODE, "string", b"\2" * 50, "malformed_avro", "EOFError"),
    "30 million nulls": (a_list("null"), "string", zigzag(30_000_000) + b"\0", "beyond_limit", "max_empty_items"),
    "2^63 nulls": (a_list("null"), "string", b"\xff" * 9 + b"\1\0", "beyond_limit", "max_empty_items"),
    "nulls in blocks": (a_list("null"), "string", zigzag(9_000) * 2 + b"\0", "beyond_limit", "max_empty_items"),
    "empty records": (a_list(EMPTY), "string", zigzag(20_000) + b"\0", "beyond_limit", "max_empty_items"),
    "9,000 nulls": (a_list("null"), "string", zigzag(9_000) + b"\0", None, ""),
    "2^62 numbers": (a_list("int"), "string", zigzag(2**62) + b"\2\2", "malformed_avro", "EOFError"),
    "a decimal of 100 kB": (LONG_DECIMAL, "string", zigzag(10**5) + b"\x7f" * 10**5, "beyond_limit", "max_digits"),
    "a decimal of 1,000 digits": (LONG_DECIMAL, "string", decimal(10**1000 - 1), None, ""),
    "a decimal of 1,001 digits": (LONG_DECIMAL, "string", decimal(-(10**1000)), "beyond_limit", "max_digits"),
    "a decimal beyond its precision": (DECIMAL, "double", decimal(10**9), "wrong_type", "a"),
    "a day after the year 9999": (of("int", "date"), "string", zigzag(2_932_897), "malformed_avro", "ValueError"),
    "a time of 25 hours": (of("int", "time-millis"), "string", zigzag(90_000_000), "malformed_avro", "ValueError"),
    "an instant after 9999": (of("long", "timestamp-micros"), "timestamp", zigzag(2**62), "wrong_type", "timestamp"),
    "such an instant as a text": (
        of("long", "timestamp-micros"), "string", zigzag(2**62), "malformed_avro", "OverflowError",
    ),
    "no branch of a union": (["null", "int"], "int", zigzag(2), "malformed_avro", "IndexError"),
    "no symbol of an enum": (ENUM, "string", zigzag(1), "malformed_avro", "IndexError"),
    "no uuid": (of("string", "uuid"), "string", b"\2a", "malformed_avro", "ValueError"),
    "a key of a map that is no text": (OF_NULLS, "string", b"\2\2\xff\0", "invalid_utf8", "UnicodeEncodeError"),
    "a text of 2^62 bytes": ("string", "string", zigzag(2**62) + b"a", "malformed_avro", "EOFError"),
    "a text with a zero": ("string", "string", b"\2\0", None, ""),
}  # fmt: skip
"""By name: type, declared type, bytes, reason, and the first word of the detail."""
OF_REGISTRY = {name: name for name in ("string", "int", "bigint", "double", "timestamp")} | {"at": "bigint"}


def avro_schema(type_: Any, word: str) -> str:
    """Returns a schema with a field of a type, whose name is its declared type, and a time before it."""
    fields = [{"name": "at", "type": "long"}, {"name": word, "type": type_}]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def with_id(id_: int, value: bytes) -> bytes:
    return b"\0" + id_.to_bytes(4, "big") + value


def test_no_record_in_avro_stops_its_neighbours() -> None:
    schemas = {n: WrittenSchema(text=avro_schema(*case[:2])) for n, case in enumerate(AVRO.values())}
    schemas[99] = WrittenSchema(text=avro_schema("string", "string"))
    bad = {name: with_id(n, zigzag(NOON) + case[2]) for n, (name, case) in enumerate(AVRO.items())}
    of_avro = source(format=Format.AVRO, registry="main", fields=OF_REGISTRY)
    found = outcomes(of_avro, with_id(99, zigzag(NOON) + b"\2a"), bad, schemas=schemas)
    without_ids = {name: (reason, detail.partition(": ")[2]) for name, (reason, detail) in found.items()}
    assert refused(without_ids) == {name: case[3:] for name, case in AVRO.items()}


def test_a_field_that_is_not_kept_is_limited_too() -> None:
    reading = source(format=Format.AVRO, avro_schema=avro_schema(NODE, "zone"), fields={"at": "bigint"})
    (row,) = rows(reading, zigzag(NOON) + b"\2" * 10_000 + b"\0")
    assert row["reason"] == "beyond_limit"


PROTO = """
syntax = "proto3"; package p;
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
message M {
  int64 at = 1; string id = 2; google.protobuf.Any any = 3; N n = 4; google.protobuf.Duration span = 5;
  google.protobuf.Value value = 6; map<string, N> map = 7; google.protobuf.Timestamp seen = 8; E e = 9; uint64 big = 10;
  enum E { A = 0; B = 1; }
}
message N { N n = 1; string id = 2; }
"""
KEPT = ("any", "n", "span", "value", "map", "seen", "e")


def varint(number: int) -> bytes:
    written = b""
    while number > 0x7F:
        written, number = written + bytes([number & 0x7F | 0x80]), number >> 7
    return written + bytes([number])


def part(number: int, content: bytes) -> bytes:
    """Returns a field whose bytes have a length."""
    return varint(number * 8 + 2) + varint(len(content)) + content


def times(levels: int, number: int, content: bytes = b"") -> bytes:
    """Returns *content* inside so many messages."""
    for _ in range(levels):
        content = part(number, content)
    return content


def any_of(name: str, content: bytes) -> bytes:
    return part(1, f"x/{name}".encode()) + part(2, content)


def any_of_any(levels: int) -> bytes:
    content = b""
    for _ in range(levels):
        content = any_of("google.protobuf.Any", content)
    return content


PROTOBUF = {
    "an Any whose bytes are no message": (part(3, any_of("p.N", b"\xff\xff")), "malformed_protobuf", "DecodeError"),
    "an Any with a text that is none": (part(3, any_of("p.N", part(2, b"\xff"))), "malformed_protobuf", "DecodeError"),
    "an Any of an unknown type": (part(3, any_of("gone.N", b"\xff\xff")), None, ""),
    "an Any in an Any in an Any …": (part(3, any_of_any(3_000)), "beyond_limit", "max_depth"),
    "messages 90 deep": (part(4, times(90, 1)), None, ""),
    "messages 99 deep": (part(4, times(99, 1)), "beyond_limit", "max_depth"),
    "messages 1,000 deep": (part(4, times(1_000, 1)), "malformed_protobuf", "DecodeError"),
    "groups 1,000 deep": (varint(1_000 * 8 + 3) * 1_000, "malformed_protobuf", "DecodeError"),
    "a group without an end": (varint(1_000 * 8 + 3), "malformed_protobuf", "DecodeError"),
    "a span beyond its range": (part(5, b"\x08" + varint(2**62)), "wrong_type", "ValueError"),
    "a number that is none": (part(6, b"\x11" + b"\xff" * 8), "wrong_type", "ValueError"),
    "an instant after the year 9999": (part(8, b"\x08" + varint(2**62)), "wrong_type", "ValueError"),
    "an enum's unknown number": (b"\x48\x07", None, ""),
    "a number above 2^63": (b"\x50" + varint(2**64 - 1), "wrong_type", "18446744073709551615"),
    "a wrong wire type": (b"\x0d\0\0\0\0", None, ""),
    "a cut varint": (b"\x08\xff", "malformed_protobuf", "DecodeError"),
    "a varint of 11 bytes": (b"\x08" + b"\xff" * 11 + b"\1", "malformed_protobuf", "DecodeError"),
    "a field of number 0": (b"\0\1", "malformed_protobuf", "DecodeError"),
    "a map entry without a key": (part(7, part(2, b"")), None, ""),
    "a map entry that is none": (part(7, b"\xff"), "malformed_protobuf", "DecodeError"),
    "a key of a map that is no text": (part(7, part(1, b"\xff")), "malformed_protobuf", "DecodeError"),
    "a text that is none": (part(2, b"\xff"), "invalid_utf8", "DecodeError"),
}


@cache
def descriptors() -> bytes:
    return compiled(PROTO, {})


def of_protobuf(**more: Any) -> Source:
    fields = dict.fromkeys(("id", *KEPT), "string") | {"at": "bigint", "big": "bigint"}
    schema = {"descriptors": descriptors(), "message": "p.M"}
    return source(format=Format.PROTOBUF, **{"fields": fields, **schema, **more})


def test_no_record_in_protobuf_stops_its_neighbours() -> None:
    at = b"\x08" + varint(NOON)
    good, bad = at + part(2, b"a"), {name: at + case[0] for name, case in PROTOBUF.items()}
    expected = {name: case[1:] for name, case in PROTOBUF.items()}
    assert refused(outcomes(of_protobuf(), good, bad)) == expected
    # In the column of all other fields they are the same.
    keeping = of_protobuf(fields={"id": "string", "at": "bigint", "big": "bigint"}, other_fields="rest")
    assert refused(outcomes(keeping, good, bad)) == expected
    # A registry's schema is before the record, with the place of the message: 0, the first.
    named = {name: with_id(7, b"\0" + value) for name, value in bad.items()}
    schemas = {7: WrittenSchema(kind=SchemaKind.PROTOBUF, descriptors=descriptors())}
    of_registry = of_protobuf(registry="main", descriptors=None, message=None)
    found = outcomes(of_registry, with_id(7, b"\0" + good), named, schemas=schemas)
    assert [reason for reason, _ in found.values()] == [reason for reason, _ in expected.values()]


CSV = {
    b"%s,1,,2014-01-01,1" % (b"1" * 10_000): None, b"a,%s,,,1" % (b"1" * 10_000): "wrong_type", b"a,,1e400,,1": None,
    b"a,NaN,,,1": "wrong_type", b"\xed\xa0\x80,,,,1": "invalid_utf8", b"\xc0\x80,,,,1": "invalid_utf8",
    b"a,\xff,,,1": "invalid_utf8", b"a\0b,,,,1": None, b"a,\0,,,1": "wrong_type", b"," * 100_000: "malformed_csv",
    b"a,,,9999-12-31T23:59:59-23:59,1": "wrong_type", b'"%s",,,,1' % (b'""' * 100_000): None, b"a": "malformed_csv",
}  # fmt: skip
"""By a row of CSV, its reason."""


def test_no_row_of_csv_stops_its_neighbours() -> None:
    good = b"a,1,1.5,2014-05-13,%d\n" % NOON
    content = b"id,n,x,seen,at\n" + b"".join(good + row + b"\n" for row in CSV) + good
    of_csv = source(topic=None, name="t", elsewhere=Elsewhere("files", "in"), format=Format.CSV, fields=FIELDS)
    found = file_rows(content, "a.csv", of_csv)
    assert found["reason"][::2].to_list() == [None] * (len(CSV) + 1)
    assert found["reason"][1::2].to_list() == [*CSV.values()]


HEADER = st.tuples(
    st.sampled_from(["tidemark-id", "tidemark-hop", "tidemark-mark", "traceparent", "", "\0"]),
    st.none() | st.sampled_from([b"a/b/1/2/3", b"a/b/1/999999999/3", b"a/b:-1:idle", b"a/b:9999999999999999:active"])
    | st.binary(max_size=20),
)  # fmt: skip


@given(st.lists(st.lists(HEADER, max_size=3), min_size=1, max_size=4))
def test_no_headers_stop_a_batch(headers: list[list[tuple[str, bytes | None]]]) -> None:
    trusting = source(key="id", written_by=("a/b",), traces=True)
    received = [[{"key": key, "value": value} for key, value in of_record] for of_record in headers]
    records = [
        ("t", 0, n, b"k", None if n % 2 else of_json('"id": "a"'), each, NOON) for n, each in enumerate(received)
    ]
    read = parsed(trusting, pl.DataFrame(records, schema=RAW, orient="row"))
    waiting = pl.DataFrame(schema=held_schema(record_schema(trusting.columns)))
    taken = source_rows(
        trusting, read, waiting, InputProgress(), read_to={}, late_up_to_ms=None, allowed_ms=None, window_ms=1_000,
        decided_at_ms=NOON,
    )  # fmt: skip
    assert taken.counts["records_in"] == len(headers)
    for each in received:
        sent = headers_to_send(each, id_="a", hop="b")
        assert [key for key, _ in sent if key == "tidemark-id"] == ["tidemark-id"]


KEYS: dict[bytes, str | None] = {
    rb'{"t": "\ud800"}': None, rb'{"t": ["\ud800"]}': None, b'{"t": NaN}': None, b"\0": None, b"": None, b"[1": None,
    b'{"t": [1]}': "wrong_type", b'{"t": true}': "wrong_type", b'{"t": %d}' % 2**63: "wrong_type",
    b'{"t": %s}' % nested(900).encode(): "wrong_type", b'{"t": "%s"}' % (b"1" * 10**6): "wrong_type",
    b'{"t": %s}' % (b"1" * 10_000): None, b'{"t": %s}' % nested(100_000).encode(): None, b"\xff": "invalid_key",
}  # fmt: skip
"""By the key of a tombstone, its reason."""


@pytest.mark.parametrize("word", ["bigint", "timestamp"])
def test_no_key_or_header_of_a_tombstone_stops_its_neighbours(word: str) -> None:
    keyed = source(key="id", fields={"id": "string", "at": word}, tombstone_field="t")
    found = rows(keyed, *[None] * len(KEYS), keys=[*KEYS])
    assert {row["key"]: row["reason"] for row in found} == KEYS
    named = source(key="id", fields={"id": "string", "at": word}, tombstone_header="t")
    texts = [b"\xff", b"\0", b"\xed\xa0\x80", b"", b"1" * 10**6]
    of_topic = [("t", 0, n, b"k", None, [{"key": "t", "value": text}], NOON) for n, text in enumerate(texts)]
    told = parsed(named, pl.DataFrame(of_topic, schema=RAW, orient="row"))
    assert told["reason"].to_list() == ["wrong_type"] * len(texts)


def test_what_raises_outside_of_a_parser_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    read = parsing.json_fields
    says, asked = "out of \ud800 range", list[int]()

    def with_a_defect(values: pl.Series, *given: Any, **more: Any) -> Any:
        asked.append(len(values))
        if any(b"bad" in (value or b"") for value in values):
            raise OverflowError(says)
        return read(values, *given, **more)

    monkeypatch.setattr(parsing, "json_fields", with_a_defect)
    values = [of_json(f'"id": "{"bad" if n == 700 else n}"') for n in range(1_000)]
    found = rows(source(key="id", other_fields="rest"), *values)
    assert [row["offset"] for row in found] == [*range(1_000)]
    assert {row["offset"]: (row["reason"], row["detail"]) for row in found if row["reason"]} == {
        700: ("unreadable", r"OverflowError: out of \ud800 range")
    }
    bad = found[700]
    assert (bad["key"], bad["value"], bad["deleted"]) == (b"k", values[700], False)
    # 2 log2(1,000) tries, and one without content.
    assert len(asked) <= 22


def test_an_error_that_is_not_about_a_record_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "no disk")

    monkeypatch.setattr(parsing, "json_fields", fails)
    with pytest.raises(OSError, match="no disk"):
        rows(source(), *[of_json('"id": "a"')] * 9)


def test_limits_are_those_of_the_source() -> None:
    deep = of_json(f'"id": {nested(10)}')
    assert [row["reason"] for row in rows(source(record_limits=LIMITED), deep)] == ["beyond_limit"]
    at = b"\x08" + varint(NOON)
    assert rows(of_protobuf(record_limits=LIMITED), at + part(4, times(10, 1)))[0]["reason"] == "beyond_limit"
    for type_, value, key in (
        (LONG_DECIMAL, decimal(10**20), "max_digits = 20"),
        (a_list("null"), zigzag(31) + b"\0", "max_empty_items = 30"),
        (NODE, b"\2" * 9 + b"\0", "max_depth = 10"),
    ):
        of_avro = {"format": Format.AVRO, "fields": OF_REGISTRY, "avro_schema": avro_schema(type_, "string")}
        (row,) = rows(source(**of_avro, record_limits=LIMITED), zigzag(NOON) + value)
        assert row["reason"] == "beyond_limit"
        assert row["detail"].startswith(f"{key}: ")
        assert rows(source(**of_avro), zigzag(NOON) + value)[0]["reason"] is None


def test_limits_are_keys_of_a_source() -> None:
    events = {"kind": "source", "topic": "a", "fields": "t bigint", "timestamp": "t", "bound": "1 s"}

    def limits(**keys: Any) -> RecordLimits:
        content = {"name": "x", "registry": {"main": {"url": "http://r"}}, "operators": {"a": events | keys, "b": SINK}}
        topology = parse(content, file="x.toml")
        of_source = topology.operators["a"]
        assert isinstance(of_source, Source)
        return of_source.record_limits

    of_avro = {"format": "avro", "registry": "main"}
    assert limits() == limits(**of_avro) == RecordLimits(max_depth=100, max_digits=1_000, max_empty_items=10_000)
    own = {"max_depth": 10, "max_digits": 20, "max_empty_items": 30}
    assert limits(**of_avro, **own) == LIMITED
    for keys, says in (
        ({"max_depth": 501}, "write 500 or less"),
        ({"max_digits": 5}, "max_digits: is 5, but format is 'json'"),
    ):
        with pytest.raises(InvalidSpec, match=says):
            limits(**keys)


def calls_of(work: Callable[[], object]) -> int:
    """Counts the calls of functions in *work*, those written in C included."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def hops_behind_others(n: int) -> list[dict[str, Any]]:
    return [{"key": "other", "value": b"x"}] * n + [{"key": HOP, "value": b"x"}] * n


GROWING: dict[str, Callable[[int], tuple[Source, bytes]]] = {
    "a list": lambda n: (source(), of_json(f'"id": [{"1," * n}1]')),
    "open lists": lambda n: (source(), of_json(f'"id": {"[" * n}')),
    "many fields": lambda n: (source(other_fields="rest"), of_json(",".join(f'"f{k}": {k}' for k in range(n)))),
    "one field": lambda n: (source(other_fields="rest"), of_json(",".join(['"f": []'] * n))),
    "escapes": lambda n: (source(), of_json(f'"id": "{chr(92) * 2 * n}"')),
    "numbers that are none": lambda n: (source(), of_json(f'"id": [{"NaN," * n}1]')),
    "nodes": lambda n: (AVRO_OF[0], zigzag(NOON) + b"\2" * n + b"\0"),
    "numbers": lambda n: (AVRO_OF[1], zigzag(NOON) + zigzag(n) + b"\2" * n + b"\0"),
    "lists of nulls": lambda n: (AVRO_OF[2], zigzag(NOON) + zigzag(n) + b"\2\0" * n + b"\0"),
    "messages": lambda n: (of_protobuf(), part(7, part(1, b"k") + part(2, b"")) * n),
    "merged messages": lambda n: (of_protobuf(), part(4, times(20, 1)) * n),
}
AVRO_OF = [
    source(format=Format.AVRO, fields=OF_REGISTRY, avro_schema=avro_schema(type_, "string"))
    for type_ in (NODE, a_list("int"), a_list(a_list("null")))
]


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_with_the_bytes_of_a_record(name: str) -> None:
    small, large = (GROWING[name](n) for n in (1_000, 4_000))
    few, many = (calls_of(partial(rows, of, value)) for of, value in (small, large))
    assert many <= 4 * few + 2_000


def test_work_grows_with_the_headers_of_a_record() -> None:
    few, many = (calls_of(partial(headers_to_send, hops_behind_others(n), id_="a", hop="b")) for n in (1_000, 4_000))
    assert many <= 4 * few + 100
    sent = headers_to_send(hops_behind_others(20_000), id_="a", hop="b")
    assert [key for key, _ in sent[20_000:]] == [HOP] * 31 + ["tidemark-id", HOP]


TEMPLATES = [
    (source(fields=FIELDS, other_fields="rest"), of_json(r'"id": {"a": [1.5e3, "\u00e4"]}, "n": -1, "x": NaN')),
    (source(fields=FIELDS, key="id", tombstone_field="t"), b'{"t": "2014-05-13T16:53:20Z", "at": 1}'),
    (AVRO_OF[0], zigzag(NOON) + b"\2\2\0"),
    (AVRO_OF[1], zigzag(NOON) + zigzag(3) + b"\2\4\6\0"),
    (AVRO_OF[2], zigzag(NOON) + zigzag(2) + b"\2\0\4\0\0"),
    (source(format=Format.AVRO, fields=OF_REGISTRY, avro_schema=avro_schema(DECIMAL, "double")), b"\2" + decimal(-7)),
    (source(format=Format.AVRO, fields=OF_REGISTRY, avro_schema=avro_schema(OF_NULLS, "string")), b"\2\2\2a\0"),
]
HALVES = [rb"\ud800", rb"\udfff", b"\xed\xa0\x80", b"\xc0\x80", b"\xef\xbb\xbf", b"\0", b"\x1b", b"\x7f", b"\x85"]
OTHERS = [b"1e400", b"-Infinity", b"[[[[", b"}}", b'"', b"\\", b"\xff" * 9, b"\x80" * 9, b"9" * 30, b"{", b"\2" * 40]
CHANGE = st.tuples(
    st.integers(0, 60), st.integers(0, 4), st.one_of(st.sampled_from(HALVES + OTHERS), st.binary(max_size=6))
)


def changed(value: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for at, removed, added in changes:
        value = value[:at] + added + value[at + removed :]
    return value


@st.composite
def records(draw: st.DrawFn) -> tuple[Source, list[bytes]]:
    protobuf = (of_protobuf(other_fields="rest"), part(4, part(2, b"a")) + part(3, any_of("p.N", part(2, b"a"))))
    of, template = draw(st.sampled_from([*TEMPLATES, protobuf]))
    mutated = st.lists(CHANGE, max_size=4).map(lambda changes: changed(template, changes))
    return of, draw(st.lists(mutated | st.binary(max_size=60), min_size=1, max_size=4))


@given(records())
def test_any_bytes_are_read_or_refused_and_cost_no_more_than_their_number(drawn: tuple[Source, list[bytes]]) -> None:
    of, values = drawn
    found: list[Row] = []
    # Each is the key of a record and the value of one.
    calls = calls_of(lambda: found.extend(rows(of, *values, None, keys=[*values, values[0]])))
    assert [row["value"] for row in found] == [*values, None]
    assert all(row["reason"] != "unreadable" for row in found)
    assert calls <= 8_000 + 100 * sum(map(len, values))
