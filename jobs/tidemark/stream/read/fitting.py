"""Checks that all values of a column fit the type that a source declares for its field."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemark.errors import InvalidArgument
from tidemark.kernels.formats.fitting import fits_digits, number_digits
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import digits_of
from tidemark.selection import outside

_FITTING = {
    "string": {"string"},
    "boolean": {"boolean"},
    "int": {"tinyint", "smallint", "int"},
    "bigint": {"tinyint", "smallint", "int", "bigint"},
    "double": {"tinyint", "smallint", "int", "float", "double"},
    "timestamp": {"timestamp", "timestamp_ntz"},
}
"""Per declared type, the Spark types of which every value fits; of decimals see `_fits`."""


def require_fitting(types: Mapping[str, str], source: Source) -> None:
    """Raises InvalidArgument unless *types*, by column, have all fields that *source* declares, in types that fit."""
    declared = source.types_of_values
    if missing := outside(declared, types):
        msg = f"operators.{source.name}.fields names {', '.join(missing)}; it reads the fields: {', '.join(types)}"
        raise InvalidArgument(msg)
    wrong = [f"{path} is {types[path]}, not {word}" for path, word in declared.items() if not _fits(types[path], word)]
    require_no_misfits(wrong, source)


def _fits(kind: str, word: str) -> bool:
    if digits_of(word) is not None:
        return fits_digits(number_digits(kind), word)
    return kind in _FITTING[word]


def require_no_misfits(misfits: Collection[str], source: Source) -> None:
    """Raises InvalidArgument if there are *misfits* of *source*'s fields."""
    if misfits:
        msg = f"operators.{source.name}.fields must have the types of the fields that it reads: {'; '.join(misfits)}"
        raise InvalidArgument(msg)
