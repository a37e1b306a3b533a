"""Describes mistakes of an operator against the columns it reads.

They are by the key of the topology file. Only columns of records count: Tidemark's own columns beside them are neither
accepted nor named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.collecting import outside
from tidemark.errors import InvalidArgument
from tidemark.kernels.sql.expressions import Expressions

Schema = Mapping[str, pl.DataType]
_NUMBER = "of a timestamp epoch_ms(...) and epoch_us(...) are numbers"


@dataclass(frozen=True)
class ColumnMistake:
    """A mistake of an operator in the topology file.

    *key* is below the operator, empty for the whole of it; *problem* is what was seen there, and *remedy* what to do.
    """

    key: str
    problem: str
    remedy: str


def reads(columns: Collection[str]) -> str:
    """Returns the remedy for what names other columns than these."""
    return f"it reads the columns {', '.join(columns)}"


def unknown(named: Mapping[str, Sequence[str]], columns: Collection[str]) -> Iterator[ColumnMistake]:
    """Yields a mistake for each key that names unknown columns.

    *named* has the columns by key; they must be among *columns*.
    """
    for key, names in named.items():
        if missing := outside(names, columns):
            yield ColumnMistake(key, f"names {missing}, which are not columns", reads(columns))


def of_any_type(key: str, wrong: Collection[str]) -> Schema:
    """Returns the columns that *key* names where it is *wrong*."""
    # A column of type Null fits every reader, so that a mistake is reported once.
    return {part.removeprefix(f"{key}."): pl.Null() for part in wrong if part.startswith(f"{key}.")}


def of_sql(texts: Mapping[str, str], columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    """Yields the mistakes in *texts*, SQL that reads *columns*, by key."""
    records = pl.DataFrame(schema=dict(columns))
    for key, text in texts.items():
        try:
            sql.check(text, columns)
        except InvalidArgument as error:
            # Messages of errors end with a remedy, after the last semicolon.
            problem, _, remedy = str(error).rpartition("; ")
            yield ColumnMistake(key, f"{text!r} {problem}", remedy)
            continue
        if reason := sql.misfit(text, records):
            at = f"; {_NUMBER}" if "TIMESTAMP WITH TIME ZONE" in reason else ""
            yield ColumnMistake(key, f"is {text!r}: {reason}", f"{reads(columns)}{at}")
