"""Compares the types of a schema with the declared types of fields."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.kernels.formats.avro_fields import avro_types
from tidemark.kernels.formats.protobuf_fields import protobuf_types
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import digits_of, integer_digits
from tidemark.selection import outside

_FITTING = {
    "boolean": {"boolean"},
    "int": {"int"},
    "bigint": {"int", "bigint", "unsigned bigint"},
    "double": {"int", "float", "double"},
    "timestamp": {"timestamp"},
}
"""By declared type, the types whose values fit; for decimals see `fits_digits`.

An unsigned number above 2^63 − 1 makes its record wrong_type. For a `double` a decimal becomes the nearest one. A
`string` accepts any value, as text.
"""
_DIGITS_OF_INTEGERS = {
    **{word: integer_digits(bits) for word, bits in {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}.items()},
    "unsigned bigint": integer_digits(64, signed=False),
}


def misfits_of_schema(source: Source) -> list[str]:
    """Returns a phrase for each field that the file with the schema of *source* lacks, or has with another type."""
    declared = source.types_of_values
    if source.avro_schema is not None:
        types = avro_types(source.avro_schema, declared)
    elif source.descriptors is not None:
        types = protobuf_types(source.descriptors, source.message or "", declared)
    else:
        return []
    there = ", ".join(types)
    missing = [f"the schema has no {path}; it has the fields {there}" for path in outside(declared, types)]
    return missing or misfits(types, declared, source.time_field)


def misfits(types: Mapping[str, str], declared_types: Mapping[str, str], time: str | None = None) -> list[str]:
    """Returns a phrase for each declared field whose type in the schema does not fit.

    A field that the schema does not have fits: it is null, as in JSON.


    Args:
        types: the types of the schema by path of a field.
        declared_types: the declared types by path.
        time: the path of the event time, which may be in a text.

    >>> misfits({"id": "bigint", "n": "double"}, {"id": "string", "n": "int", "new": "int"})
    ['n is double, not int']
    >>> misfits({"a": "decimal(9,2)", "b": "decimal(9,3)"}, {"a": "decimal(12,2)", "b": "decimal(12,2)"})
    ['b is decimal(9,3), not decimal(12,2)']
    """
    wrong: list[str] = []
    for name, word in declared_types.items():
        if name in types and not _fits(types[name], word) and not (name == time and types[name] == "string"):
            wrong.append(f"{name} is {types[name]}, not {word}")
    return wrong


def _fits(kind: str, word: str) -> bool:
    if word == "string":
        return True
    if digits_of(word) is not None:
        # As in JSON, a decimal may be in a text, whose digits are looked at record by record.
        return kind == "string" or fits_digits(number_digits(kind), word)
    return kind in _FITTING[word] or (word == "double" and digits_of(kind) is not None)


def number_digits(kind: str) -> tuple[int, int]:
    """Returns precision and scale of the numbers of the type *kind*; (0, 0) if these are not exact, or no numbers.


    >>> number_digits("decimal(9,2)"), number_digits("int"), number_digits("double")
    ((9, 2), (10, 0), (0, 0))
    """
    return digits_of(kind) or (_DIGITS_OF_INTEGERS.get(kind, 0), 0)


def fits_digits(of_schema: tuple[int, int], word: str) -> bool:
    """Returns True if every number with the precision and scale *of_schema* fits the decimal *word*.

    A precision of 0, which is that of other types, never fits.


    >>> fits_digits((9, 2), "decimal(12,2)"), fits_digits((12, 0), "decimal(12,2)"), fits_digits((0, 0), "decimal(1,0)")
    (True, False, False)
    """
    digits = digits_of(word)
    assert digits is not None
    (precision, scale), (most, behind) = of_schema, digits
    return precision > 0 and scale <= behind and precision - scale <= most - behind
