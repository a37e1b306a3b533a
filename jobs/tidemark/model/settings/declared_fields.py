"""Reads the parts of `fields`: paths of fields inside records, and decimals.

A dot in a path separates the name of an object from that of a field in it. A name that has a dot or a backquote itself
is written in backquotes, and a backquote in it twice, as in Spark's SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

MOST_DIGITS = 38
"""The most digits of a decimal, as in Spark."""
_QUOTED = r"`(?:[^`]|``)+`"
_STEP = re.compile(rf"{_QUOTED}|[^.`]+")
PATH = rf"(?:{_QUOTED}|[^.`]+)(?:\.(?:{_QUOTED}|[^.`]+))*"
"""The form of a path."""
_COMMA = re.compile(r"`[^`]*`|\([^()]*\)|(,)")
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)", re.ASCII)


def split_fields(text: str) -> Iterator[str]:
    """Yields the parts of *text* between commas that are neither in backquotes nor in parentheses."""
    start = 0
    for match in _COMMA.finditer(text):
        if match[1]:
            yield text[start : match.start()].strip()
            start = match.end()
    yield text[start:].strip()


@lru_cache(maxsize=10_000)
def steps(path: str) -> tuple[str, ...]:
    """Returns the names on a *path*, outermost first.

    >>> steps("data.occurredAt"), steps("`a.b`.c"), steps("event time")
    (('data', 'occurredAt'), ('a.b', 'c'), ('event time',))
    """
    parts = (match[0].strip() for match in _STEP.finditer(path))
    return tuple(part[1:-1].replace("``", "`") if part.startswith("`") else part for part in parts)


def path_of(names: Sequence[str]) -> str:
    """Returns the path of these *names*: the inverse of `steps`.

    >>> path_of(("data", "occurredAt")), path_of(("a.b",))
    ('data.occurredAt', '`a.b`')
    """
    return ".".join("`" + name.replace("`", "``") + "`" if set(".`") & {*name} else name for name in names)


def outermost(paths: Iterable[str]) -> set[str]:
    """Returns the names of the fields of a record with which *paths* begin.

    >>> sorted(outermost(["id", "data.occurredAt", "`a.b`"]))
    ['a.b', 'data', 'id']
    """
    return {steps(path)[0] for path in paths}


def whole_fields(paths: Iterable[str]) -> set[str]:
    """Returns the fields of a record that *paths* name whole. A path to an inner field does not name its outer field.

    >>> sorted(whole_fields(["id", "data.occurredAt", "`a.b`"]))
    ['a.b', 'id']
    """
    return {name for name, *inside in map(steps, paths) if not inside}


def decimal_word(text: str) -> str | None:
    """Returns *text* as the name of a type `decimal(p,s)`; None where it is none.

    >>> decimal_word("decimal(12, 2)"), decimal_word("decimal(9)"), decimal_word("decimal(2,3)")
    ('decimal(12,2)', 'decimal(9,0)', None)
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2] or 0)
    return f"decimal({precision},{scale})" if 1 <= precision <= MOST_DIGITS and scale <= precision else None


def integer_digits(bits: int, *, signed: bool = True) -> int:
    """Returns the digits of the largest integer of so many *bits*.

    >>> integer_digits(8), integer_digits(64), integer_digits(64, signed=False)
    (3, 19, 20)
    """
    return len(str(2 ** (bits - signed) - 1))


@lru_cache(maxsize=1_000)
def digits_of(word: str) -> tuple[int, int] | None:
    """Returns precision and scale of the type *word*; None for other types than decimals."""
    match = _DECIMAL.fullmatch(word)
    return (int(match[1]), int(match[2] or 0)) if match else None
