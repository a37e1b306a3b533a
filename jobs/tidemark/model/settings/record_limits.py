"""Limits of what a record may hold, where a parser's work does not follow from the record's size."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model.settings.toml_keys import Keys

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


def read_record_limits(keys: Keys, *, of_avro: bool) -> RecordLimits:
    """Reads the limits of a source's records; two of them are about Avro alone."""
    depth: int = keys.count("max_depth", "200", DEFAULT_LIMITS.max_depth)
    if depth > DEEPEST:
        keys.fail("max_depth", f"is {depth}", f"write {DEEPEST} or less")
    if not of_avro:
        return RecordLimits(max_depth=depth)
    return RecordLimits(
        max_depth=depth,
        max_digits=keys.count("max_digits", "5000", DEFAULT_LIMITS.max_digits),
        max_empty_items=keys.count("max_empty_items", "100000", DEFAULT_LIMITS.max_empty_items),
    )
