"""Reads the declared fields of records in JSON.

msgspec reads a record straight into its declared fields. Records that it refuses are read again by Python's own parser,
which distinguishes the reasons: invalid_utf8, malformed_json, wrong_type (a field does not fit its type), or
beyond_limit (objects and lists are nested too deep). That parser also accepts what some producers write and JSON does
not have: NaN and Infinity. If an object has a field twice, the last value counts.

A record is one object. Around it there may be blanks, tabs and line breaks, and nothing else: a second object, a comma,
a NUL byte or a byte order mark makes it malformed_json.

JSON may name half a character (a lone surrogate), which no table can keep: all of them would be the same question mark,
and two keys one. So a record that has one in a kept field is invalid_utf8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import polars as pl

from tidemark.collecting import omit, outside, pick
from tidemark.kernels.records.fields import (
    INVALID_UTF8,
    MALFORMED_JSON,
    WRONG_TYPE,
    Fields,
    RecordUnreadable,
    column_of,
    read_fields,
    texts_at,
    texts_of,
)
from tidemark.kernels.records.iso_times import instants_of
from tidemark.model.settings.record_limits import DEFAULT_LIMITS, RecordLimits

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
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes({*range(256)} - {*b'[]{}"'})
_any_of = msgspec.json.Decoder().decode
_json_of = msgspec.json.Encoder(order="deterministic").encode
_pythons = json.JSONDecoder()


def json_fields(
    values: pl.Series,
    words: Mapping[str, str],
    *,
    others: bool = False,
    limits: RecordLimits = DEFAULT_LIMITS,
) -> Fields:
    """Reads the fields of *values*, the bytes of a record each.

    Null for null.

    Args:
        values: the records.
        words: the declared types by field.
        others: keep the fields that are not declared, too.
        limits: what a record may hold.
    """
    parser = _Parser(words, keeps_others=others, limits=limits)
    parts = [parser.fields(values.slice(at, _SLICE)) for at in range(0, max(1, len(values)), _SLICE)]
    columns: dict[str, pl.Series] = {}
    for name in words:
        columns[name] = pl.concat([part.columns[name] for part in parts])
    undeclared = pl.concat([part.others for part in parts])
    reasons = pl.concat([part.reasons for part in parts])
    return Fields(columns, undeclared, reasons, pl.concat([part.details for part in parts]))


def json_object(value: bytes, max_depth: int) -> dict[str, Any]:
    """Reads the object that is the record *value*.

    Raises RecordUnreadable, or the error of Python's parser over malformed JSON.
    """
    try:
        parsed = _pythons.decode(value.decode())
    except UnicodeDecodeError as error:
        raise RecordUnreadable.by(error, INVALID_UTF8) from None
    except RecursionError:
        raise too_deep(max_depth) from None
    check_depth(parsed, max_depth)
    if not isinstance(parsed, dict):
        raise RecordUnreadable(WRONG_TYPE, "the record is no object")
    return parsed


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


def check_depth(value: Any, max_depth: int) -> None:
    """Raises RecordUnreadable if *value* has more than *max_depth* levels of objects and lists."""
    level = [value]
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, (dict, list))]
        if not level:
            return
    raise too_deep(max_depth)


def too_deep(max_depth: int) -> RecordUnreadable:
    """Returns the refusal of a record with more than *max_depth* levels."""
    return RecordUnreadable.beyond(key="max_depth", limit=max_depth, found="objects and lists are nested deeper")


def _inside(value: Any) -> Iterable[Any]:
    """Returns the values in *value* if it is an object or a list."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class _Parser:
    """Reads records that have fields of the types *words*."""

    def __init__(self, words: Mapping[str, str], *, keeps_others: bool, limits: RecordLimits) -> None:
        self._words, self._keeps_others, self._max_depth = words, keeps_others, limits.max_depth
        self._slots = {f"f{number}": name for number, name in enumerate(words)}
        fields = [(slot, _TYPES[words[name]][0], None) for slot, name in self._slots.items()]
        # Records have no cycles; without gc the collector does not track millions of them.
        self._record = msgspec.defstruct("Record", fields, rename=self._slots, gc=False)
        self._decode = msgspec.json.Decoder(self._record).decode
        self._nothing = self._record()

    def fields(self, values: pl.Series) -> Fields:
        """Reads the fields of *values*, all of which become objects at once."""
        written: list[bytes] = values.fill_null(b"{}").to_list()
        refused: dict[int, RecordUnreadable] = {}
        texts = texts_of(values)
        # msgspec does not check the text of fields that it skips.
        again = dict.fromkeys((values.is_not_null() & texts.is_null()).arg_true())
        for row in (_openings(texts) > self._max_depth).arg_true():
            if _seems_deeper(written[row], self._max_depth):
                again[row] = None
        records: list[Any] = []
        unread = iter(written)
        while len(records) < len(written):
            try:
                # What is read before an error stays in the list, so no loop of Python is run for each record.
                records.extend(map(self._decode, unread))
            except Exception:
                again[len(records)] = None
                records.append(self._nothing)
        others: dict[int, str | None] = {}
        for row in outside(range(len(written)), again) if self._keeps_others else ():
            try:
                others[row] = self._others(_any_of(written[row]))
            except Exception:
                again[row] = None
        for row in again:
            try:
                records[row], others[row] = self._read_again(written[row])
            except Exception as error:
                records[row], refused[row] = self._nothing, RecordUnreadable.by(error, MALFORMED_JSON)
        self._write_texts(records, refused)
        columns = {name: self._column(name, slot, records, refused) for slot, name in self._slots.items()}
        return read_fields(columns, texts_at(others, len(written)), refused)

    def _write_texts(self, records: list[Any], refused: dict[int, RecordUnreadable]) -> None:
        """Replaces the values of `string` fields that are no texts by their texts."""
        for slot in (slot for slot, name in self._slots.items() if self._words[name] == "string"):
            if {*map(type, map(attrgetter(slot), records))} <= {str, type(None)}:
                continue
            for row, record in enumerate(records):
                value = getattr(record, slot)
                if value is not None and not isinstance(value, str):
                    try:
                        setattr(record, slot, json_of(value))
                    except Exception as error:
                        records[row], refused[row] = self._nothing, RecordUnreadable.by(error, WRONG_TYPE)

    def _column(self, name: str, slot: str, records: list[Any], refused: dict[int, RecordUnreadable]) -> pl.Series:
        word = self._words[name]
        column = column_of([*map(attrgetter(slot), records)], _TYPES[word][1], refused)
        if word != "timestamp":
            return column
        instants = instants_of(column)
        for row in (column.is_not_null() & instants.is_null()).arg_true():
            refused[row] = RecordUnreadable(WRONG_TYPE, f"Expected an instant in ISO 8601 - at `$.{name}`")
        return instants

    def _read_again(self, value: bytes) -> tuple[Any, str | None]:
        """Reads a record and its other fields with Python's parser.

        Raises RecordUnreadable, or the error of a library.
        """
        parsed = json_object(value, self._max_depth)
        try:
            record = msgspec.convert(self._with_numbers(pick(parsed, self._words)), self._record)
        except msgspec.ValidationError as error:
            raise RecordUnreadable.by(error, WRONG_TYPE) from None
        try:
            others = self._others(parsed) if self._keeps_others else None
            _json_of(record)
        except UnicodeEncodeError as error:
            raise RecordUnreadable.by(error, INVALID_UTF8) from None
        return record, others

    def _with_numbers(self, declared: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replaces texts such as "NaN" by numbers in the doubles of *declared*."""
        texts = [name for name, value in declared.items() if self._words[name] == "double" and value in _NOT_FINITE]
        return {**declared, **{name: float(declared[name]) for name in texts}}

    def _others(self, record: dict[str, Any]) -> str | None:
        others = omit(record, self._words)
        return json_of(others) if others else None


def _openings(texts: pl.Series) -> pl.Series:
    """Returns how many brackets each text has that may begin an object or a list."""
    return (texts.str.count_matches("[", literal=True) + texts.str.count_matches("{", literal=True)).fill_null(0)


def _seems_deeper(value: bytes, levels: int) -> bool:
    """Returns True if objects and lists of *value* are nested deeper than *levels*, or some are not closed.

    It takes a few scans of the bytes, where parsing them makes objects.
    """
    unescaped = value.replace(rb"\\", b"").replace(rb"\"", b"")
    # Every second piece between quotes is the inside of a text.
    brackets = b"".join(unescaped.translate(_ALIKE, _NO_BRACKETS).split(b'"')[::2])
    for _ in range(levels):
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            break
        brackets = outer
    return bool(brackets)
