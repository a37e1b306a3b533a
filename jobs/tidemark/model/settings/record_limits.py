"""Limits of what a record may hold, where a parser's work does not follow from the record's size."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import defaulted

DEEPEST = 500
"""The highest `max_depth`: parsers and serialisers use Python's stack, which has 1,000 levels by default."""


@dataclass(frozen=True, kw_only=True)
class RecordLimits:
    """The limits of a source's records; a record beyond one is quarantined as `beyond_limit`.

    Attributes:
        max_depth: levels of objects, lists and maps inside each other; the record itself is the first.
        max_digits: digits of a decimal in Avro. A decimal is made of bytes in quadratic time.
        max_empty_items: items without bytes in the lists of a record in Avro, such as nulls. A list says how many there
            are, and five bytes can say thirty million.
    """

    max_depth: int = 100
    max_digits: int = 1_000
    max_empty_items: int = 10_000


DEFAULT_LIMITS = RecordLimits()


MAX_DEPTH = defaulted(
    "max_depth",
    value_types.count(most=DEEPEST),
    example="200",
    default=DEFAULT_LIMITS.max_depth,
    meaning=(
        "how many objects, lists, maps and records may be inside each other in a record; the record itself is the "
        "first. At most 500. A record beyond it is quarantined as `beyond_limit`"
    ),
)
MAX_DIGITS = defaulted(
    "max_digits",
    value_types.count(),
    example="5000",
    default=DEFAULT_LIMITS.max_digits,
    meaning=(
        'with `format = "avro"`: the most digits of a decimal. A record beyond it is quarantined as '
        "`beyond_limit`: the time to make a decimal is quadratic in its digits"
    ),
)
MAX_EMPTY_ITEMS = defaulted(
    "max_empty_items",
    value_types.count(),
    example="100000",
    default=DEFAULT_LIMITS.max_empty_items,
    meaning=(
        'with `format = "avro"`: the most items of a record\'s lists that have no bytes, such as nulls. A record '
        "beyond it is quarantined as `beyond_limit`: five bytes can say that a list has thirty million nulls"
    ),
)
