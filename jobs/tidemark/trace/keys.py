"""Reads what a person typed as the key of a row.

It is a JSON object with some or all columns of the key, or text: then it is the value of the key's first column, or the
beginning of that value. A key that has exactly the text counts before those that only begin with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.values import key_columns, key_text, key_value, parsed
from tidemark.model.settings.intervals import instant_ms, utc

Schema = Mapping[str, pl.DataType]
MOST_LISTED = 10
"""If a typed text fits more than one key, so many of them are listed at most."""


@dataclass(frozen=True)
class TypedKey:
    """A key of the columns *schema*, as it was typed.

    Attributes:
        text: what was typed.
        schema: the columns of the key, in their order.
        windows: columns of the key that are bounds of windows: epoch ms in `changes`, timestamps in tables of sinks.
        values: values of the columns that *text* names; empty if the first column cannot have it as a value.
        can_begin: True if the first column may also begin with *text*.
    """

    text: str
    schema: Schema
    windows: Collection[str]
    values: Mapping[str, Any]
    can_begin: bool

    @property
    def whole(self) -> str | None:
        """The text that `changes` has for this key; None if not all columns of the key are known."""
        if self.values.keys() != self.schema.keys():
            return None
        row = pl.DataFrame({name: [self.values[name]] for name in self.schema}, schema=dict(self.schema))
        return _texts(row, self.schema).item()  # type: ignore[no-any-return]

    @property
    def equal(self) -> list[pl.Expr]:
        """The conditions for rows of a sink's table that have its values."""
        return [self._has(name, value) for name, value in self.values.items()]

    def _has(self, name: str, value: Any) -> pl.Expr:
        if value is None:
            return pl.col(name).is_null()
        if is_nan(value):
            return pl.col(name).is_nan()  # NaN is a key like any other, and for Arrow it is not equal to itself
        return pl.col(name) == (utc(value) if name in self.windows else value)

    def equal_in(self, keys: pl.Series) -> list[str]:
        """Returns those of *keys*, as in `changes`, that have its values, or else those that begin with its text."""
        rows = _in_columns(keys, self.schema)
        equal = [pl.col(name).eq_missing(pl.lit(value, self.schema[name])) for name, value in self.values.items()]
        found = rows.filter(*equal) if equal else rows.clear()
        if not found.height and self.can_begin:
            found = rows.filter(self.begins)
        return self.texts(found)

    @property
    def begins(self) -> pl.Expr:
        """The condition for rows whose first column begins with its text."""
        first, kind = next(iter(self.schema.items()))
        if first in self.windows:
            return (
                pl.col(first).cast(pl.Datetime("ms")).dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").str.starts_with(self.text)
            )
        return key_text((first,), {first: kind}).str.starts_with(self.text)

    def texts(self, rows: pl.DataFrame) -> list[str]:
        """Returns the keys that *rows* have, as in `changes`, each once and in order."""
        columns = [
            (pl.col(name).cast(pl.Datetime("ms")) if name in self.windows else pl.col(name)).cast(kind)
            for name, kind in self.schema.items()
        ]
        return sorted({*_texts(rows.select(columns), self.schema).drop_nulls()})

    def of_key(self, key: str) -> TypedKey:
        """Returns the whole key whose text in `changes` is *key*."""
        row = _in_columns(pl.Series([key]), self.schema).row(0, named=True)
        return replace(self, text=key, values=row, can_begin=False)

    def only(self, keys: Collection[str], table: str, example: str | None) -> str:
        """Returns the only key that fits.

        Args:
            keys: all keys of the table that fit.
            table: name of the table, for errors.
            example: any key of the table, for errors; None if it has no rows.

        Raises:
            InvalidArgument: no key fits, or more than one does.
        """
        columns = ", ".join(self.schema)
        if not keys:
            fits = "is or begins with" if self.can_begin else "has"
            has = "it has no rows yet" if example is None else f"one of its keys ({columns}) is {example}"
            msg = f"{table} has no row whose key {fits} {self.text}; {has}"
            raise InvalidArgument(msg)
        if len(keys) > 1:
            listed = [*keys][:MOST_LISTED]
            more = [f"and {len(keys) - MOST_LISTED} more"] if len(keys) > MOST_LISTED else []
            msg = "\n".join([f"{self.text} fits {len(keys)} keys ({columns}) of {table}; name one:", *listed, *more])
            raise InvalidArgument(msg)
        return next(iter(keys))


def is_nan(value: object) -> bool:
    """Returns True for NaN, which Python and Arrow do not call equal to itself."""
    return isinstance(value, float) and isnan(value)


def typed_key(text: str, schema: Schema, windows: Collection[str]) -> TypedKey:
    """Reads *text* as a key of the columns *schema*, of which *windows* are bounds of windows.

    Raises:
        InvalidArgument: it is an object with other columns, or with a value that its column cannot have.
    """
    fields = _object(text)
    if fields and (len(schema) > 1 or fields.keys() <= schema.keys()):
        if unknown := sorted(fields.keys() - schema.keys()):
            msg = f"{', '.join(unknown)} is not in the key, which has the columns {', '.join(schema)}"
            raise InvalidArgument(msg)
        values = {
            name: _column_value(name, value, schema[name], is_window=name in windows) for name, value in fields.items()
        }
        return TypedKey(text, schema, windows, values, can_begin=False)
    first, kind = next(iter(schema.items()))
    values = _first_value(text, first, kind, is_window=first in windows)
    return TypedKey(text, schema, windows, values, can_begin=True)


def _object(text: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _column_value(name: str, value: Any, kind: pl.DataType, *, is_window: bool) -> Any:
    """Converts the value of a field of a JSON object to that of the column *name*, whose type is *kind*.

    The bound of a window may be ISO 8601.

    Raises:
        InvalidArgument: the column cannot have this value.
    """
    if is_window and isinstance(value, str):
        return instant_ms(value)
    wrong = f"{name} is {json.dumps(value)}, and its column has the type {kind}"
    if kind.is_integer() and (isinstance(value, bool) or not isinstance(value, int | None)):
        raise InvalidArgument(wrong)
    schema = {name: kind}
    try:
        row = pl.DataFrame({"_text": [json.dumps({name: value})]}).select(parsed("_text", schema))
        return row.to_series().struct.field(name).item()
    except pl.exceptions.PolarsError as error:
        raise InvalidArgument(wrong) from error


def _first_value(text: str, name: str, kind: pl.DataType, *, is_window: bool) -> dict[str, Any]:
    """Reads *text* as a value of the column *name*; returns it by the name, or nothing if the column cannot have it."""
    if kind == pl.Boolean() and text not in ("true", "false"):
        return {}
    try:
        if is_window and not text.isdecimal():
            return {name: instant_ms(text)}
        return {name: pl.DataFrame({"_text": [text]}).select(key_value("_text", kind)).item()}
    except (InvalidArgument, pl.exceptions.PolarsError):
        return {}


def _in_columns(keys: pl.Series, schema: Schema) -> pl.DataFrame:
    return pl.DataFrame({"_text": keys}).select(**key_columns("_text", schema))


def _texts(rows: pl.DataFrame, schema: Schema) -> pl.Series:
    return rows.select(key_text([*schema], schema)).to_series()
