"""Checks that every value of a source's fields fits their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.collecting import outside
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.source import Source

_FITTING = {
    "string": {"string"},
    "boolean": {"boolean"},
    "int": {"tinyint", "smallint", "int"},
    "bigint": {"tinyint", "smallint", "int", "bigint"},
    "double": {"tinyint", "smallint", "int", "float", "double"},
    "timestamp": {"timestamp", "timestamp_ntz"},
}
"""Per declared type, the Spark types of which every value fits."""


def require_fitting(types: Mapping[str, str], source: Source) -> None:
    """Raises InvalidArgument unless fields of these *types* fit *source*.

    They fit if all fields that *source* declares are among them, in types of which every value fits.
    """
    # The column `key` is a record's own key, and no field.
    declared = {source.field_of[name]: word for name, word in source.fields.items() if name != source.key}
    require_there(types, source)
    if wrong := [f"{n} is {types[n]}, not {word}" for n, word in declared.items() if types[n] not in _FITTING[word]]:
        msg = f"operators.{source.name}.fields must have the types of the fields that it reads: {'; '.join(wrong)}"
        raise InvalidArgument(msg)


def require_there(fields: Iterable[str], source: Source) -> None:
    """Raises InvalidArgument unless *fields* are all that *source* declares."""
    there = [*fields]
    declared = [source.field_of[name] for name in source.fields if name != source.key]
    if missing := outside(declared, there):
        msg = f"operators.{source.name}.fields names {', '.join(missing)}; it reads the fields: {', '.join(there)}"
        raise InvalidArgument(msg)
