"""The declared fields of records in JSON, or why a record cannot be read.

msgspec reads a record straight into its declared fields. What it refuses is read again by Python's own parser, which
tells the reasons apart: invalid_utf8, malformed_json, or wrong_type (it can be read, and a field does not fit its
type). That parser also takes what some producers write and JSON does not have: NaN, Infinity, and something behind the
object, which is not looked at. Of a field that an object has twice the last value counts.

JSON may name half a character (a lone surrogate), which no table can keep: all of them would be the same question mark,
and two keys one. So a record that has one where it is kept is invalid_utf8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import polars as pl

from tidemark.kernels.fields import INVALID_UTF8, MALFORMED_JSON, WRONG_TYPE, Fields, Unreadable, texts_of
from tidemark.kernels.iso_times import instants_of

_SLICE = 100_000
"""So many records at most are Python objects at once."""
_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_BIGINT = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_TYPES: Mapping[str, tuple[Any, pl.DataType]] = {
    "string": (Any, pl.String()),
    "boolean": (bool | None, pl.Boolean()),
    "int": (_INT | None, pl.Int32()),
    "bigint": (_BIGINT | None, pl.Int64()),
    "double": (float | None, pl.Float64()),
    "timestamp": (str | None, pl.String()),
}
"""Per declared type: the values that fit, and the column that is made of them. Any value has a text."""
_NOT_FINITE = ("NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF")
"""Texts that are a double, too."""
_SPACE = " \t\r\n"
_any_of = msgspec.json.Decoder().decode
_json_of = msgspec.json.Encoder(order="deterministic").encode
_pythons = json.JSONDecoder()


def json_fields(values: pl.Series, words: Mapping[str, str], *, others: bool = False) -> Fields:
    """The fields of *values*, the bytes of a record each; null for null. *words* are the declared types by field.

    With *others* the fields that are not declared are kept, too.
    """
    parser = _Parser(words, keeps_others=others)
    parts = [parser.fields(values.slice(at, _SLICE)) for at in range(0, max(1, len(values)), _SLICE)]
    return Fields(
        {name: pl.concat([part.columns[name] for part in parts]) for name in words},
        pl.concat([part.others for part in parts]),
        pl.concat([part.reasons for part in parts]),
    )


def json_of(value: Any) -> str:
    """*value* as JSON, the fields of objects in the order of their names."""
    return _json_of(value).decode()


class _Parser:
    """Reads records that have fields of the types *words*."""

    def __init__(self, words: Mapping[str, str], *, keeps_others: bool) -> None:
        self._words, self._keeps_others = words, keeps_others
        self._slots = {f"f{number}": name for number, name in enumerate(words)}
        fields = [(slot, _TYPES[words[name]][0], None) for slot, name in self._slots.items()]
        self._record = msgspec.defstruct("Record", fields, rename=self._slots, gc=False)
        self._decode = msgspec.json.Decoder(self._record).decode
        self._nothing = self._record()

    def fields(self, values: pl.Series) -> Fields:
        """The fields of *values*, all of which become objects at once."""
        written: list[bytes] = values.fill_null(b"{}").to_list()
        # msgspec does not look at the text of fields that it skips.
        refused = dict.fromkeys((values.is_not_null() & texts_of(values).is_null()).arg_true())
        records: list[Any] = []
        others: list[str | None] = []
        reasons: list[str | None] = [None] * len(written)
        for row, value in enumerate(written):
            try:
                record = self._decode(value)
                other = self._others(_any_of(value)) if self._keeps_others else None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                record, other = self._nothing, None
                refused[row] = None
            records.append(record)
            others.append(other)
        for row in refused:
            try:
                records[row], others[row] = self._read_again(written[row])
            except Unreadable as error:
                records[row], others[row], reasons[row] = self._nothing, None, str(error)
        return self._as_columns(records, pl.Series(others, dtype=pl.String), pl.Series(reasons, dtype=pl.String))

    def _as_columns(self, records: list[Any], others: pl.Series, reasons: pl.Series) -> Fields:
        columns: dict[str, pl.Series] = {}
        for slot, name in self._slots.items():
            column = _column([getattr(record, slot) for record in records], self._words[name])
            if self._words[name] == "timestamp":
                texts, column = column, instants_of(column)
                reasons = reasons.set(texts.is_not_null() & column.is_null(), WRONG_TYPE)
            columns[name] = column
        return Fields(columns, others, reasons)

    def _read_again(self, value: bytes) -> tuple[Any, str | None]:
        """The record and its other fields; raises Unreadable."""
        try:
            found, _ = _pythons.raw_decode(value.decode().lstrip(_SPACE))
        except UnicodeDecodeError:
            raise Unreadable(INVALID_UTF8) from None
        except (ValueError, RecursionError):
            raise Unreadable(MALFORMED_JSON) from None
        try:
            record = msgspec.convert(self._with_numbers(found), self._record)
        except (msgspec.ValidationError, RecursionError):
            raise Unreadable(WRONG_TYPE) from None
        try:
            others = self._others(found) if self._keeps_others else None
            _json_of(record)
        except UnicodeEncodeError:
            raise Unreadable(INVALID_UTF8) from None
        return record, others

    def _with_numbers(self, found: Any) -> Any:
        """*found*, where texts of declared doubles are numbers that JSON does not have."""
        if not isinstance(found, dict):
            return found
        texts = [name for name, word in self._words.items() if word == "double" and found.get(name) in _NOT_FINITE]
        return {**found, **{name: float(found[name]) for name in texts}}

    def _others(self, record: dict[str, Any]) -> str | None:
        others = {name: value for name, value in record.items() if name not in self._words}
        return json_of(others) if others else None


def _column(values: list[Any], word: str) -> pl.Series:
    _, kind = _TYPES[word]
    try:
        return pl.Series(values, dtype=kind, strict=True)
    except TypeError:
        return pl.Series([v if v is None or isinstance(v, str) else json_of(v) for v in values], dtype=kind)
