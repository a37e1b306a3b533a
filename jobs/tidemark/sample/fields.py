"""Derives fields and their types from a sample's JSON objects."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count
from typing import Any

from tidemark.model.settings.declared_fields import path_of
from tidemark.model.settings.value_types import IDENTIFIER
from tidemark.sample.parsed import is_read, source_of
from tidemark.sample.topic_sample import SampledRecord
from tidemark.selection import within
from tidemark.stream.write.sink_columns import TIDEMARKS_OWN

MOST_FIELDS = 100
"""Most fields that become columns; all others are kept as JSON in one column."""
RARE = 50
WRITABLE = re.compile(r"[^\s,`\"\\][^,`\"\\]{0,199}(?<!\s)")
"""Field names that `fields` of a topology can contain, if all of their characters are printable."""

FieldsByColumn = Mapping[str, Any]
"""The fields of a record's object, by column."""


def names_to_declare(objects: Sequence[Mapping[str, Any]], key: str | None) -> list[str]:
    """Returns the names of fields of *objects* that become columns, in the order of occurrence.

    They are the most frequent ones, and *key*. Left out are names that `fields` of a topology cannot contain, and those
    that less than one in RARE of *objects* has.
    """
    # Most rare names are mistakes of a producer.
    having = Counter(chain.from_iterable(objects))
    usual = [name for name, n in having.items() if n * RARE >= len(objects) and _is_writable(name)]
    chosen = {*sorted(usual, key=lambda name: -having[name])[:MOST_FIELDS]}
    if key is not None and _is_writable(key):
        chosen.add(key)
    return within(having, chosen)


def _is_writable(name: str) -> bool:
    return name.isprintable() and WRITABLE.fullmatch(name) is not None


def columns_of(names: Sequence[str], key: str | None = None) -> dict[str, str]:
    """Returns the column for each of the fields *names*.

    It is the field's own name, or one derived from it. Of fields that differ in case only, one has a column: *key*, or
    the first.

    >>> columns_of(["eventTime", "event_time", "ID", "id", "2nd"])
    {'event_time': 'event_time', 'id': 'id', 'eventTime': 'event_time_2', '2nd': 'f_2nd'}
    """
    lower_names: set[str] = set()
    columns: dict[str, str] = {}
    # Names that can be columns come first and stay as they are; others get names that are left.
    for name in sorted(names, key=lambda name: (name != key, not IDENTIFIER.fullmatch(name))):
        if name.lower() not in lower_names:
            lower_names.add(name.lower())
            columns[name] = free_name(_column(name), columns.values())
    return columns


def free_name(column: str, used: Collection[str]) -> str:
    """Returns *column*, with a number behind it if it is *used*."""
    free = column
    numbers = count(2)
    while free in used:
        free = f"{column}_{next(numbers)}"
    return free


def _column(field: str) -> str:
    """Returns a column name for *field*."""
    # A Delta sink adds columns of its own, whose names are taken.
    if IDENTIFIER.fullmatch(field):
        return f"{field}_field" if field in TIDEMARKS_OWN else field
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field).lower()
    column = re.sub(r"[^a-z0-9]+", "_", words).strip("_")[:50]
    return column if column[:1].isalpha() else f"f_{column}"


def by_column(record: Mapping[str, Any], columns: Mapping[str, str]) -> FieldsByColumn:
    """Returns the fields of *record* that have *columns*."""
    return {columns[name]: value for name, value in record.items() if name in columns}


def declarations(types: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, str]:
    """Returns what `fields` declares for each column of *types*.

    A column with another name than its field names the field.
    """
    field_of = {column: name for name, column in columns.items()}
    declared: dict[str, str] = {}
    for column, word in types.items():
        name = field_of.get(column, column)
        declared[column] = f"{column} {word}" if name == column else f"{column} {word} from {path_of((name,))}"
    return declared


def field_types(
    objects: Sequence[FieldsByColumn],
    records: Sequence[SampledRecord],
    columns: Mapping[str, str],
    known: Mapping[str, str],
) -> dict[str, tuple[str, str]]:
    """Returns by column its type, and the evidence for it.

    A stream reads each value of *objects* as that type. *records* are those of *objects*, and *known* are types that
    are decided already.
    """
    types: dict[str, str] = {}
    remarks: dict[str, list[str]] = {}
    for column in columns.values():
        values = [each[column] for each in objects if each.get(column) is not None]
        remarks[column] = _remarks(values, len(objects))
        if column not in known:
            types[column], differing = _type(values)
            remarks[column] += differing
    fitting = {**_fitting(types, records, columns), **known}
    for column, word in types.items():
        if fitting[column] != word:
            remarks[column].append(f"not each value is a {word} for a stream, so text")
    return {column: (fitting[column], ", ".join(remarks[column])) for column in columns.values()}


def _fitting(
    types: Mapping[str, str], records: Sequence[SampledRecord], columns: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns *types*, with text instead of those that do not fit each of *records*."""
    if not types or all(is_read(source_of(declarations(types, columns).values()), records)):
        return types
    if len(types) == 1:
        return dict.fromkeys(types, "string")
    middle = len(types) // 2
    halves = [dict([*types.items()][:middle]), dict([*types.items()][middle:])]
    return {**_fitting(halves[0], records, columns), **_fitting(halves[1], records, columns)}


def _remarks(values: Sequence[Any], of: int) -> list[str]:
    """Returns what the *values* of a field show, which a number *of* objects has."""
    if not values:
        return ["always null"]
    remarks = [f"for example {json.dumps(values[0])[:40]}"]
    part = next(iter(values[0]), "") if isinstance(values[0], dict) else ""
    remarks += [f"an object, whose {part} is column ->> '$.{part}' in SQL"] if IDENTIFIER.fullmatch(part) else []
    remarks += [f"missing in {of - len(values):,} of {of:,}"] if len(values) < of else []
    return remarks


def _type(values: Sequence[Any]) -> tuple[str, list[str]]:
    """Returns the type of *values*, and why it is text if they differ."""
    kinds = Counter(map(_kind, values))
    # Some producers write a double without a fraction as a whole number.
    if kinds["double"]:
        kinds["double"] += kinds.pop("bigint", 0)
    if len(+kinds) < 2:
        return next(iter(+kinds), "string"), []
    ((kind, n),) = kinds.most_common(1)
    return "string", [f"of several types, {n:,} of {len(values):,} a {kind}, so text"]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "double"
    return "double" if isinstance(value, float) else "string"
