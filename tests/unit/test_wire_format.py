"""Records that begin with the id of their schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import polars as pl
import pytest

from tidemark.kernels.columns.schemas import HEADERS
from tidemark.kernels.formats.wire_format import ids_needed, message_indexes, misfit_of
from tidemark.kernels.formats.written_schema import SchemaKind, WrittenSchema
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.stream.read.parsing import parsed
from tidemark.stream.schemas.protoc import compiled

NOON = 1_400_000_000_000
MAGIC_7, MAGIC_8, MAGIC_9 = b"\0\0\0\0\x07", b"\0\0\0\0\x08", b"\0\0\0\x01\x09"  # ids 7, 8 and 265
A1 = b"\x04a1"  # Avro: a text of 2 bytes


def avro(*fields: tuple[str, Any]) -> WrittenSchema:
    named = [{"name": name, "type": type_} for name, type_ in fields]
    return WrittenSchema(text=json.dumps({"type": "record", "name": "R", "fields": named}))


@cache
def proto() -> WrittenSchema:
    text = """
    syntax = "proto3"; package p;
    message Reading { string id = 1; int32 n = 2; map<string, string> tags = 3; message Inner { string id = 1; } }
    message Alert { string id = 1; double n = 2; }
    """
    return WrittenSchema(kind=SchemaKind.PROTOBUF, text=text, descriptors=compiled(text, {}))


def source(format_: Format = Format.AVRO, **changes: Any) -> Source:
    fields = {"id": "string", "n": "int"}
    common = {"name": "t", "topic": "t", "timestamp_range_ms": (0, 2 * NOON), "bound_ms": 0, "registry": "main"}
    return Source(**{**common, "fields": fields, "format": format_, **changes})


def read(of: Source, schemas: dict[int, WrittenSchema], *values: bytes | None) -> list[tuple[Any, ...]]:
    """Returns each record's id, n, reason and detail."""
    raw = pl.DataFrame(
        [(b"k", value, None) for value in values],
        schema={"key": pl.Binary(), "value": pl.Binary(), "headers": HEADERS},
        orient="row",
    ).with_columns(
        source=pl.lit("t"), partition=pl.lit(0), offset=pl.int_range(pl.len()), clock_ms=pl.lit(NOON, pl.Int64)
    )
    rows = parsed(of, raw, {"main": schemas})
    assert rows["value"].to_list() == [*values]
    return [(*row["t"].values(), row["reason"], row["detail"]) for row in rows.to_dicts()]


SEVEN = avro(("id", "string"), ("n", "int"))
EIGHT = avro(("n", ["null", "int"]), ("id", "string"), ("more", "long"))


def test_each_record_is_read_with_its_own_schema() -> None:
    values = (MAGIC_7 + A1 + b"\x06", MAGIC_8 + b"\x02\x09" + A1 + b"\x02", MAGIC_7 + A1 + b"\x0a", None)
    assert read(source(key="id", fields={"id": "string", "n": "int"}), {7: SEVEN, 8: EIGHT}, *values) == [
        ("k", 3, None, None),
        ("k", -5, None, None),
        ("k", 5, None, None),
        ("k", None, None, None),
    ]


def test_a_field_of_a_later_version_is_null_before() -> None:
    reading = source(fields={"id": "string", "more": "bigint"})
    values = (MAGIC_7 + A1 + b"\x06", MAGIC_8 + b"\x00" + A1 + b"\x02")
    assert read(reading, {7: SEVEN, 8: EIGHT}, *values) == [("a1", None, None, None), ("a1", 1, None, None)]


def test_what_a_schema_does_not_fit_is_quarantined_with_its_id() -> None:
    schemas = {
        7: SEVEN,
        8: avro(("id", "string"), ("n", "string")),
        265: WrittenSchema(is_missing=True),
        3: WrittenSchema(kind="JSON"),
        4: WrittenSchema(problem="is not a valid Avro schema: odd"),
    }
    three, four = b"\0\0\0\0\x03", b"\0\0\0\0\x04"
    no_id = "does not begin with a byte 0 and the id of a schema"
    values = (MAGIC_7 + A1 + b"\x06", MAGIC_8 + A1 + A1, MAGIC_9, three, four, b"\x01" + MAGIC_7, b"\0\0\0\0", MAGIC_7)
    assert read(source(), schemas, *values) == [
        ("a1", 3, None, None),
        (None, None, "incompatible_schema", "schema 8 does not fit the fields: n is string, not int"),
        (None, None, "unknown_schema", "schema 265 is not in the registry"),
        (None, None, "incompatible_schema", "schema 3 is of the kind JSON, not AVRO"),
        (None, None, "incompatible_schema", "schema 4 is not a valid Avro schema: odd"),
        (None, None, "no_schema_id", no_id),
        (None, None, "no_schema_id", no_id),
        (None, None, "malformed_avro", "read by schema 7: EOFError"),
    ]


def test_a_null_value_is_no_record_without_an_id() -> None:
    assert read(source(), {}, None) == [(None, None, "null_value", None)]


def test_indexes_choose_the_message_of_a_schema() -> None:
    first = b"\x0a\x02a1\x10\x03"  # id = a1, n = 3
    inner, alert = b"\x0a\x02b2", b"\x0a\x02c3"
    values = (
        MAGIC_7 + b"\0" + first,
        MAGIC_7 + b"\x02\x00" + first,  # the same place, written as a list: one index, 0
        MAGIC_7 + b"\x04\x00\x00" + inner,  # two indexes, 0 and 0: the map of Reading does not count
        MAGIC_7 + b"\x02\x02" + alert,  # one index, 1
        MAGIC_7 + b"\x02\x06" + alert,  # one index, 3
        MAGIC_7 + b"\x01" + alert,  # minus one index
        MAGIC_7,
    )
    misfit = "schema 7 does not fit the fields: n is double, not int (message p.Alert)"
    assert read(source(Format.PROTOBUF), {7: proto()}, *values) == [
        ("a1", 3, None, None),
        ("a1", 3, None, None),
        ("b2", None, None, None),
        (None, None, "incompatible_schema", misfit),
        (None, None, "malformed_protobuf", "schema 7 has no such message at [3]"),
        (None, None, "malformed_protobuf", "schema 7 has no such message"),
        (None, None, "malformed_protobuf", "schema 7 has no such message"),
    ]


@pytest.mark.parametrize(
    ("body", "indexes", "rest"),
    [
        ("00 FF", (0,), "FF"),
        ("04 02 00 FF", (1, 0), "FF"),
        ("02 AC 02", (150,), ""),  # 300 is 2 * 128 + 44
        ("04 02", None, ""),
        ("02 FF FF FF FF FF FF 01", None, ""),
        ("F0 07", None, ""),  # 504 indexes
    ],
)
def test_indexes_are_zigzag_varints(body: str, indexes: tuple[int, ...] | None, rest: str) -> None:
    assert message_indexes(bytes.fromhex(body)) == (indexes, bytes.fromhex(rest))


def test_json_is_read_without_its_schema() -> None:
    of_json = source(Format.JSON)
    value = MAGIC_9 + b'{"id": "a", "n": 5}'
    assert read(of_json, {}, value, value[4:]) == [
        ("a", 5, None, None),
        (None, None, "no_schema_id", "does not begin with a byte 0 and the id of a schema"),
    ]
    assert ids_needed(pl.Series([value]), of_json) == set()


def test_needed_ids_are_those_that_begin_records() -> None:
    values = pl.Series([MAGIC_7 + A1, MAGIC_7, MAGIC_9, b"\0", None, b"\x01\0\0\0\x05"])
    assert ids_needed(values, source()) == {7, 265}


def test_ids_are_signed_numbers_of_32_bits() -> None:
    """Some registries answer a larger number with an error, not with 404."""
    values = pl.Series([b"\0\x7f\xff\xff\xff", b"\0\x80\0\0\0", b"\0\xff\xff\xff\xff"])
    assert ids_needed(values, source()) == {2**31 - 1}
    assert [row[2] for row in read(source(), {}, *values[1:])] == ["no_schema_id"] * 2


def test_a_misfit_names_the_id_and_the_fields() -> None:
    assert misfit_of(7, SEVEN, source()) is None
    renamed = source(fields={"k": "string", "number": "double"}, named={"number": "n", "k": "id"}, key="k")
    assert misfit_of(7, SEVEN, renamed) is None
    assert misfit_of(7, avro(("n", "long")), source()) == "schema 7: n is bigint, not int"
    assert misfit_of(7, proto(), source()) == "schema 7, which is of the kind PROTOBUF, not AVRO"
    assert misfit_of(7, proto(), source(Format.PROTOBUF)) is None
