"""Reads numbers from their texts without rounding.

A number may have a fraction and an exponent. An integer or a decimal is never read by way of a double, which has 53
bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import polars as pl

from tidemark.kernels.columns.schemas import polars_type
from tidemark.kernels.records.fields import WRONG_TYPE, RecordUnreadable
from tidemark.model.settings.declared_fields import digits_of

_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?\s*", re.ASCII)
_BIGINT = (19, 0)
_SURE = r"^-?\d{1,18}$"
"""Texts of integers that have 64 bits."""
SHOWN = 60
"""The most characters of a wrong value that an explanation shows."""


def number_of(text: str, word: str) -> int | float | Decimal | None:
    """Returns the number in *text* with the type *word*: `bigint`, `double` or a decimal.

    None if it is no number, or the type cannot hold all of its digits. A double is the nearest one.


    >>> number_of("1.7672256e9", "bigint"), number_of("7.310", "decimal(12,2)"), number_of("7.311", "decimal(12,2)")
    (1767225600, Decimal('7.31'), None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    if word == "double":
        nearest = float(text)
        return nearest if math.isfinite(nearest) else None
    precision, scale = digits_of(word) or _BIGINT
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    try:
        number = Decimal(text.strip()).quantize(Decimal((0, (1,), -scale)), context=exact)
    except (Inexact, InvalidOperation):
        return None
    if digits_of(word):
        return number
    whole = int(number)
    return whole if -(2**63) <= whole < 2**63 else None


def numbers_of(texts: pl.Series, word: str) -> pl.Series:
    """Returns the number that each of *texts* is; null where `number_of` has none."""
    kind = polars_type(word)
    if word == "bigint" and texts.str.contains(_SURE).fill_null(value=True).all():
        return texts.cast(kind)
    return pl.Series([None if text is None else number_of(text, word) for text in texts], dtype=kind)


def number_column(path: str, values: Sequence[Any], word: str, refused: dict[int, RecordUnreadable]) -> pl.Series:
    """Returns *values* of the field at *path*, numbers or their texts, as numbers of the type *word*.

    A value that does not fit becomes null, and its row is added to *refused*.
    """
    texts = pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)
    numbers = numbers_of(texts, word)
    for row in (texts.is_not_null() & numbers.is_null()).arg_true():
        refused[row] = RecordUnreadable(WRONG_TYPE, f"{texts[row][:SHOWN]} is no {word} - at `$.{path}`")
    return numbers
