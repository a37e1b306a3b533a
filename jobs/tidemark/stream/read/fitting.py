"""Whether what a source reads has the fields that it declares, in types of which every value fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.errors import InvalidArgument
from tidemark.spec.operators import Source

_FITTING = {
    "string": {"string"},
    "boolean": {"boolean"},
    "int": {"tinyint", "smallint", "int"},
    "bigint": {"tinyint", "smallint", "int", "bigint"},
    "double": {"tinyint", "smallint", "int", "float", "double"},
    "timestamp": {"timestamp", "timestamp_ntz"},
}
"""Per declared type the types of Spark of which every value fits."""


def require_fitting(types: Mapping[str, str], source: Source) -> None:
    """Raise InvalidArgument unless the fields with these *types* have all that *source* declares, in types that fit."""
    declared = {source.field_of[name]: word for name, word in source.fields.items() if name != source.key}
    require_there(types, source)
    if wrong := [f"{n} is {types[n]}, not {word}" for n, word in declared.items() if types[n] not in _FITTING[word]]:
        msg = f"operators.{source.name}.fields must have the types of what it reads: {'; '.join(wrong)}"
        raise InvalidArgument(msg)


def require_there(known: Iterable[str], source: Source) -> None:
    """Raise InvalidArgument unless the fields *known* are all that *source* declares."""
    there = [*known]
    if missing := [source.field_of[name] for name in source.fields if name != source.key
                   and source.field_of[name] not in there]:  # fmt: skip
        msg = f"operators.{source.name}.fields names {', '.join(missing)}; what it reads has: {', '.join(there)}"
        raise InvalidArgument(msg)
