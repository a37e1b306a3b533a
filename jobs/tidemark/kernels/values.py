"""Keys and values as text: what the tables show and what emit-on-change compares.

A value is a JSON object with its columns in the operator's order, so equal values are equal text and different ones are
not: a float prints the shortest digits that read back as itself, −0.0 as 0.0, and what JSON has no number for as "NaN",
"inf" and "-inf"; an instant is ISO 8601 text in UTC, with its microseconds. A key of one column is that column's text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

import polars as pl

from tidemark.kernels.schemas import INSTANT, instants


def value_text(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """The *columns* of a frame with *schema* as one JSON object per row; `{}` without columns."""
    if not columns:
        return pl.lit("{}")
    fields = [part for c in columns for part in (pl.lit(f",{json.dumps(c)}:"), _field(c, schema[c]))]
    return pl.concat_str(pl.lit("{"), pl.concat_str(fields).str.slice(1), pl.lit("}"))


def _field(column: str, kind: pl.DataType) -> pl.Expr:
    """The JSON text of one column's values, `null` for null."""
    value = pl.col(column)
    if not kind.is_float():
        return _encoded(value)
    number = _encoded(pl.when(value == 0).then(0.0).otherwise(value))
    return pl.when(value.is_finite() | value.is_null()).then(number).otherwise(_encoded(value.cast(pl.String)))


def _encoded(value: pl.Expr) -> pl.Expr:
    """Each value as polars writes it into a JSON object, cut out of one that has nothing else."""
    return pl.struct(value.alias("")).struct.json_encode().str.slice(len('{"":')).str.head(-1)


def key_text(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """The *columns* of one key as text; null when a single column is."""
    if len(columns) == 1:
        return pl.col(columns[0]).cast(pl.String)
    return value_text(columns, schema)


def key_value(text: str, kind: pl.DataType) -> pl.Expr:
    """The value of a key of one column of *kind*, read back from the column *text*, as `key_text` writes it."""
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
    """The columns of a key, which has *schema*, read back from the column *text*, as `key_text` writes them."""
    if len(schema) == 1:
        ((name, kind),) = schema.items()
        return {name: key_value(text, kind)}
    key = parsed(text, schema)
    return {name: key.struct.field(name) for name in schema}


def keys_as_now(rows: pl.DataFrame, text: str, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """*rows* with the keys in column *text* as `key_text` writes them: an older version wrote instants as epoch ms."""
    if INSTANT not in schema.values():
        return rows
    keys = rows.select(**key_columns(text, schema)).select(key_text([*schema], schema).alias(text))
    return rows.with_columns(keys)


def parsed(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """The JSON objects of column *text*, as `value_text` writes them, as a struct with *schema*; null for null."""
    read = {name: _written(kind) for name, kind in schema.items()}
    decoded = pl.col(text).str.json_decode(pl.Struct(read))
    at = [_instant(pl.field(name)).alias(name) for name, kind in schema.items() if kind == INSTANT]
    return (decoded.struct.with_fields(at) if at else decoded).cast(pl.Struct(dict(schema)))


def _instant(text: pl.Expr) -> pl.Expr:
    """The instants that *text* names: in ISO 8601, or as an older version wrote them, as epoch ms."""
    ms = text.cast(pl.Int64, strict=False)
    iso = pl.when(ms.is_null()).then(text).str.replace("T", " ", literal=True)
    at = iso.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us", time_zone="UTC")
    return pl.when(ms.is_null()).then(at).otherwise(instants(ms))


def _written(kind: pl.DataType) -> pl.DataType:
    """The type as which a value of *kind* is read from JSON: of doubles NaN and infinities are text, and instants."""
    if isinstance(kind, pl.List) and isinstance(kind.inner, pl.Float64):
        return pl.List(pl.String())
    return pl.String() if kind.is_float() or kind == INSTANT else kind


def partition_of(keys: pl.Series, partitions: int) -> pl.Series:
    """The partition of each key text: CRC-32 modulo *partitions*, the same on every machine."""
    unique = keys.unique()
    of = {key: zlib.crc32(key.encode()) % partitions for key in unique if key is not None}
    return keys.replace_strict(of, default=0, return_dtype=pl.Int32)
