"""From what a topic, a table or a file has to the rows that a driver gets: fields, record time, or why it is unusable.

A reason is the first that holds: invalid_key, null_key (of a record without a value: it deletes nothing), null_value,
invalid_utf8, malformed_json, malformed_avro, wrong_type (it can be read, and a field does not fit its type),
not_a_number (a double is NaN, where the source says nan = "quarantine"), missing_timestamp, timestamp_out_of_range.
Nothing that a record has in it raises: it is one row with a reason. A record without a key can be used: an operator
that needs one says so.

JSON may name half a character (a lone surrogate), which no table can keep: all of them would be the same question mark,
and two keys one. So a record that has one where it is kept is invalid_utf8. Of a field that an object has twice the
last value counts.

The functions are the same for streams and for batches.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from tidemark.errors import InvalidArgument
from tidemark.spec.operators import Format, NotANumber, Source

PER_MS = {"us": 1_000, "ns": 1_000_000}
_KEEP_LAST = "spark.sql.variant.allowDuplicateKeys"
"""The setting by which Spark takes the last of two values of one field, and does not take the whole object for null."""
_WHOLE = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
"""In the text of JSON: a backslash that is one, or both halves of a character."""
ISO_8601 = r"^\d{4}-\d{2}-\d{2}([T ].*)?$"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
"""How JSON has a timestamp; without this Spark leaves out what is below a millisecond."""
_CORRUPT = "_corrupt"
_DECODED = "_decoded"
_FITTING = {
    "string": {"string"},
    "boolean": {"boolean"},
    "int": {"tinyint", "smallint", "int"},
    "bigint": {"tinyint", "smallint", "int", "bigint"},
    "double": {"tinyint", "smallint", "int", "float", "double"},
    "timestamp": {"timestamp", "timestamp_ntz"},
}
"""Per declared type the Spark types of which every value fits."""


def kafka_records(raw: DataFrame, source: Source) -> DataFrame:
    """The rows of *source* for *raw* ones as Spark reads them from its topic, headers included."""
    parsed = _of_avro(raw, source) if source.format is Format.AVRO else _of_json(raw, source)
    return _rows(parsed, source, F.unix_millis("timestamp"))


def json_lines(raw: DataFrame, source: Source) -> DataFrame:
    """The rows of *source* for *raw* lines of files: `value` (binary) and `written`, where the line was."""
    return _rows(_of_json(_without_key(raw), source), source, F.lit(None).cast("bigint"))


def table_rows(raw: DataFrame, source: Source, *, texts: bool = False) -> DataFrame:
    """The rows of *source* for *raw* ones with columns and `written`; their bytes are a JSON object of the columns.

    With *texts* all columns are text, to be read as what is declared. Raises InvalidArgument when a declared column is
    missing or of a type that does not fit.
    """
    columns = StructType([column for column in raw.schema if column.name != "written"])
    if not texts:
        _require_fitting(columns, source)
    elif missing := [name for name in source.types_of_fields if name not in columns.names]:
        raise _not_there(source, missing, columns)
    read = _without_key(raw.withColumn("_read", F.struct(*(F.col(f"`{name}`") for name in columns.names))))
    value = read.withColumn("value", _json(F.col("_read")).cast("binary"))
    other_fields = _others(columns, source.types_of_fields)
    return _rows(
        _with_fields(value, source, _types(columns), other_fields, F.lit(None)), source, F.lit(None).cast("bigint")
    )


def _others(columns: StructType, declared: Collection[str]) -> Column:
    """The fields of `_read`, which has *columns*, that are not *declared*, as a JSON object."""
    others = [F.col(f"_read.`{name}`") for name in columns.names if name not in declared]
    return _json(F.struct(*others)) if others else F.lit("{}")


def _json(struct: Column) -> Column:
    """*struct* as a JSON object, whose timestamps have their microseconds."""
    return F.to_json(struct, {"timestampFormat": f"{_MICROSECONDS}XXX", "timestampNTZFormat": _MICROSECONDS})


def _without_key(raw: DataFrame) -> DataFrame:
    """*raw* with the columns that only a topic's records have."""
    return raw.withColumns(
        {
            "partition": F.lit(0),
            "offset": F.lit(None).cast("bigint"),
            "key": F.lit(None).cast("binary"),
            "headers": F.lit(None).cast("array<struct<key:string,value:binary>>"),
        }
    )


def _of_json(raw: DataFrame, source: Source) -> DataFrame:
    """*raw* with the fields of the JSON objects that are their `value`; what follows an object is not looked at."""
    raw.sparkSession.conf.set(_KEEP_LAST, "true")
    words = {name: "string" if word == "timestamp" else word for name, word in source.types_of_fields.items()}
    schema = ", ".join(f"`{name}` {word}" for name, word in words.items())
    text = F.col("_text")
    corrupt = F.col(f"_read.{_CORRUPT}").isNotNull()
    read = raw.withColumn("_text", F.try_validate_utf8(F.col("value").cast("string"))).withColumn(
        "_read", F.from_json(text, f"{schema}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT})
    )
    declared = list(words)
    named = F.map_filter(F.from_json(text, "map<string,variant>"), lambda name, _: ~name.isin(declared))
    others = F.to_json(named)
    not_kept = F.lit(source.other_fields is not None) & others.isNull()
    kept = [F.col(f"_read.`{name}`") for name, word in words.items() if word == "string"]
    halves = _has_half_a_character(text) & _says_unknown([*kept, *([others] if source.other_fields else [])])
    unreadable = (
        F.when(text.isNull(), "invalid_utf8")
        .when(F.col("_read").isNull() | (corrupt & F.try_parse_json(text).isNull()), "malformed_json")
        .when(corrupt, "wrong_type")
        .when(halves, "invalid_utf8")
        .when(not_kept, "malformed_json")
    )
    return _with_fields(read, source, words, others, unreadable)


def _has_half_a_character(text: Column) -> Column:
    """Whether *text*, which is JSON, names one half of a character without the other: a lone surrogate."""
    named = text.contains("\\ud") | text.contains("\\uD")
    return named & F.regexp_replace(text, _WHOLE, " ").rlike(r"\\u[dD][89a-fA-F]")


def _says_unknown(columns: Iterable[Column]) -> Column:
    """Whether one of *columns* has the question mark that Spark puts for half a character."""
    return reduce(or_, (F.coalesce(column.contains("?"), F.lit(col=False)) for column in columns), F.lit(col=False))


def _of_avro(raw: DataFrame, source: Source) -> DataFrame:
    """*raw* with the fields of the Avro records that are their `value`.

    Spark makes malformed bytes a record of nulls. So it is asked for a field more, which has a value by default.
    """
    schema = source.avro_schema or ""
    asked = json.loads(schema)
    asked["fields"] = [*asked["fields"], {"name": _DECODED, "type": "boolean", "default": True}]
    read = raw.withColumn("_read", from_avro("value", schema, {"mode": "PERMISSIVE", "avroSchema": json.dumps(asked)}))
    columns = read.schema["_read"].dataType
    assert isinstance(columns, StructType)
    _require_fitting(columns, source)
    unreadable = F.when(F.col(f"_read.{_DECODED}").isNull(), "malformed_avro")
    other_fields = _others(columns, {*source.types_of_fields, _DECODED})
    return _with_fields(read, source, _types(columns), other_fields, unreadable)


def _with_fields(
    read: DataFrame, source: Source, types: Mapping[str, str], other_fields: Column, unreadable: Column
) -> DataFrame:
    """*read* with `_fields`, the columns of *source* made of the fields in `_read`, and `_unreadable`, why that failed.

    *types* are the Spark types by field.
    """
    raw = {name: F.col(f"_read.`{field}`") for name, field in source.field_of.items() if name != source.key}
    fields = {name: nullable(_converted(column, types[source.field_of[name]], source.fields[name]))
              for name, column in raw.items()}  # fmt: skip
    if source.key:
        fields[source.key] = _key_text()
    if source.other_fields:
        fields[source.other_fields] = F.nullif(other_fields, F.lit("{}"))
    lost = {word: F.lit(col=False) for word in ("string", "other")}
    for name, column in raw.items():
        kind = "string" if source.fields[name] == "string" else "other"
        lost[kind] |= column.isNotNull() & fields[name].isNull()
    why = F.when(F.col("value").isNotNull(), F.coalesce(
        unreadable, F.when(lost["string"], "invalid_utf8").when(lost["other"], "wrong_type")
    ))  # fmt: skip
    struct = F.struct(*(fields[name].alias(name) for name in source.columns))
    return read.withColumns({"_fields": struct, "_unreadable": why})


def nullable(column: Column) -> Column:
    """*column*, which may be null by its type: pyarrow takes no struct for null whose fields may not be."""
    return F.when(column.isNotNull(), column)


def _converted(column: Column, kind: str, word: str) -> Column:
    """*column*, of Spark type *kind*, as the declared type *word*; null: does not fit.

    A timestamp is of the years 1 to 9999, and of its text the digits behind the microseconds are not looked at.
    """
    if word == "timestamp":
        text = column.rlike(ISO_8601) if kind == "string" else F.lit(col=True)
        at = F.when(text, F.try_to_timestamp(column) if kind == "string" else column.cast(word))
        return F.when(F.year(at).between(1, 9999), at)
    return F.try_validate_utf8(column) if word == "string" else column.try_cast(word)


def _key_text() -> Column:
    return F.try_validate_utf8(F.col("key").cast("string"))


def _rows(parsed: DataFrame, source: Source, clock_ms: Column) -> DataFrame:
    """The rows that the driver gets; *clock_ms* is the time that the broker has for a record."""
    deleted = F.col("value").isNull() if source.key else F.lit(col=False)
    told = timestamp_ms = clock_ms
    if source.timestamp:
        of_tombstone = _converted(_tombstone_text(source), "string", source.fields[source.timestamp])
        told = F.when(deleted, of_tombstone).otherwise(F.col(f"_fields.`{source.timestamp}`"))
        is_number = source.fields[source.timestamp] == "bigint"
        timestamp_ms = _in_ms(told, source.timestamp_unit) if is_number else F.unix_millis(told)
    reason = _reason(source, deleted, told, timestamp_ms)
    written = ["written"] if "written" in parsed.columns else []
    return parsed.select(
        F.lit(source.name).alias("source"),
        "partition",
        "offset",
        "key",
        "value",
        "headers",
        deleted.alias("deleted"),
        timestamp_ms.alias("timestamp_ms"),
        reason.alias("reason"),
        F.col("_fields").alias(source.name),
        *written,
    )


def _tombstone_text(source: Source) -> Column:
    """What a record without a value says of its time; null: nothing, and kernels/tombstones.py knows what it is."""
    if source.tombstone_header:
        named = F.filter("headers", lambda header: header["key"] == F.lit(source.tombstone_header))
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")
    if source.tombstone_field:
        return F.get_json_object(_key_text(), f"$['{source.tombstone_field}']")
    return F.lit(None).cast("string")


def _in_ms(instants: Column, unit: str) -> Column:
    """*instants* in *unit* as ms, rounded down; null where that is beyond 64 bits."""
    if unit not in PER_MS:
        return F.try_multiply(instants, F.lit({"s": 1_000, "ms": 1}[unit]))
    per_ms = F.lit(PER_MS[unit])
    return F.call_function("div", instants, per_ms) - (instants % per_ms < 0).cast("bigint")


def _reason(source: Source, deleted: Column, told: Column, timestamp_ms: Column) -> Column:
    """Why a record is quarantined, null if it is not; *told* is its time as read, null for a tombstone without one."""
    low_ms, high_ms = source.timestamp_range_ms
    unreadable = F.col("_unreadable")
    if source.topic:
        empty = F.col("value").isNull()
        known = F.when(F.col("key").isNotNull() & _key_text().isNull(), "invalid_key")
        known = known.when(empty & F.col("key").isNull(), "null_key") if source.key else known.when(empty, "null_value")
        known = known.when(unreadable.isNotNull(), unreadable)
    else:
        known = F.when(unreadable.isNotNull(), unreadable)
    if source.nan is NotANumber.QUARANTINE:
        known = known.when(_has_nan(source), "not_a_number")
    if source.tombstone_header or source.tombstone_field:
        known = known.when(deleted & _tombstone_text(source).isNotNull() & told.isNull(), "wrong_type")
    return (
        known.when(deleted & told.isNull(), None)
        .when(told.isNull(), "missing_timestamp")
        .when(timestamp_ms.isNull() | (timestamp_ms < low_ms) | (timestamp_ms >= high_ms), "timestamp_out_of_range")
    )  # fmt: skip


def _has_nan(source: Source) -> Column:
    """Whether a field of *source* that is a double is NaN; null is not."""
    doubles = [name for name, word in source.fields.items() if word == "double"]
    return reduce(or_, (F.isnan(F.col(f"_fields.`{name}`")) for name in doubles), F.lit(col=False))


def _require_fitting(columns: StructType, source: Source) -> None:
    """Raise InvalidArgument unless *columns* have all that *source* declares, in types that fit."""
    types = _types(columns)
    declared = {source.field_of[name]: word for name, word in source.fields.items() if name != source.key}
    if missing := [name for name in declared if name not in types]:
        raise _not_there(source, missing, columns)
    if wrong := [f"{n} is {types[n]}, not {word}" for n, word in declared.items() if types[n] not in _FITTING[word]]:
        msg = f"operators.{source.name}.fields must have the types of what it reads: {'; '.join(wrong)}"
        raise InvalidArgument(msg)


def _types(columns: StructType) -> dict[str, str]:
    return {column.name: column.dataType.simpleString() for column in columns}


def _not_there(source: Source, missing: list[str], columns: StructType) -> InvalidArgument:
    known = ", ".join(name for name in columns.names if name != _DECODED)
    return InvalidArgument(f"operators.{source.name}.fields names {', '.join(missing)}; what it reads has: {known}")
