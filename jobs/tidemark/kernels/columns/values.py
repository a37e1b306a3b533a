"""Writes keys and values as text, for tables and for emit-on-change.

A value is a JSON object with its columns in the operator's order, so equal values are equal text and different ones are
not. A float prints the shortest digits that read back as itself, −0.0 as 0.0, and NaN and infinities, which JSON lacks,
as "NaN", "inf" and "-inf". A decimal is text with all digits of its type. An instant is ISO 8601 text in UTC, with its
microseconds. A key of one column is that column's text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

import polars as pl

from tidemark.kernels.columns.schemas import INSTANT


def value_text(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Returns the *columns* as one JSON object per row; `{}` without columns.

    *schema* is that of the frame.
    """
    if not columns:
        return pl.lit("{}")
    if all(_is_as_polars_writes_it(column, schema[column]) for column in columns):
        return pl.struct(columns).struct.json_encode()
    fields: list[pl.Expr] = []
    for column in columns:
        fields += [pl.lit(f",{json.dumps(column)}:"), field_text(column, schema[column])]
    return pl.concat_str(pl.lit("{"), pl.concat_str(fields).str.slice(1), pl.lit("}"))


def _is_as_polars_writes_it(column: str, kind: pl.DataType) -> bool:
    """Returns True if polars writes *column* as `value_text` does."""
    # It does not escape names, and has other texts for NaN and -0.0.
    return with_one_zero(pl.col(column), kind) is None and json.dumps(column) == f'"{column}"'


def field_text(column: str, kind: pl.DataType) -> pl.Expr:
    """Returns the JSON text of one column's values, `null` for null."""
    value = pl.col(column)
    number = with_one_zero(value, kind)
    if number is None:
        return _encoded(value)
    if not kind.is_float():
        return _encoded(number)
    return (
        pl.when(value.is_finite() | value.is_null()).then(_encoded(number)).otherwise(_encoded(value.cast(pl.String)))
    )


def with_one_zero(value: pl.Expr, kind: object) -> pl.Expr | None:
    """Returns *value*, of the type *kind*, with 0.0 in place of −0.0; None if the type has no floats.

    The two zeros are equal, but have different texts.
    """
    match kind:
        case pl.Float32() | pl.Float64():
            return pl.when(value == 0).then(pl.lit(0.0, kind)).otherwise(value)
        case pl.List(inner=inner):
            one = with_one_zero(pl.element(), inner)
            return None if one is None else value.list.eval(one)
        case pl.Struct():
            fields = {name: with_one_zero(pl.field(name), inner) for name, inner in kind.to_schema().items()}
            changed = [field.alias(name) for name, field in fields.items() if field is not None]
            return value.struct.with_fields(changed) if changed else None
    return None


def key_values(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """Returns the *columns* of a key that have floats, with one zero: all rows of a key then show the same value."""
    values = {column: with_one_zero(pl.col(column), schema[column]) for column in columns}
    return {column: value for column, value in values.items() if value is not None}


def _encoded(value: pl.Expr) -> pl.Expr:
    """Returns each value as polars writes it into a JSON object."""
    # polars encodes structs alone: the value is cut out of an object that has nothing else.
    return pl.struct(value.alias("")).struct.json_encode().str.slice(len('{"":')).str.head(-1)


def key_text(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Returns the *columns* of one key as text."""
    if len(columns) == 1:
        # Null when the column is: the record has no key.
        value = pl.col(columns[0])
        one_zero = with_one_zero(value, schema[columns[0]])
        return (value if one_zero is None else one_zero).cast(pl.String)
    return value_text(columns, schema)


def key_value(text: str, kind: pl.DataType) -> pl.Expr:
    """Reads the key of one column, of the type *kind*, from the column *text*: the inverse of `key_text`."""
    written = pl.col(text)
    if kind == pl.Boolean():
        return written == "true"
    if kind == INSTANT:
        return _instant(written)
    if isinstance(kind, pl.Datetime):
        form = "%Y-%m-%d %H:%M:%S%.f" + ("%:z" if kind.time_zone else "")
        return written.str.to_datetime(form, time_unit=kind.time_unit, time_zone=kind.time_zone)
    return written.str.to_date() if kind == pl.Date() else written.cast(kind)


def key_columns(text: str, schema: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """Reads a key's columns from *text*: the inverse of `key_text`."""
    if len(schema) == 1:
        ((name, kind),) = schema.items()
        return {name: key_value(text, kind)}
    key = parsed(text, schema)
    return {name: key.struct.field(name) for name in schema}


def parsed(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Reads the JSON objects of column *text* as a struct with *schema*: the inverse of `value_text`."""
    read = {name: _written(kind) for name, kind in schema.items()}
    decoded = pl.col(text).str.json_decode(pl.Struct(read))
    at = [_instant(pl.field(name)).alias(name) for name, kind in schema.items() if kind == INSTANT]
    return (decoded.struct.with_fields(at) if at else decoded).cast(pl.Struct(dict(schema)))


def _instant(text: pl.Expr) -> pl.Expr:
    """Reads instants in ISO 8601."""
    iso = text.str.replace("T", " ", literal=True)
    return iso.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us", time_zone="UTC")


def _written(kind: pl.DataType) -> pl.DataType:
    """Returns the type that reads values of *kind* from JSON."""
    if isinstance(kind, pl.List) and isinstance(kind.inner, pl.Float64):
        return pl.List(pl.String())
    # JSON has no NaN and no infinity, so doubles are text, and so are instants.
    return pl.String() if kind.is_float() or kind == INSTANT else kind


def partition_of(keys: pl.Series, partitions: int) -> pl.Series:
    """Returns the partition of each key text: CRC-32 modulo *partitions*."""
    unique = keys.unique()
    partition = {key: zlib.crc32(key.encode()) % partitions for key in unique if key is not None}
    return keys.replace_strict(partition, default=0, return_dtype=pl.Int32)
