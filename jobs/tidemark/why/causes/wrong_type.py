"""Finds declared fields that records do not have, or have with another type."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import polars as pl

from tidemark.kernels.records.fields import RecordUnreadable, value_at
from tidemark.kernels.records.iso_times import instants_of
from tidemark.kernels.records.json_fields import NOT_FINITE
from tidemark.kernels.records.numbers import number_of
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import digits_of, steps
from tidemark.semantics.schema_watch import FieldChange, step
from tidemark.why.causes.registry import rule
from tidemark.why.evidence.commands import quarantine_query
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene

FIELD_VANISHED = Cause(
    "field_vanished",
    Trait.FAULT,
    "a declared field was usual in the records of a topic, and sampled ones do not have it any more "
    "([Schema watch](schema-watch.md))",
)
FIELD_RETYPED = Cause(
    "field_retyped",
    Trait.FAULT,
    "a declared field has another type than before, and recent records are quarantined",
)


def _is_integer(value: object, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value in NOT_FINITE
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_instant(value: object) -> bool:
    return isinstance(value, str) and not instants_of(pl.Series([value])).has_nulls()


_FITS: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "string": lambda value: True,  # any other value is read as its JSON text
        "boolean": lambda value: isinstance(value, bool),
        "int": lambda value: _is_integer(value, 32),
        "bigint": lambda value: _is_integer(value, 64),
        "double": _is_number,
        "timestamp": _is_instant,
    }
)
"""For each declared type, a function that says whether a JSON value fits it."""


def wrong_fields(source: Source, values: list[bytes | None]) -> list[str]:
    """Returns the fields of *source* that have a wrong type in the JSON records *values*, the most frequent first."""
    wrong: Counter[str] = Counter()
    for record in map(json_object, values):
        for name, path in source.field_of.items():
            if record is None or name == source.key:
                continue
            try:
                value = value_at(record, steps(path))
            except RecordUnreadable:
                wrong[path] += 1
                continue
            if value is not None and not _fits(value, source.fields[name], is_time=name == source.timestamp):
                wrong[path] += 1
    return [field for field, _ in wrong.most_common()]


def _fits(value: object, word: str, *, is_time: bool) -> bool:
    if digits_of(word) or (is_time and word != "timestamp"):
        is_number = isinstance(value, str | int | float) and not isinstance(value, bool)
        return is_number and number_of(str(value), word) is not None
    return _FITS[word](value)


def json_object(value: bytes | None) -> dict[str, object] | None:
    """Returns the JSON object in *value*; None if it is anything else."""
    try:
        record = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


@rule
def changed_fields(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields the declared fields before the operator *name* whose change in a topic harms results."""
    for source in scene.sources(name).values():
        if not source.is_watched:
            continue
        declared = {watched_path(path): (column, word) for column, path, word in _declared(source)}
        for change in scene.of(source.name).field_changes(source.name).iter_rows(named=True):
            if change["field"] in declared:
                yield from _harm(scene, name, source, change, *declared[change["field"]])


def watched_path(path: str) -> str:
    """Returns the *path* of a field, as a topology file has it, in the form of the table `schema_changes`."""
    return ".".join(map(step, steps(path)))


def _declared(source: Source) -> Iterator[tuple[str, str, str]]:
    """Yields each column that comes from the value of a record, with the path of its field and its type."""
    for column, field in source.field_of.items():
        if column != source.key:
            yield column, field, source.fields[column]


def _harm(
    scene: Scene, name: str, source: Source, change: Mapping[str, Any], column: str, word: str
) -> Iterator[WhyFinding]:
    """Yields a finding if the *change* of a field of *source* harms the *column* that was declared for it.

    Args:
        scene: the facts of the topology.
        name: the operator that is asked about.
        source: the source that declares the column.
        change: a row of `schema_changes`.
        column: the column that has the field's values.
        word: the declared type of the column.
    """
    field = f"field {change['field']} of topic {source.topic}"
    input = None if name == source.name else source.name
    match change["change"]:
        case FieldChange.VANISHED:
            result = f"rows have null in {column}"
            if column == source.timestamp:
                result = "records without it are quarantined as missing_timestamp"
            yield scene.finding(
                FIELD_VANISHED,
                name,
                f"{field} vanished: no sampled record has it; {result}",
                f"ask its producer to send {change['field']}, or declare the field that replaces it",
                input=input,
                since_ms=change["last_seen_at"],
            )
        case FieldChange.RETYPED if scene.of(source.name).outcomes.lately(source.name)["quarantined"].sum():
            yield scene.finding(
                FIELD_RETYPED,
                name,
                f"{field} is {change['type']} and was {change['was_type']}; {column} is declared as {word}, and "
                "records are quarantined",
                f"ask its producer for the former type, or declare another one: {quarantine_query(scene, source.name)}",
                input=input,
                since_ms=change["found_at"],
            )
