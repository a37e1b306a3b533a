"""Compares the types of a schema with the declared types of fields."""

from __future__ import annotations

from collections.abc import Mapping

_FITTING = {
    "boolean": {"boolean"},
    "int": {"int"},
    "bigint": {"int", "bigint", "unsigned bigint"},
    "double": {"int", "float", "double", "decimal"},
    "timestamp": {"timestamp"},
}
"""By declared type, the types whose values fit.

An unsigned number above 2^63 − 1 makes its record wrong_type. A decimal becomes the nearest double. A `string` has the
text of any value.
"""


def misfits(types: Mapping[str, str], words: Mapping[str, str]) -> list[str]:
    """Returns a phrase for each field of *words* with another type.

    A field that the schema does not have is null, as in JSON.

    Args:
        types: the types of the schema by field.
        words: the declared types by field.

    >>> misfits({"id": "bigint", "n": "double"}, {"id": "string", "n": "int", "new": "int"})
    ['n is double, not int']
    """
    wrong: list[str] = []
    for name, word in words.items():
        if word != "string" and name in types and types[name] not in _FITTING[word]:
            wrong.append(f"{name} is {types[name]}, not {word}")
    return wrong
