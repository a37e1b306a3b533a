"""Reads the declared fields of records in Avro.

A record that cannot be read has a reason: malformed_avro, invalid_utf8, wrong_type or beyond_limit. A `string` has any
other value as its text in JSON: a record, list or map as a JSON text, bytes in base64, a decimal and a date as JSON has
them. A decimal may be in an integer or a text, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any

import fastavro
import polars as pl

from tidemark.kernels.columns.schemas import INSTANT, polars_type
from tidemark.kernels.columns.years import BEYOND, within_years
from tidemark.kernels.formats.avro_limits import check_of, limited_decimals
from tidemark.kernels.records.fields import (
    INVALID_UTF8,
    MALFORMED_AVRO,
    WRONG_TYPE,
    RecordFields,
    RecordUnreadable,
    column_of,
    read_fields,
    value_at,
)
from tidemark.kernels.records.iso_times import time_texts
from tidemark.kernels.records.json_fields import json_of, text_of
from tidemark.kernels.records.numbers import number_column
from tidemark.model.settings.declared_fields import digits_of, steps, whole_fields
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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDER = {frozenset({"int", "bigint"}): "bigint", frozenset({"float", "double"}): "double"}


def avro_types(schema: str, paths: Iterable[str] = (), referenced: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the type of each field of *schema*, and of those at *paths* inside records, by Spark's name.

    A type that Spark does not have gets Avro's name. *referenced* are the schemas of types that *schema* uses without
    defining them.
    """
    return dict(_types(schema, tuple(paths), referenced))


@lru_cache(maxsize=64)
def _types(schema: str, paths: tuple[str, ...], referenced: tuple[str, ...]) -> Mapping[str, str]:
    types = {field["name"]: _type(field["type"]) for field in json.loads(schema)["fields"]}
    for path, type_ in _inner_types(schema, paths, referenced).items():
        types[path] = _type(type_)
    return types


def _inner_types(schema: str, paths: Iterable[str], referenced: tuple[str, ...]) -> dict[str, Any]:
    """Returns by path the type of those fields at *paths* inside records that *schema* has, as it is written."""
    inner = [path for path in paths if len(steps(path)) > 1]
    if not inner:
        return {}
    named: dict[str, Any] = {}
    for text in referenced:
        fastavro.parse_schema(json.loads(text), named)
    record = fastavro.parse_schema(json.loads(schema), named)
    types: dict[str, Any] = {}
    for path in inner:
        type_: Any = record
        for name in steps(path):
            # In a parsed schema a type that was defined before is named in full.
            branches = [named.get(branch, branch) if isinstance(branch, str) else branch for branch in _branches(type_)]
            fields = [branch["fields"] for branch in branches if isinstance(branch, dict) and "fields" in branch]
            type_ = next((field["type"] for field in chain(*fields) if field["name"] == name), None)
        if type_ is not None:
            types[path] = type_
    return types


def avro_fields(
    values: pl.Series,
    declared_types: Mapping[str, str],
    schema: str,
    *,
    time: str | None = None,
    others: bool = False,
    referenced: tuple[str, ...] = (),
    limits: RecordLimits = DEFAULT_LIMITS,
) -> RecordFields:
    """Reads the declared fields of records.

    Args:
        values: the bytes of each record; a null record has null fields.
        declared_types: the declared types by path.
        schema: Avro schema of the records.
        time: the path of the event time, which may be in a text.
        others: keep the fields that are not declared, too. A record of which only fields inside are declared is kept.
        referenced: schemas of the types that *schema* names and does not define, each after those that it names.
        limits: what a record may hold.
    """
    declared = whole_fields(declared_types)
    units = {name: unit for name, unit in _units(schema).items() if declared_types.get(name) == "timestamp"}
    decode = _decoder(schema, referenced, tuple(units), limits)
    converted = _converted(avro_types(schema, declared_types, referenced), declared_types)
    found: dict[str, list[Any]] = {path: [] for path in declared_types}
    rest: list[str | None] = []
    refused: dict[int, RecordUnreadable] = {}
    for row, value in enumerate(values):
        read: Mapping[str, Any] = {}
        other = None
        if value is not None:
            try:
                record = decode(value)
                read = _read(record, declared_types, converted)
                other = _others(record, declared) if others else None
            except Exception as error:
                read, refused[row] = {}, RecordUnreadable.by(error, MALFORMED_AVRO)
        for path, column in found.items():
            column.append(read.get(path))
        rest.append(other)
    columns: dict[str, pl.Series] = {}
    for path, word in declared_types.items():
        unit = units.get(path, "micros")
        columns[path] = _column(path, found[path], word, unit, refused, is_time=path == time)
    return read_fields(columns, pl.Series(rest, dtype=pl.String), refused)


def _column(
    path: str, values: list[Any], word: str, unit: str, refused: dict[int, RecordUnreadable], *, is_time: bool
) -> pl.Series:
    """Returns the values of one field as a column.

    Args:
        path: the path of the field.
        values: its values.
        word: its declared type.
        unit: unit of its instants, if these are numbers: millis, micros or nanos.
        refused: gets the records whose value does not fit, by row.
        is_time: the field is the event time, which may also be a text.
    """
    is_text = is_time and any(isinstance(value, str) for value in values)
    if word == "timestamp":
        return time_texts(path, values, refused) if is_text else _instants(path, values, unit, refused)
    if is_text or digits_of(word):
        return number_column(path, values, word, refused)
    return column_of(values, polars_type(word), refused)


@lru_cache(maxsize=64)
def _decoder(
    schema: str, referenced: tuple[str, ...], instants: tuple[str, ...], limits: RecordLimits
) -> Callable[[bytes], dict[str, Any]]:
    """Returns a function that decodes a record of *schema*, with the fields *instants* as numbers."""
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


def _converted(types: Mapping[str, str], declared_types: Mapping[str, str]) -> Mapping[str, Callable[[Any], Any]]:
    """Returns, by the path of a field, a function that converts its value to the declared type, where that is needed.

    For a `string` the value of another type becomes text; for a `double` a decimal becomes the nearest one; an instant
    inside a record becomes epoch µs.
    """
    conversions: dict[str, Callable[[Any], Any]] = {}
    for path, word in declared_types.items():
        kind = types.get(path)
        if word == "string" and kind != "string":
            conversions[path] = text_of
        elif word == "double" and kind is not None and digits_of(kind):
            conversions[path] = float
        elif word == "timestamp" and kind == "timestamp" and len(steps(path)) > 1:
            conversions[path] = _epoch_us
    return conversions


def _epoch_us(value: datetime | int) -> int:
    """Returns an instant as epoch µs; fastavro reads one in ns as a number, and a local one without a zone."""
    if isinstance(value, int):
        return value // 1_000
    at = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1)


def _read(
    record: Mapping[str, Any], paths: Iterable[str], converted: Mapping[str, Callable[[Any], Any]]
) -> Mapping[str, Any]:
    """Returns the values of *record* at *paths*; raises RecordUnreadable where a text is not UTF-8."""
    read: dict[str, Any] = {}
    try:
        for path in paths:
            value = value_at(record, steps(path))
            read[path] = value if value is None or path not in converted else converted[path](value)
        "".join(value for value in read.values() if isinstance(value, str)).encode()
    except UnicodeEncodeError as error:
        raise RecordUnreadable.by(error, INVALID_UTF8) from None
    return read


def _others(record: Mapping[str, Any], declared: Collection[str]) -> str | None:
    """Returns the fields of *record* that are not *declared* and have a value, as JSON, or None without any.

    Raises:
        RecordUnreadable: a text is not UTF-8.
    """
    others = {name: value for name, value in record.items() if name not in declared and value is not None}
    try:
        return json_of(others) if others else None
    except UnicodeEncodeError as error:
        raise RecordUnreadable.by(error, INVALID_UTF8) from None


def _instants(name: str, numbers: list[int | None], unit: str, refused: dict[int, RecordUnreadable]) -> pl.Series:
    """Returns the epoch *numbers* of the field *name*, in *unit*, as instants, rounded down to µs.

    Rows with an instant outside of the years 1 to 9999 are added to *refused*.
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
    """Returns *schema* in which the instants *names* are plain numbers, as they are written."""
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
    if logical == "decimal":
        return f"decimal({type_.get('precision', 0)},{type_.get('scale', 0)})"
    name: str = type_["type"] if isinstance(type_, dict) else type_
    return logical or _WORDS.get(name, name)


def _logical(type_: Any) -> str:
    """Returns the logical type of *type_*; empty without a known one."""
    logical = type_.get("logicalType") if isinstance(type_, dict) else None
    return logical if isinstance(logical, str) and logical in _LOGICAL.get(type_["type"], ()) else ""
