"""Parses the raw rows of sources into rows that operators read.

A parsed row has its fields and its record time, or the reason why it is quarantined. A few rows also have the types of
all of their fields (`sampled`).

The reason is the first of these that holds: invalid_key, null_key (a record without a key and a value deletes nothing),
null_value, no_schema_id, unknown_schema, incompatible_schema (kernels/formats/wire_format.py), invalid_utf8,
malformed_json, malformed_avro, malformed_protobuf, wrong_type (it can be read, and a field does not fit its type),
beyond_limit (model/settings/record_limits.py), not_a_number (a double is NaN, where the source has
nan = "quarantine"), invalid_timestamp (the broker's time is the record time, and no time in ms: kafka/messages.py),
missing_timestamp, timestamp_out_of_range. A record without a key, or of a source without `key` with one that is no
text, can be used: an operator that needs the key quarantines it.

No content of a record raises an error: the record becomes one row with a reason. Each parser refuses what its library
refuses, whatever the error, and goes on with the next record. What raises an error outside of that is found by halving
the rows: the record that raises it alone is unreadable.

Spark reads rows without parsing them: `key`, `value` and `headers` of a record with `clock_ms`, the broker's time; or
the columns of a table, which read/table_rows.py has typed. One function parses them wherever the rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import msgspec
import polars as pl

from tidemark.kernels.columns.decimals import unscaled
from tidemark.kernels.columns.splitting import split
from tidemark.kernels.formats.avro_fields import avro_fields
from tidemark.kernels.formats.protobuf_fields import protobuf_fields
from tidemark.kernels.formats.sampled_fields import sampled_types
from tidemark.kernels.formats.wire_format import wire_fields
from tidemark.kernels.formats.written_schema import KnownSchemas
from tidemark.kernels.records.fields import ERRORS_OF_RECORDS, RecordFields, described, texts_at, texts_of
from tidemark.kernels.records.headers import INVALID_KEY
from tidemark.kernels.records.iso_times import instants_of
from tidemark.kernels.records.json_fields import json_fields, json_of
from tidemark.kernels.records.numbers import numbers_of
from tidemark.model.kinds.kafka_end import TOPIC_FORMATS, Format
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_fields import NanPolicy
from tidemark.model.settings.declared_fields import MOST_DIGITS
from tidemark.selection import in_order_of

_DIGITS_OF_MS = {"s": 3, "ms": 0, "us": -3, "ns": -6}
"""By unit, the power of ten by which a number is multiplied to get ms."""
_WHOLE_DOUBLES = 2**53
"""Up to this number every integer is a double."""
_MOST = 2**63 - 1
NO_SCHEMAS: KnownSchemas = {}
"""For sources without a registry."""
UNREADABLE = "unreadable"
"""Reason of quarantine: an error was raised over the record outside of its parser."""

SchemasOf = Callable[[pl.DataFrame, Iterable[Operator]], KnownSchemas]
"""Returns the schemas of registries that raw rows at the sources need."""


def no_schemas(raw: pl.DataFrame, operators: Iterable[Operator]) -> KnownSchemas:
    """Returns no schemas, for *operators* without a registry."""
    return NO_SCHEMAS


def parsed_rows(raw: pl.DataFrame, operators: Iterable[Operator], schemas: KnownSchemas = NO_SCHEMAS) -> pl.DataFrame:
    """Returns the *raw* rows of a batch, parsed.

    Rows of sources that are not among *operators* stay as they are. *schemas* has all that rows of registries need.
    """
    sources = {o.name: o for o in operators if isinstance(o, Source)}
    frames: list[pl.DataFrame] = []
    rest = raw
    for name, source in sources.items():
        source_rows, rest = split(rest, pl.col("source") == name)
        frames.append(parsed(source, source_rows, schemas))
    # Rows of hops are not parsed here.
    return pl.concat([rest.drop("clock_ms", "stamped_ms", *sources, strict=False), *frames], how="diagonal")


def parsed(source: Source, raw: pl.DataFrame, schemas: KnownSchemas = NO_SCHEMAS) -> pl.DataFrame:
    """Returns the *raw* rows of *source*, parsed. If a record raises an error, halving the rows finds it."""
    try:
        return _parsed(source, raw, schemas)
    except ERRORS_OF_RECORDS as error:
        if raw.height > 1:
            middle = raw.height // 2
            return pl.concat([parsed(source, half, schemas) for half in (raw[:middle], raw[middle:])])
        if raw.is_empty():
            raise  # the error is not about a record
        return _unreadable(source, raw, schemas, error)


def _unreadable(source: Source, raw: pl.DataFrame, schemas: KnownSchemas, error: BaseException) -> pl.DataFrame:
    """Returns the row of the only record of *raw*, over which *error* was raised.

    Raises the error of a record without any content, if there is one.
    """
    content = {"key", "value", "headers", "reason", "detail", source.name} & {*raw.columns}
    blank = _parsed(source, raw.with_columns(pl.lit(None, raw.schema[name]).alias(name) for name in content), schemas)
    return blank.with_columns(
        *(raw[name] for name in ("key", "value", "headers")),
        deleted=pl.lit(value=False),
        reason=pl.lit(UNREADABLE),
        detail=pl.lit(described(error)),
    )


def _parsed(source: Source, raw: pl.DataFrame, schemas: KnownSchemas) -> pl.DataFrame:
    fields = _fields(source, raw, schemas)
    columns = dict(fields.columns)
    if source.key:
        columns[source.key] = texts_of(raw["key"])
    if source.other_fields:
        columns[source.other_fields] = fields.others
    reasons, details = fields.reasons, fields.details
    if "reason" in raw.columns:
        reasons = raw["reason"].zip_with(raw["reason"].is_not_null(), reasons)
    if "detail" in raw.columns:
        details = raw["detail"].zip_with(raw["detail"].is_not_null(), details)
    rows = raw.select(
        "source", "partition", "offset", "key", "value", "headers",
        deleted=pl.col("value").is_null() & bool(source.key),
        clock_ms="clock_ms",
        _is_key=texts_of(raw["key"]).is_not_null(),
        _unreadable=reasons,
        **{source.name: pl.DataFrame(in_order_of(source.columns, columns)).to_struct()},
        **{name: name for name in ("stamped_ms", "written") if name in raw.columns},
        detail=details,
        sampled=sampled_types(raw, source, schemas.get(source.registry or "", {})),
    )  # fmt: skip
    timed = _with_times(source, rows)
    helpers = ("clock_ms", "_is_key", "_unreadable", "_has_time_text", "_event_time")
    return timed.with_columns(reason=_reason(source)).drop(helpers)


def _fields(source: Source, raw: pl.DataFrame, schemas: KnownSchemas) -> RecordFields:
    """Returns the declared columns of *source*, by name, and the others."""
    if source.name in raw.columns:
        columns = raw[source.name].struct
        none = texts_at({}, raw.height)
        undeclared = columns.field(source.other_fields) if source.other_fields else none
        return RecordFields({name: columns.field(name) for name in source.fields}, undeclared, raw["reason"], none)
    declared_types, time = source.types_of_fields, source.time_field
    others, limits = source.other_fields is not None, source.record_limits
    if source.registry is not None:
        parsed_fields = wire_fields(raw["value"], declared_types, source, schemas.get(source.registry, {}))
    elif source.format is Format.PROTOBUF:
        descriptors, message = source.descriptors or b"", source.message or ""
        parsed_fields = protobuf_fields(
            raw["value"], declared_types, descriptors, message, time=time, others=others, limits=limits
        )
    elif source.format is Format.AVRO:
        schema = source.avro_schema or ""
        parsed_fields = avro_fields(raw["value"], declared_types, schema, time=time, others=others, limits=limits)
    elif source.format in TOPIC_FORMATS:
        as_json = resolve_name(TOPIC_FORMATS[source.format].as_json or "")
        values, errors = _converted(raw["value"], as_json)
        parsed_fields = json_fields(values, declared_types, time=time, others=others, limits=limits)
        is_error = errors.is_not_null()
        reasons = pl.repeat(UNREADABLE, raw.height, eager=True).zip_with(is_error, parsed_fields.reasons)
        details = errors.zip_with(is_error, parsed_fields.details)
        parsed_fields = replace(parsed_fields, reasons=reasons, details=details)
    else:
        parsed_fields = json_fields(raw["value"], declared_types, time=time, others=others, limits=limits)
    named = {name: parsed_fields.columns[field] for name, field in source.field_of.items()}
    return RecordFields(named, parsed_fields.others, parsed_fields.reasons, parsed_fields.details)


def _converted(values: pl.Series, as_json: Callable[[bytes], bytes]) -> tuple[pl.Series, pl.Series]:
    """Returns *values* as *as_json* converts them, null where it fails, and the error of each; null without one."""
    converted: list[bytes | None] = []
    errors: list[str | None] = []
    for value in values:
        try:
            converted.append(None if value is None else bytes(as_json(value)))
            errors.append(None)
        except ERRORS_OF_RECORDS as error:
            converted.append(None)
            errors.append(described(error))
    return pl.Series(values.name, converted, dtype=pl.Binary), pl.Series(errors, dtype=pl.String)


def _with_times(source: Source, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with `timestamp_ms` and two helper columns.

    `_event_time` is the record time as it was read, and `_has_time_text` is true for a tombstone (a record that deletes
    its key) that has a time in a header or in its key.
    """
    if source.timestamp is None:
        return rows.with_columns(timestamp_ms="clock_ms", _event_time="clock_ms", _has_time_text=False)
    texts = _tombstone_texts(source, rows)
    event_time = rows[source.name].struct.field(source.timestamp)
    if texts:
        word, written = source.fields[source.timestamp], pl.Series([*texts.values()], dtype=pl.String)
        of_tombstones = instants_of(written) if word == "timestamp" else numbers_of(written, word)
        event_time = event_time.scatter([*texts], of_tombstones)
    timed = rows.with_columns(_event_time=event_time, _has_time_text=pl.int_range(pl.len()).is_in([*texts]))
    return timed.with_columns(timestamp_ms=_in_ms(source.timestamp_unit, event_time.dtype))


def _tombstone_texts(source: Source, rows: pl.DataFrame) -> dict[int, str]:
    """Returns the record times in tombstones, as text, by row number.

    A tombstone is a record without a value. kernels/records/tombstones.py gives the times of other tombstones.
    """
    if not source.tombstone_header and not source.tombstone_field:
        return {}
    deleted = rows.with_row_index("_row").filter("deleted").select("_row", "key", "headers")
    texts = {row: _tombstone_text(source, key, headers) for row, key, headers in deleted.iter_rows()}
    return {row: text for row, text in texts.items() if text is not None}


def _tombstone_text(source: Source, key: bytes | None, headers: Iterable[Mapping[str, Any]] | None) -> str | None:
    if source.tombstone_header:
        named = [header["value"] for header in headers or () if header["key"] == source.tombstone_header]
        # A header may be repeated: the last one counts.
        return named[-1].decode(errors="replace") if named and named[-1] is not None else None
    try:
        key_fields = msgspec.json.decode(key or b"")
    except Exception:
        return None
    value = key_fields.get(source.tombstone_field) if isinstance(key_fields, dict) else None
    if value is None or isinstance(value, str):
        return value
    # No time has another type; its text may be too deep to be made.
    return json_of(value) if isinstance(value, int | float) else ""


def _in_ms(unit: str, kind: pl.DataType) -> pl.Expr:
    """Returns `_event_time` of the type *kind*, numbers in *unit*, as ms, rounded down; null beyond 64 bits."""
    event_time = pl.col("_event_time")
    if isinstance(kind, pl.Datetime):
        return event_time.dt.epoch("ms")
    digits = _DIGITS_OF_MS[unit]
    if kind.is_float():
        # A double is the nearest to the decimal digits of the record; rounding to microseconds restores the digits.
        us = (event_time * 10.0 ** (digits + 3)).round()
        return pl.when(us.abs() <= _WHOLE_DOUBLES).then(us).cast(pl.Int64) // 1_000
    if isinstance(kind, pl.Decimal):
        event_time, digits = unscaled(event_time), digits - kind.scale
    number = event_time.cast(pl.Int128)
    if digits < 0:
        # Beyond so many digits the division leaves nothing of any number.
        return (number // pl.lit(10 ** min(-digits, MOST_DIGITS), pl.Int128)).cast(pl.Int64, strict=False)
    most = _MOST // 10**digits
    return (pl.when(number.is_between(-most, most)).then(number) * pl.lit(10**digits, pl.Int128)).cast(pl.Int64)


def _reason(source: Source) -> pl.Expr:
    """Returns why a record is quarantined; null if it is not."""
    low_ms, high_ms = source.timestamp_range_ms
    deleted, event_time, time = pl.col("deleted"), pl.col("_event_time"), pl.col("timestamp_ms")
    empty, keyless = pl.col("value").is_null(), pl.col("key").is_null()
    doubles = [name for name, word in source.fields.items() if word == "double"]
    asks_for_nan = source.nan is NanPolicy.QUARANTINE and doubles
    is_nan = (pl.col(source.name).struct.field(name).is_nan().fill_null(value=False) for name in doubles)
    reasons = [
        (~keyless & ~pl.col("_is_key") & bool(source.key), pl.lit(INVALID_KEY)),
        (empty & keyless & bool(source.key), pl.lit("null_key")),
        (empty & bool(source.topic and not source.key), pl.lit("null_value")),
        (pl.col("_unreadable").is_not_null(), pl.col("_unreadable")),
        (pl.any_horizontal(is_nan) if asks_for_nan else pl.lit(value=False), pl.lit("not_a_number")),
        (event_time.is_null() & (source.topic is not None) & (source.timestamp is None), pl.lit("invalid_timestamp")),
        (deleted & pl.col("_has_time_text") & event_time.is_null(), pl.lit("wrong_type")),
        (deleted & event_time.is_null(), pl.lit(None, pl.String)),
        (event_time.is_null(), pl.lit("missing_timestamp")),
        (time.is_null() | (time < low_ms) | (time >= high_ms), pl.lit("timestamp_out_of_range")),
    ]
    # Built from the last reason to the first, so that the first that holds is the outermost.
    reason = pl.lit(None, pl.String)
    for holds, why in reversed(reasons):
        reason = pl.when(holds).then(why).otherwise(reason)
    return reason
