"""Describes mistakes in a topology file: where an operator does not fit the columns that it reads.

Each mistake names the key of the file. Tidemark's own columns, which records have beside their fields, are neither
accepted nor named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.sql.expressions import Expressions
from tidemark.selection import outside

Schema = Mapping[str, pl.DataType]
_NUMBER = "of a timestamp epoch_ms(...) and epoch_us(...) are numbers"


@dataclass(frozen=True)
class ColumnMistake:
    """A mistake of an operator in the topology file.

    *key* is the key below the operator, or empty where the whole operator is wrong; *problem* is what was found there,
    and *remedy* what to do.
    """

    key: str
    problem: str
    remedy: str


def reads(columns: Collection[str]) -> str:
    """Returns the remedy for a key that names columns which do not exist: the list of *columns* that do."""
    return f"it reads the columns {', '.join(columns)}"


def unknown(named: Mapping[str, Sequence[str]], columns: Collection[str]) -> Iterator[ColumnMistake]:
    """Yields a mistake for each key that names unknown columns.

    *named* has, by key of the file, the columns that it names; *columns* are those that exist.
    """
    for key, names in named.items():
        if missing := outside(names, columns):
            yield ColumnMistake(key, f"names {missing}, which are not columns", reads(columns))


def of_any_type(key: str, wrong: Collection[str]) -> Schema:
    """Returns the columns that *key* defines by SQL that is wrong, with a type that fits every reader.

    *wrong* are the keys of the operator with a mistake, such as `select.total`. So each mistake is reported once, and
    not again by each reader of the column.
    """
    return {path.removeprefix(f"{key}."): pl.Null() for path in wrong if path.startswith(f"{key}.")}


def of_sql(texts: Mapping[str, str], columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    """Yields the mistakes in *texts*: SQL expressions, by key of the file, that read *columns*."""
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
            hint = f"; {_NUMBER}" if "TIMESTAMP WITH TIME ZONE" in reason else ""
            yield ColumnMistake(key, f"is {text!r}: {reason}", f"{reads(columns)}{hint}")
