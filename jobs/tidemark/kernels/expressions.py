"""The SQL that a topology's file holds, in DuckDB's dialect, over frames in memory: no files, no network.

An expression that fails for one record, because a sum overflows, a text is no number, or a time lies outside of the
years 1 to 9999, sets that record aside and no other. Only where a query failed are its records looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import duckdb
import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.determinism import Determinism
from tidemark.kernels.years import BEYOND, beyond_years

PROBLEM = "_problem"
"""Of a record that was set aside: the key of the SQL that failed for it, and what DuckDB said."""

UNNAMED = "the records"
"""The table that an expression reads when it is looked at: not the one of later, so that none names it."""

OF_A_RECORD = (duckdb.DataError, duckdb.InvalidInputException, duckdb.NotSupportedError, duckdb.SequenceException)
"""Errors that come of the values of a record, while the query as such fits the columns."""


class Expressions:
    """Evaluates select lists and conditions over frames; `failed` are the records that could not be evaluated."""

    def __init__(self) -> None:
        self._duckdb = _connection()
        self._determinism = Determinism(self._duckdb)
        self.failed: list[pl.DataFrame] = []

    def check(self, sql: str, columns: Collection[str]) -> None:
        """Raise InvalidArgument where *sql* depends on more than a record with *columns*."""
        self._determinism.check(sql, columns)

    def misfit(self, sql: str, records: pl.DataFrame) -> str | None:
        """Why *sql* is no expression over *records*, of which it may name the columns alone; None where it is one."""
        if problem := self._determinism.no_expression(sql):
            return problem
        try:
            found = _run(self._duckdb, f"SELECT ({sql}) FROM {quoted(UNNAMED)}", records, name=UNNAMED)
        except duckdb.Error as error:
            return str(error).splitlines()[0].removesuffix(" in FROM clause!")
        except InvalidArgument as error:
            return str(error)
        is_binary = "Binary" in str(found.dtypes)
        return "a column cannot be a BLOB or BIT; write hex(x) or x::varchar, which is text" if is_binary else None

    def select(
        self, frame: pl.DataFrame, select: Mapping[str, str], *, keep: Sequence[str], where: str | None = None
    ) -> pl.DataFrame:
        """The named expressions of *select* and the columns *keep*, of the rows where *where* is true, in their order.

        Rows for which one of them fails are left out and added to `failed`.

        Raises InvalidArgument with DuckDB's message when an expression does not fit the columns of *frame*.
        """
        columns = [f"({sql}) AS {quoted(name)}" for name, sql in select.items()] + [quoted(name) for name in keep]
        query = f"SELECT {', '.join(columns)} FROM records" + (f" WHERE ({where})" if where else "")
        try:
            found = _run(self._duckdb, query, frame)
            if not any(column.any() for column in beyond_years(found)):
                return found
        except duckdb.Error as error:
            if frame.is_empty() or not isinstance(error, OF_A_RECORD):
                msg = str(error).splitlines()[0].removesuffix(" in FROM clause!")
                raise InvalidArgument(msg) from error
        problems = self._problems(frame, select, where)
        bad = frame.with_columns(pl.Series(PROBLEM, problems, pl.String))
        self.set_aside(bad.filter(pl.col(PROBLEM).is_not_null()))
        return _run(self._duckdb, query, frame.filter(bad[PROBLEM].is_null()))

    def set_aside(self, records: pl.DataFrame) -> None:
        """Have *records*, with their PROBLEM, among those that failed."""
        self.failed.append(records)

    def _problems(self, frame: pl.DataFrame, select: Mapping[str, str], where: str | None) -> list[str | None]:
        """What is wrong with each row of *frame*; None: nothing."""
        named = {"_told_by": "identity", "_kept": "where"}
        texts = ({"where": where} if where else {}) | {
            named.get(name, f"select.{name}"): sql for name, sql in select.items()
        }
        # TRY makes null of an error, and of nothing else where what it tries is a struct.
        fails = {key: f"try({{'v': ({sql})}}) IS NULL" for key, sql in texts.items()}
        asked = f"try(({where})) IS NOT TRUE" if where else "false"
        flags = [f"({fails[key]}) AS {quoted(key)}" for key in texts]
        # What is common to two expressions must fail within each TRY, and not before both.
        careful = _connection("SET disabled_optimizers = 'common_subexpressions'")
        found = _run(careful, f"SELECT {', '.join(flags)}, ({asked}) AS _unasked FROM records", frame)
        others = [key for key in texts if key != "where"]
        if others:
            values = ", ".join(f"try(({texts[key]})) AS {quoted(key)}" for key in others)
            tried = _run(careful, f"SELECT {values} FROM records", frame)
            found = found.with_columns((pl.col(flag.name) | flag).alias(flag.name) for flag in beyond_years(tried))
            found = found.with_columns(pl.col(others) & ~pl.col("_unasked"))
        first = pl.coalesce(*(pl.when(pl.col(key)).then(pl.lit(key)) for key in texts))
        keys = found.select(first).to_series().to_list()
        return [key and f"{key}: {self._said(frame[row], texts[key])}" for row, key in enumerate(keys)]

    def _said(self, row: pl.DataFrame, sql: str) -> str:
        try:
            value = _run(self._duckdb, f"SELECT ({sql}) FROM records", row)
        except duckdb.Error as error:
            return str(error).splitlines()[0]
        return BEYOND if any(column.any() for column in beyond_years(value)) else "fails among other records"


def _connection(more: str = "") -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"enable_external_access": "false", "threads": "2"})
    connection.execute(f"SET TimeZone = 'UTC'; {more}; SET lock_configuration = true")
    return connection


def _run(connection: duckdb.DuckDBPyConnection, query: str, frame: pl.DataFrame, name: str = "records") -> pl.DataFrame:
    connection.register(name, frame.to_arrow())
    try:
        found = connection.sql(query)
        if any("INTERVAL" in str(kind) for kind in found.types):
            msg = "a column cannot be an INTERVAL; write date_diff('microsecond', earlier, later), which is a number"
            raise InvalidArgument(msg)
        return _with_infinite_seconds(found).pl()
    finally:
        connection.unregister(name)


def _with_infinite_seconds(found: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """*found* with TIMESTAMP_MS for TIMESTAMP_S: polars, which counts in ms, makes 1969 of infinite seconds."""
    kinds = [re.sub(r"\bTIMESTAMP_S\b", "TIMESTAMP_MS", str(kind)) for kind in found.types]
    if all(kind == str(old) for kind, old in zip(kinds, found.types, strict=True)):
        return found
    names = [quoted(name) for name in found.columns]
    return found.project(", ".join(f"{name}::{kind} AS {name}" for name, kind in zip(names, kinds, strict=True)))


def quoted(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
