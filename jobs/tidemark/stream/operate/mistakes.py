"""Mistakes of an operator against the columns that it reads, by the key of the topology file.

Only columns of records count: those that Tidemark keeps beside them are neither found nor named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.expressions import Expressions

Schema = Mapping[str, pl.DataType]
_NUMBER = "of a timestamp epoch_ms(...) and epoch_us(...) are numbers"


@dataclass(frozen=True)
class ColumnMistake:
    """One mistake: the *key* below its operator, empty for the whole of it, what was seen there, and the remedy."""

    key: str
    problem: str
    remedy: str


def reads(columns: Collection[str]) -> str:
    """Return the remedy for what names other columns than these."""
    return f"it reads the columns {', '.join(columns)}"


def unknown(named: Mapping[str, Sequence[str]], columns: Collection[str]) -> Iterator[ColumnMistake]:
    """Yield a mistake for each key whose columns, *named* by key, are not all among *columns*."""
    for key, names in named.items():
        if missing := [name for name in names if name not in columns]:
            yield ColumnMistake(key, f"names {missing}, which are no columns", reads(columns))


def of_any_type(key: str, wrong: Collection[str]) -> Schema:
    """Return the columns that *key* names where it is *wrong*, of a type that fits whatever reads them."""
    return {part.removeprefix(f"{key}."): pl.Null() for part in wrong if part.startswith(f"{key}.")}


def of_sql(texts: Mapping[str, str], columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    """Yield the mistakes in *texts*, SQL that reads *columns*, by key."""
    records = pl.DataFrame(schema=dict(columns))
    for key, text in texts.items():
        try:
            sql.check(text, columns)
        except InvalidArgument as error:
            problem, _, remedy = str(error).rpartition("; ")
            yield ColumnMistake(key, f"{text!r} {problem}", remedy)
            continue
        if reason := sql.misfit(text, records):
            at = f"; {_NUMBER}" if "TIMESTAMP WITH TIME ZONE" in reason else ""
            yield ColumnMistake(key, f"is {text!r}: {reason}", f"{reads(columns)}{at}")
