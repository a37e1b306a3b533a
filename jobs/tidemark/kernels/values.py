"""Keys and values as text: what the tables show and what emit-on-change compares.

A value is a JSON object with its columns in the operator's order, so equal values are equal text: a float prints the
shortest digits that read back as itself, and −0.0 as 0.0. A key of one column is that column's text.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import polars as pl


def value_text(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """The *columns* of a frame with *schema* as one JSON object per row."""
    return pl.struct(pl.col(c) + 0.0 if schema[c].is_float() else pl.col(c) for c in columns).struct.json_encode()


def key_text(columns: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """The *columns* of one key as text; null when a single column is."""
    if len(columns) == 1:
        return pl.col(columns[0]).cast(pl.String)
    return value_text(columns, schema)


def parsed(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """The JSON objects of column *text* as one struct per row with the fields of *schema*; null for null."""
    return pl.col(text).str.json_decode(pl.Struct(dict(schema)))


def partition_of(keys: pl.Series, partitions: int) -> pl.Series:
    """The partition of each key text: CRC-32 modulo *partitions*, the same on every machine."""
    unique = keys.unique()
    of = {key: zlib.crc32(key.encode()) % partitions for key in unique if key is not None}
    return keys.replace_strict(of, default=0, return_dtype=pl.Int32)
