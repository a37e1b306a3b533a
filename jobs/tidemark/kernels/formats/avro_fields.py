"""Reads the declared fields of records in Avro.

A record that cannot be read has a reason: malformed_avro, invalid_utf8, wrong_type or beyond_limit. A `string` has any
other value as its text in JSON: a record, list or map as a JSON text, bytes in base64, a decimal and a date as JSON has
them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import fastavro
import polars as pl

from tidemark.kernels.columns.schemas import INSTANT, record_schema
from tidemark.kernels.columns.years import BEYOND, within_years
from tidemark.kernels.formats.avro_limits import check_of, limited_decimals
from tidemark.kernels.records.fields import (
    INVALID_UTF8,
    MALFORMED_AVRO,
    WRONG_TYPE,
    Fields,
    RecordUnreadable,
    column_of,
    read_fields,
)
from tidemark.kernels.records.json_fields import json_of, text_of
from tidemark.model.settings.record_limits import DEFAULT_LIMITS, RecordLimits

_US = {"millis": 1_000, "micros": 1}
_INSTANTS = frozenset(f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in (*_US, "nanos"))
_LOGICAL: Mapping[str, frozenset[str]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset({"time-micros", *_INSTANTS}),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal"}),
    "string": frozenset({"uuid"}),
}
"""By type, its logical types. Avro demands that others are ignored."""
_WORDS = {"long": "bigint", "bytes": "binary", "fixed": "binary", "enum": "string"}
"""Types of Avro that have another name in Spark."""
_WIDER = {frozenset({"int", "bigint"}): "bigint", frozenset({"float", "double"}): "double"}


def avro_types(schema: str) -> dict[str, str]:
    """Returns the type of each field of *schema*, as Spark names it.

    Where Spark has no name for it, it is Avro's.
    """
    return {field["name"]: _type(field["type"]) for field in json.loads(schema)["fields"]}


def avro_fields(
    values: pl.Series,
    words: Mapping[str, str],
    schema: str,
    *,
    others: bool = False,
    referenced: tuple[str, ...] = (),
    limits: RecordLimits = DEFAULT_LIMITS,
) -> Fields:
    """Reads the fields of *values*, each the bytes of a record.

    Null for null.

    Args:
        values: the records.
        words: the declared types by field.
        schema: Avro schema of the records.
        others: keep the fields that are not declared, too.
        referenced: schemas of the types that *schema* names and does not define, each after those that it names.
        limits: what a record may hold.
    """
    units = {name: unit for name, unit in _units(schema).items() if words.get(name) == "timestamp"}
    decode = _decoder(schema, referenced, tuple(units), limits)
    as_text = _not_text(schema, words)
    records: list[Mapping[str, Any]] = []
    rest: list[str | None] = []
    refused: dict[int, RecordUnreadable] = {}
    for row, value in enumerate(values):
        record: Mapping[str, Any] = {}
        other = None
        if value is not None:
            try:
                record = _with_texts(decode(value), words, as_text)
                other = _others(record, words) if others else None
            except Exception as error:
                record, refused[row] = {}, RecordUnreadable.by(error, MALFORMED_AVRO)
        records.append(record)
        rest.append(other)
    schema_of = record_schema(words)
    columns: dict[str, pl.Series] = {}
    for name in words:
        written = [record.get(name) for record in records]
        if name in units:
            columns[name] = _instants(name, written, units[name], refused)
        else:
            columns[name] = column_of(written, schema_of[name], refused)
    return read_fields(columns, pl.Series(rest, dtype=pl.String), refused)


@lru_cache(maxsize=64)
def _decoder(
    schema: str, referenced: tuple[str, ...], instants: tuple[str, ...], limits: RecordLimits
) -> Callable[[bytes], dict[str, Any]]:
    """Returns what decodes a record of *schema*, with *instants* as numbers."""
    named: dict[str, Any] = {}
    for text in referenced:
        fastavro.parse_schema(limited_decimals(json.loads(text), limits.max_digits), named)
    parsed = fastavro.parse_schema(limited_decimals(_with_numbers(schema, instants), limits.max_digits), named)
    check = check_of(parsed, named, limits)

    def decode(value: bytes) -> Any:
        if check is not None:
            check(value)
        # surrogateescape postpones the refusal of invalid bytes: a field that is not declared may have them.
        return fastavro.schemaless_reader(io.BytesIO(value), parsed, None, handle_unicode_errors="surrogateescape")

    return decode


def _not_text(schema: str, words: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the words of fields whose values must be converted to them.

    A `string` of another type of Avro becomes text, and a decimal a double.
    """
    types = avro_types(schema)
    texts = {name: word for name, word in words.items() if word == "string" and types.get(name) != "string"}
    doubles = {name: word for name, word in words.items() if word == "double" and types.get(name) == "decimal"}
    return texts | doubles


def _with_texts(record: dict[str, Any], words: Mapping[str, str], as_text: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns *record* with the fields *as_text* converted; raises RecordUnreadable where a text is not UTF-8."""
    try:
        for name, word in as_text.items():
            written = record.get(name)
            record[name] = text_of(written) if word == "string" else _double(written)
        texts = [record[name] for name in words if isinstance(record.get(name), str)]
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise RecordUnreadable.by(error, INVALID_UTF8) from None
    return record


def _double(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


def _others(record: Mapping[str, Any], words: Mapping[str, str]) -> str | None:
    """Returns the undeclared fields of *record* with a value, as JSON.

    Raises RecordUnreadable.
    """
    others = {name: value for name, value in record.items() if name not in words and value is not None}
    try:
        return json_of(others) if others else None
    except UnicodeEncodeError as error:
        raise RecordUnreadable.by(error, INVALID_UTF8) from None


def _instants(name: str, numbers: list[int | None], unit: str, refused: dict[int, RecordUnreadable]) -> pl.Series:
    """Returns epoch *numbers* of the field *name*, rounded down, as instants.

    Rows with one outside of the years 1 to 9999 are added to *refused*.
    """
    us = [None if n is None else n // 1_000 if unit == "nanos" else n * _US[unit] for n in numbers]
    # Numbers beyond 64 bits cannot be in a column, and lie outside of the years anyway.
    in_column = [n if n is None or abs(n) < 2**63 else None for n in us]
    instants = within_years(pl.Series(in_column, dtype=pl.Int64).cast(INSTANT))
    for row in (instants.is_null() & pl.Series([n is not None for n in numbers], dtype=pl.Boolean)).arg_true():
        refused[row] = RecordUnreadable(WRONG_TYPE, f"{name}: {BEYOND}")
    return instants


def _units(schema: str) -> dict[str, str]:
    """Returns the unit of each instant field: millis, micros or nanos."""
    units: dict[str, str] = {}
    for field in json.loads(schema)["fields"]:
        for branch in _branches(field["type"]):
            if (logical := _logical(branch)) in _INSTANTS:
                units[field["name"]] = logical.rpartition("-")[2]
    return units


def _with_numbers(schema: str, names: Sequence[str]) -> Any:
    """Returns *schema* with the instants *names* as the numbers that are written."""
    parsed = json.loads(schema)
    for field in parsed["fields"]:
        if field["name"] in names:
            numbers = [b["type"] if isinstance(b, dict) else b for b in _branches(field["type"])]
            field["type"] = numbers if isinstance(field["type"], list) else numbers[0]
    return parsed


def _branches(type_: Any) -> Sequence[Any]:
    return type_ if isinstance(type_, list) else [type_]


def _type(type_: Any) -> str:
    branches = [_type_of_one(branch) for branch in _branches(type_) if branch != "null"]
    return branches[0] if len(branches) == 1 else _WIDER.get(frozenset(branches), f"one of {', '.join(branches)}")


def _type_of_one(type_: Any) -> str:
    logical = _logical(type_)
    if logical in _INSTANTS:
        return "timestamp"
    name: str = type_["type"] if isinstance(type_, dict) else type_
    return logical or _WORDS.get(name, name)


def _logical(type_: Any) -> str:
    """Returns the logical type of *type_*; empty without a known one."""
    logical = type_.get("logicalType") if isinstance(type_, dict) else None
    return logical if isinstance(logical, str) and logical in _LOGICAL.get(type_["type"], ()) else ""
