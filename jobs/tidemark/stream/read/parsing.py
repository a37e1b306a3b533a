"""From what a topic, a file or a table has to the rows that operators read: fields, record time, or why not.

A reason is the first that holds: invalid_key, null_key (of a record without a value: it deletes nothing), null_value,
invalid_utf8, malformed_json, malformed_avro, wrong_type (it can be read, and a field does not fit its type),
not_a_number (a double is NaN, where the source says nan = "quarantine"), missing_timestamp, timestamp_out_of_range.
Nothing that a record has in it raises: it is one row with a reason. A record without a key can be used: an operator
that needs one says so.

The rows that Spark reads come as they are: `key`, `value` and `headers` of a record with `clock_ms`, the broker's
time; or the columns of a table, which read/table_rows.py has typed. One function parses them wherever the rows are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import polars as pl

from tidemark.kernels.avro_fields import avro_fields
from tidemark.kernels.fields import Fields, texts_of
from tidemark.kernels.iso_times import instant_us
from tidemark.kernels.json_fields import json_fields, json_of
from tidemark.spec.operators import Format, NotANumber, Operator, Source

_PER_MS = {"us": 1_000, "ns": 1_000_000}
_MS = {"s": 1_000, "ms": 1}
_MOST = 2**63 - 1
_NUMBER = re.compile(r"\s*[+-]?\d{1,19}\s*", re.ASCII)


def parsed_rows(raw: pl.DataFrame, operators: Iterable[Operator]) -> pl.DataFrame:
    """The *raw* rows of a batch, those of the sources among *operators* parsed."""
    sources = {o.name: o for o in operators if isinstance(o, Source)}
    parts = [parsed(source, raw.filter(pl.col("source") == name)) for name, source in sources.items()]
    rest = raw.filter(~pl.col("source").is_in([*sources])).drop("clock_ms", *sources, strict=False)
    return pl.concat([rest, *parts], how="diagonal")


def parsed(source: Source, raw: pl.DataFrame) -> pl.DataFrame:
    """The rows of *source* for its *raw* ones."""
    fields = _fields(source, raw)
    columns = dict(fields.columns)
    if source.key:
        columns[source.key] = texts_of(raw["key"])
    if source.other_fields:
        columns[source.other_fields] = fields.others
    rows = raw.select(
        "source", "partition", "offset", "key", "value", "headers",
        deleted=pl.col("value").is_null() & bool(source.key),
        clock_ms="clock_ms",
        _is_key=texts_of(raw["key"]).is_not_null(),
        _unreadable=fields.reasons,
        **{source.name: pl.DataFrame({name: columns[name] for name in source.columns}).to_struct()},
        **({"written": "written"} if "written" in raw.columns else {}),
    )  # fmt: skip
    timed = _with_times(source, rows)
    helpers = ("clock_ms", "_is_key", "_unreadable", "_has_time_text", "_event_time")
    return timed.with_columns(reason=_reason(source)).drop(helpers)


def _fields(source: Source, raw: pl.DataFrame) -> Fields:
    """The declared columns of *source*, by name, and the others."""
    if source.name in raw.columns:
        columns = raw[source.name].struct
        others = columns.field(source.other_fields) if source.other_fields else pl.Series([None], dtype=pl.String)
        return Fields({name: columns.field(name) for name in source.fields}, others, raw["reason"])
    keeps_others = source.other_fields is not None
    words = source.types_of_fields
    if source.format is Format.AVRO:
        found = avro_fields(raw["value"], words, source.avro_schema or "", others=keeps_others)
    else:
        found = json_fields(raw["value"], words, others=keeps_others)
    named = {name: found.columns[field] for name, field in source.field_of.items()}
    return Fields(named, found.others, found.reasons)


def _with_times(source: Source, rows: pl.DataFrame) -> pl.DataFrame:
    """*rows* with `timestamp_ms`, `_event_time`, which is that as read, and `_has_time_text`: a tombstone says one."""
    if source.timestamp is None:
        return rows.with_columns(timestamp_ms="clock_ms", _event_time="clock_ms", _has_time_text=False)
    texts = _tombstone_texts(source, rows)
    event_time = rows[source.name].struct.field(source.timestamp)
    if texts:
        of_tombstones = pl.Series([_time(text, source) for text in texts.values()], dtype=pl.Int64)
        event_time = event_time.cast(pl.Int64).scatter([*texts], of_tombstones).cast(event_time.dtype)
    timed = rows.with_columns(_event_time=event_time, _has_time_text=pl.int_range(pl.len()).is_in([*texts]))
    is_number = source.fields[source.timestamp] == "bigint"
    return timed.with_columns(
        timestamp_ms=_in_ms(source.timestamp_unit) if is_number else pl.col("_event_time").dt.epoch("ms")
    )


def _tombstone_texts(source: Source, rows: pl.DataFrame) -> dict[int, str]:
    """What records without a value say of their time, by row; of others kernels/tombstones.py knows what it is."""
    if not source.tombstone_header and not source.tombstone_field:
        return {}
    deleted = rows.with_row_index("_row").filter("deleted").select("_row", "key", "headers")
    texts = {row: _tombstone_text(source, key, headers) for row, key, headers in deleted.iter_rows()}
    return {row: text for row, text in texts.items() if text is not None}


def _tombstone_text(source: Source, key: bytes | None, headers: Iterable[Mapping[str, Any]] | None) -> str | None:
    if source.tombstone_header:
        named = [header["value"] for header in headers or () if header["key"] == source.tombstone_header]
        return named[-1].decode(errors="replace") if named and named[-1] is not None else None
    try:
        found = msgspec.json.decode(key or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    value = found.get(source.tombstone_field) if isinstance(found, dict) else None
    return value if value is None or isinstance(value, str) else json_of(value)


def _time(text: str, source: Source) -> int | None:
    """The time that a tombstone says, in the unit of the field that others have it in; epoch µs for an instant."""
    if source.fields[source.timestamp or ""] == "timestamp":
        return instant_us(text)
    number = int(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and -_MOST <= number <= _MOST else None


def _in_ms(unit: str) -> pl.Expr:
    """`_event_time`, numbers in *unit*, as ms, rounded down; null where that is beyond 64 bits."""
    event_time = pl.col("_event_time")
    if unit in _PER_MS:
        return event_time // _PER_MS[unit]
    most = _MOST // _MS[unit]
    return pl.when(event_time.is_between(-most, most)).then(event_time) * _MS[unit]


def _reason(source: Source) -> pl.Expr:
    """Why a record is quarantined, null if it is not."""
    low_ms, high_ms = source.timestamp_range_ms
    deleted, event_time, time = pl.col("deleted"), pl.col("_event_time"), pl.col("timestamp_ms")
    empty, keyless = pl.col("value").is_null(), pl.col("key").is_null()
    doubles = [name for name, word in source.fields.items() if word == "double"]
    asks_for_nan = source.nan is NotANumber.QUARANTINE and doubles
    is_nan = (pl.col(source.name).struct.field(name).is_nan().fill_null(value=False) for name in doubles)
    found = [
        (~keyless & ~pl.col("_is_key"), pl.lit("invalid_key")),
        (empty & keyless & bool(source.key), pl.lit("null_key")),
        (empty & bool(source.topic and not source.key), pl.lit("null_value")),
        (pl.col("_unreadable").is_not_null(), pl.col("_unreadable")),
        (pl.any_horizontal(is_nan) if asks_for_nan else pl.lit(value=False), pl.lit("not_a_number")),
        (deleted & pl.col("_has_time_text") & event_time.is_null(), pl.lit("wrong_type")),
        (deleted & event_time.is_null(), pl.lit(None, pl.String)),
        (event_time.is_null(), pl.lit("missing_timestamp")),
        (time.is_null() | (time < low_ms) | (time >= high_ms), pl.lit("timestamp_out_of_range")),
    ]
    reason = pl.lit(None, pl.String)
    for holds, why in reversed(found):
        reason = pl.when(holds).then(why).otherwise(reason)
    return reason
