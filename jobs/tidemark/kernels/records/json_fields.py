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
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import polars as pl

from tidemark.kernels.records.fields import (
    INVALID_UTF8,
    MALFORMED_JSON,
    WRONG_TYPE,
    RecordFields,
    RecordUnreadable,
    also_refused,
    column_of,
    read_fields,
    texts_at,
    texts_of,
)
from tidemark.kernels.records.iso_times import time_texts
from tidemark.kernels.records.numbers import number_column
from tidemark.model.settings.declared_fields import digits_of, steps, whole_fields
from tidemark.model.settings.record_limits import DEFAULT_LIMITS, RecordLimits
from tidemark.selection import omit, outside, within

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
"""By declared type, the type of values that fit and the type of the column. Every value fits a `string`."""
_TIMES = ("bigint", "double")
"""Types of an event time that is read from its text."""
_NO_NUMBER = msgspec.Raw(b"null")
Tree = dict[str, "str | Tree"]
"""Declared fields by name: the path of each, or the fields inside an object."""
NOT_FINITE = ("NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF")
"""Texts that are a double, too."""
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes({*range(256)} - {*b'[]{}"'})
_any_of = msgspec.json.Decoder().decode
_json_of = msgspec.json.Encoder(order="deterministic").encode
_pythons = json.JSONDecoder()
_with_digits = json.JSONDecoder(parse_float=str, parse_constant=str)
"""Reads numbers with a fraction or an exponent as their texts."""


def json_fields(
    values: pl.Series,
    declared_types: Mapping[str, str],
    *,
    time: str | None = None,
    others: bool = False,
    limits: RecordLimits = DEFAULT_LIMITS,
) -> RecordFields:
    """Reads the declared fields of records.

    Args:
        values: the bytes of each record; a null record has null fields.
        declared_types: the declared types by path.
        time: the path of the event time; as a number it may be a text, or have an exponent.
        others: keep the fields that are not declared, too. An object of which only fields inside are declared is kept.
        limits: what a record may hold.
    """
    declared = whole_fields(declared_types)
    parts: list[RecordFields] = []
    for layer in _layers(declared_types):
        keeps_others = others and not parts
        parser = _Parser(layer, declared, time=time, keeps_others=keeps_others, limits=limits)
        parts.append(
            _together([parser.fields(values.slice(at, _SLICE)) for at in range(0, max(1, len(values)), _SLICE)])
        )
    fields = parts[0]
    for part in parts[1:]:
        refused = {
            row: RecordUnreadable(part.reasons[row], part.details[row]) for row in part.reasons.is_not_null().arg_true()
        }
        fields = also_refused(replace(fields, columns={**fields.columns, **part.columns}), refused)
    return fields


def _layers(declared_types: Mapping[str, str]) -> list[dict[str, str]]:
    """Divides *declared_types* into layers, so that in none of them a field is inside another."""
    layers: list[dict[str, str]] = [{}]
    for path, word in declared_types.items():
        names = steps(path)
        for layer in layers:
            if not any(names[: len(other)] == other or other[: len(names)] == names for other in map(steps, layer)):
                layer[path] = word
                break
        else:
            layers.append({path: word})
    return layers


def _together(parts: Sequence[RecordFields]) -> RecordFields:
    """Returns the fields of records that follow one another."""
    columns = {path: pl.concat([part.columns[path] for part in parts]) for path in parts[0].columns}
    undeclared = pl.concat([part.others for part in parts])
    reasons = pl.concat([part.reasons for part in parts])
    return RecordFields(columns, undeclared, reasons, pl.concat([part.details for part in parts]))


def json_object(value: bytes, max_depth: int) -> dict[str, Any]:
    """Reads the JSON object of a record; raises RecordUnreadable, or the error of Python's parser for
    malformed JSON.
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
    """Returns *value* as text: a text as it is, any other value as JSON, and None for None.

    A value for which JSON has a string, such as a date, has no quotes.
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
    """Reads records that have fields of the types *declared_types*, none of them inside another.

    Fields with the names *declared* are not among the others.
    """

    def __init__(
        self,
        declared_types: Mapping[str, str],
        declared: Collection[str],
        *,
        time: str | None,
        keeps_others: bool,
        limits: RecordLimits,
    ) -> None:
        self._declared_types, self._declared, self._max_depth = declared_types, declared, limits.max_depth
        self._keeps_others = keeps_others
        # Of these numbers each digit counts, so they are read from their texts.
        self._numbers = {p for p, word in declared_types.items() if digits_of(word) or (p == time and word in _TIMES)}
        self._tree: Tree = {}
        for path in declared_types:
            *outer, name = steps(path)
            inside = self._tree
            for step in outer:
                inside = inside.setdefault(step, {})  # type: ignore[assignment]
            inside[name] = path
        self._slots: dict[str, tuple[str, ...]] = {}
        self._record = self._class_of(self._tree, msgspec.Raw, _NO_NUMBER)
        self._decode = msgspec.json.Decoder(self._record).decode
        # Python's parser has numbers as its own objects.
        self._again = self._class_of(self._tree, Any, None)
        self._nothing = self._record()

    def _class_of(self, tree: Tree, number: Any, no_number: Any, outer: tuple[str, ...] = ()) -> Any:
        """Returns a class of objects with the fields of *tree*, and notes the slots (attributes) of each path.

        Args:
            tree: the fields.
            number: the type of fields whose digits all count.
            no_number: their value if they are absent.
            outer: the slots of the objects around these.
        """
        fields: list[tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for number_of_field, (name, inside) in enumerate(tree.items()):
            slot = f"f{number_of_field}"
            names[slot] = name
            if isinstance(inside, dict):
                fields.append((slot, self._class_of(inside, number, no_number, (*outer, slot)) | None, None))
                continue
            self._slots[inside] = (*outer, slot)
            is_number = inside in self._numbers
            fields.append(
                (slot, number, no_number) if is_number else (slot, _TYPES[self._declared_types[inside]][0], None)
            )
        # Records have no cycles; without gc the collector does not track millions of them.
        return msgspec.defstruct("Record", fields, rename=names, gc=False)

    def fields(self, values: pl.Series) -> RecordFields:
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
        columns = {path: self._column(path, records, refused) for path in self._declared_types}
        return read_fields(columns, texts_at(others, len(written)), refused)

    def _column(self, path: str, records: list[Any], refused: dict[int, RecordUnreadable]) -> pl.Series:
        word = self._declared_types[path]
        values = _values_at(self._slots[path], records)
        if path in self._numbers:
            return number_column(path, [*map(_digits, values)], word, refused)
        if word == "string":
            values = _texts(values, refused)
        return time_texts(path, values, refused) if word == "timestamp" else column_of(values, _TYPES[word][1], refused)

    def _read_again(self, value: bytes) -> tuple[Any, str | None]:
        """Reads a record and its other fields with Python's parser; raises RecordUnreadable, or the
        error of a library.
        """
        parsed = json_object(value, self._max_depth)
        # What this parser has read once raises no error the second time.
        with_digits = _with_digits.decode(value.decode()) if self._numbers else parsed
        try:
            record = msgspec.convert(self._declared_in(parsed, with_digits, self._tree), self._again)
        except msgspec.ValidationError as error:
            raise RecordUnreadable.by(error, WRONG_TYPE) from None
        try:
            others = self._others(parsed) if self._keeps_others else None
            _json_of(record)
        except UnicodeEncodeError as error:
            raise RecordUnreadable.by(error, INVALID_UTF8) from None
        return record, others

    def _declared_in(self, value: Any, with_digits: Any, tree: Tree) -> Any:
        """Returns the fields of the object *value* that *tree* names.

        Doubles such as "NaN" are numbers, and exact numbers are those of the same object *with_digits*.
        """
        if not isinstance(value, dict):
            return value
        declared: dict[str, Any] = {}
        for name in within(tree, value):
            path = tree[name]
            if isinstance(path, dict):
                declared[name] = self._declared_in(value[name], with_digits[name], path)
            elif path in self._numbers:
                declared[name] = with_digits[name]
            else:
                is_double = self._declared_types[path] == "double" and value[name] in NOT_FINITE
                declared[name] = float(value[name]) if is_double else value[name]
        return declared

    def _others(self, record: dict[str, Any]) -> str | None:
        others = omit(record, self._declared)
        return json_of(others) if others else None


def _values_at(slots: tuple[str, ...], records: list[Any]) -> list[Any]:
    """Returns the value in the *slots* of each of *records*; None where an object on the way is absent."""
    outermost, *inner = slots
    values = [*map(attrgetter(outermost), records)]
    for slot in inner:
        inside = attrgetter(slot)
        values = [None if value is None else inside(value) for value in values]
    return values


def _texts(values: list[Any], refused: dict[int, RecordUnreadable]) -> list[Any]:
    """Returns *values*, with the text in JSON of those that are no texts."""
    if {*map(type, values)} <= {str, type(None)}:
        return values
    texts: list[Any] = []
    for row, value in enumerate(values):
        try:
            texts.append(value if value is None or isinstance(value, str) else json_of(value))
        except Exception as error:
            texts.append(None)
            refused[row] = RecordUnreadable.by(error, WRONG_TYPE)
    return texts


def _digits(value: Any) -> str | None:
    """Returns the text of a number, which may be a text in JSON itself."""
    if not isinstance(value, msgspec.Raw):
        return value if value is None or isinstance(value, str) else json_of(value)
    written = bytes(value)
    if written == b"null":
        return None
    if written.startswith(b'"'):
        with suppress(msgspec.DecodeError):
            return str(_any_of(written))
    return written.decode(errors="replace")


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
