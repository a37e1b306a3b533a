"""Reads the declared fields of records in JSON.

msgspec reads a record straight into its declared fields. Records that it refuses are read again by Python's own parser,
which distinguishes the reasons: invalid_utf8, malformed_json, or wrong_type (a field does not fit its type). That
parser also accepts what some producers write and JSON does not have: NaN, Infinity, and text behind the object, which
is ignored. If an object has a field twice, the last value counts.

JSON may name half a character (a lone surrogate), which no table can keep: all of them would be the same question mark,
and two keys one. So a record that has one in a kept field is invalid_utf8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import polars as pl

from tidemark.collecting import omit, outside
from tidemark.kernels.records.fields import (
    INVALID_UTF8,
    MALFORMED_JSON,
    WRONG_TYPE,
    Fields,
    RecordUnreadable,
    texts_at,
    texts_of,
)
from tidemark.kernels.records.iso_times import instants_of

_SLICE = 20_000
"""Most records that are Python objects at once.

With more of them, their memory is returned to the system and asked for anew, which takes a quarter of the time.
"""
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
"""By declared type, values that fit and the column's type.

Any value has a text.
"""
_NOT_FINITE = ("NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF")
"""Texts that are a double, too."""
_SPACE = " \t\r\n"
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec over a record that it does not read."""
_any_of = msgspec.json.Decoder().decode
_json_of = msgspec.json.Encoder(order="deterministic").encode
_pythons = json.JSONDecoder()


def json_fields(values: pl.Series, words: Mapping[str, str], *, others: bool = False) -> Fields:
    """Reads the fields of *values*, the bytes of a record each.

    Null for null.

    Args:
        values: the records.
        words: the declared types by field.
        others: keep the fields that are not declared, too.
    """
    parser = _Parser(words, keeps_others=others)
    parts = [parser.fields(values.slice(at, _SLICE)) for at in range(0, max(1, len(values)), _SLICE)]
    columns: dict[str, pl.Series] = {}
    for name in words:
        columns[name] = pl.concat([part.columns[name] for part in parts])
    undeclared = pl.concat([part.others for part in parts])
    reasons = pl.concat([part.reasons for part in parts])
    details = pl.concat([texts_at({}, len(part.reasons)) if part.details is None else part.details for part in parts])
    return Fields(columns, undeclared, reasons, details)


def json_of(value: Any) -> str:
    """Returns *value* as JSON, with the fields of objects sorted by name."""
    return _json_of(value).decode()


def text_of(value: Any) -> str | None:
    """Returns *value* as its text in JSON; None for None.

    Texts are as they are: those for which JSON has a string, such as a date, are without quotes.
    """
    if value is None or isinstance(value, str):
        return value
    written = json_of(value)
    return str(_any_of(written)) if written.startswith('"') else written


class _Parser:
    """Reads records that have fields of the types *words*."""

    def __init__(self, words: Mapping[str, str], *, keeps_others: bool) -> None:
        self._words, self._keeps_others = words, keeps_others
        self._slots = {f"f{number}": name for number, name in enumerate(words)}
        fields = [(slot, _TYPES[words[name]][0], None) for slot, name in self._slots.items()]
        # Records have no cycles; without gc the collector does not track millions of them.
        self._record = msgspec.defstruct("Record", fields, rename=self._slots, gc=False)
        self._decode = msgspec.json.Decoder(self._record).decode
        self._nothing = self._record()

    def fields(self, values: pl.Series) -> Fields:
        """Reads the fields of *values*, all of which become objects at once."""
        written: list[bytes] = values.fill_null(b"{}").to_list()
        # msgspec does not check the text of fields that it skips.
        refused = dict.fromkeys((values.is_not_null() & texts_of(values).is_null()).arg_true())
        records: list[Any] = []
        unread = iter(written)
        while len(records) < len(written):
            try:
                # What is read before an error stays in the list, so no loop of Python is run for each record.
                records.extend(map(self._decode, unread))
            except _REFUSALS:
                refused[len(records)] = None
                records.append(self._nothing)
        others: dict[int, str | None] = {}
        for row in outside(range(len(written)), refused) if self._keeps_others else ():
            try:
                others[row] = self._others(_any_of(written[row]))
            except _REFUSALS:
                refused[row] = None
        reasons: dict[int, str | None] = {}
        details: dict[int, str | None] = {}
        for row in refused:
            try:
                records[row], others[row] = self._read_again(written[row])
            except RecordUnreadable as error:
                records[row], others[row], reasons[row] = self._nothing, None, error.reason
                details[row] = error.detail
        read = (texts_at(texts, len(written)) for texts in (others, reasons, details))
        return self._as_columns(records, *read)

    def _as_columns(self, records: list[Any], others: pl.Series, reasons: pl.Series, details: pl.Series) -> Fields:
        columns: dict[str, pl.Series] = {}
        for slot, name in self._slots.items():
            column = _column([*map(attrgetter(slot), records)], self._words[name])
            if self._words[name] == "timestamp":
                texts, column = column, instants_of(column)
                is_wrong = texts.is_not_null() & column.is_null()
                reasons = reasons.set(is_wrong, WRONG_TYPE)
                details = details.set(is_wrong, f"Expected an instant in ISO 8601 - at `$.{name}`")
            columns[name] = column
        return Fields(columns, others, reasons, details)

    def _read_again(self, value: bytes) -> tuple[Any, str | None]:
        """Reads a record and its other fields with Python's parser.

        Raises RecordUnreadable.
        """
        try:
            parsed, _ = _pythons.raw_decode(value.decode().lstrip(_SPACE))
        except UnicodeDecodeError:
            raise RecordUnreadable(INVALID_UTF8) from None
        except (ValueError, RecursionError):
            raise RecordUnreadable(MALFORMED_JSON) from None
        try:
            record = msgspec.convert(self._with_numbers(parsed), self._record)
        except msgspec.ValidationError as error:
            raise RecordUnreadable(WRONG_TYPE, str(error)) from None  # the text names the field and both types
        except RecursionError:
            raise RecordUnreadable(WRONG_TYPE) from None
        try:
            others = self._others(parsed) if self._keeps_others else None
            _json_of(record)
        except UnicodeEncodeError:
            raise RecordUnreadable(INVALID_UTF8) from None
        return record, others

    def _with_numbers(self, parsed: Any) -> Any:
        """Replaces texts such as "NaN" by numbers in declared doubles of *parsed*."""
        if not isinstance(parsed, dict):
            return parsed
        texts = [name for name, word in self._words.items() if word == "double" and parsed.get(name) in _NOT_FINITE]
        return {**parsed, **{name: float(parsed[name]) for name in texts}}

    def _others(self, record: dict[str, Any]) -> str | None:
        others = omit(record, self._words)
        return json_of(others) if others else None


def _column(values: list[Any], word: str) -> pl.Series:
    _, kind = _TYPES[word]
    try:
        return pl.Series(values, dtype=kind, strict=True)
    except TypeError:
        return pl.Series([v if v is None or isinstance(v, str) else json_of(v) for v in values], dtype=kind)
