"""Checks that every value of a source's fields fits their types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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
    declared = source.types_of_values
    require_there(types, source)
    wrong = [f"{n} is {types[n]}, not {word}" for n, word in declared.items() if types[n] not in _FITTING[word]]
    require_no_misfits(wrong, source)


def require_no_misfits(misfits: Collection[str], source: Source) -> None:
    """Raises InvalidArgument if there are *misfits* of *source*'s fields."""
    if misfits:
        msg = f"operators.{source.name}.fields must have the types of the fields that it reads: {'; '.join(misfits)}"
        raise InvalidArgument(msg)


def require_there(fields: Iterable[str], source: Source) -> None:
    """Raises InvalidArgument unless *fields* are all that *source* declares."""
    there = [*fields]
    if missing := outside(source.types_of_values, there):
        msg = f"operators.{source.name}.fields names {', '.join(missing)}; it reads the fields: {', '.join(there)}"
        raise InvalidArgument(msg)
