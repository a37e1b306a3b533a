"""Which fields of JSON records do not have their declared types."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tidemark.spec.operators import Source

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
"""By declared type whether a JSON value can be read as it."""


def wrong_fields(source: Source, values: list[bytes | None]) -> list[str]:
    """The fields of *source* that do not have their types in *values*, JSON records; the most frequent first."""
    records = [record for value in values if (record := json_object(value)) is not None]
    wrong = Counter(
        field
        for record in records
        for name, field in source.field_of.items()
        if name != source.key and record.get(field) is not None and not _FITS[source.fields[name]](record[field])
    )
    return [name for name, _ in wrong.most_common()]


def json_object(value: bytes | None) -> dict[str, object] | None:
    """The JSON object that *value* is; None when it is something else."""
    try:
        record = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
