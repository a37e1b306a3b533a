"""Finds fields of JSON records that do not have their declared types."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tidemark.model.kinds.source import Source

_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity", "+INF", "-INF", "INF"})


def _is_integer(value: object, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value in _NOT_FINITE
    return isinstance(value, int | float) and not isinstance(value, bool)


_FITS: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "string": lambda value: True,  # any other value is read as its JSON text
        "boolean": lambda value: isinstance(value, bool),
        "int": lambda value: _is_integer(value, 32),
        "bigint": lambda value: _is_integer(value, 64),
        "double": _is_number,
        "timestamp": lambda value: isinstance(value, str),
    }
)
"""By declared type, a check that a JSON value fits it."""


def wrong_fields(source: Source, values: list[bytes | None]) -> list[str]:
    """Returns *source*'s wrongly typed fields in JSON *values*, most frequent first."""
    wrong: Counter[str] = Counter()
    for record in map(json_object, values):
        for name, field in source.field_of.items():
            value = None if record is None or name == source.key else record.get(field)
            if value is not None and not _FITS[source.fields[name]](value):
                wrong[field] += 1
    return [field for field, _ in wrong.most_common()]


def json_object(value: bytes | None) -> dict[str, object] | None:
    """Returns the JSON object that *value* is, or None."""
    try:
        record = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
