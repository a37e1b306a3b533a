"""Runs the SQL of a topology over frames in memory, in DuckDB, which gets no access to files or the network.

An expression that fails for one record sets that record aside and no other: a sum
overflows, a text is not a number, or a time lies outside of the years 1 to 9999. Only where a query failed are its
records evaluated one by one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.years import BEYOND, beyond_years
from tidemark.kernels.sql.determinism import Determinism

if TYPE_CHECKING:
    import duckdb

PROBLEM = "_problem"
"""Column of a failed record: key of the SQL, and DuckDB's message."""

UNNAMED = "the records"
"""Name of the table that an expression reads while it is checked.

The name is not that of the table which it reads later, so that no expression can refer to the table.
"""


class Expressions:
    """Evaluates select lists and conditions over frames.

    `failed` are the records that could not be evaluated. DuckDB, which takes 40 MB of a process, is imported with the
    first expression.
    """

    def __init__(self) -> None:
        self.failed: list[pl.DataFrame] = []

    @cached_property
    def _duckdb(self) -> duckdb.DuckDBPyConnection:
        return _connection()

    @cached_property
    def _determinism(self) -> Determinism:
        """Lists DuckDB's functions, which takes longer than an expression."""
        return Determinism(self._duckdb)

    def check(self, sql: str, columns: Collection[str]) -> None:
        """Raises InvalidArgument where *sql* depends on more than *columns*."""
        self._determinism.check(sql, columns)

    def misfit(self, sql: str, records: pl.DataFrame) -> str | None:
        """Returns why *sql* is no expression over the columns of *records*; None if it is one."""
        import duckdb

        if problem := self._determinism.no_expression(sql):
            return problem
        try:
            values = _run(self._duckdb, f"SELECT ({sql}) FROM {quoted(UNNAMED)}", records, name=UNNAMED)
        except duckdb.Error as error:
            return str(error).splitlines()[0].removesuffix(" in FROM clause!")
        except InvalidArgument as error:
            return str(error)
        is_binary = "Binary" in str(values.dtypes)
        return "a column cannot be a BLOB or BIT; write hex(x) or x::varchar, which is text" if is_binary else None

    def select(
        self, frame: pl.DataFrame, select: Mapping[str, str], *, keep: Sequence[str], where: str | None = None
    ) -> pl.DataFrame:
        """Returns the expressions of *select* and the columns *keep*.

        Rows keep their order. Rows for which an expression fails are left out and added to `failed`.

        Args:
            frame: the records.
            select: SQL by name.
            keep: columns that are kept as they are.
            where: only rows for which this is true.

        Raises:
            InvalidArgument: an expression does not fit the columns of *frame*; with DuckDB's message.
        """
        import duckdb

        columns = [f"({sql}) AS {quoted(name)}" for name, sql in select.items()]
        columns += map(quoted, keep)
        query = f"SELECT {', '.join(columns)} FROM records" + (f" WHERE ({where})" if where else "")
        try:
            selected = _run(self._duckdb, query, frame)
            if not any(column.any() for column in beyond_years(selected)):
                return selected
        except duckdb.Error as error:
            if frame.is_empty() or not _is_of_a_record(error):
                msg = str(error).splitlines()[0].removesuffix(" in FROM clause!")
                raise InvalidArgument(msg) from error
        problems = self._problems(frame, select, where)
        bad = frame.with_columns(pl.Series(PROBLEM, problems, pl.String))
        self.set_aside(bad.filter(pl.col(PROBLEM).is_not_null()))
        return _run(self._duckdb, query, frame.filter(bad[PROBLEM].is_null()))

    def set_aside(self, records: pl.DataFrame) -> None:
        """Adds *records*, with their PROBLEM, to those that failed."""
        self.failed.append(records)

    def _problems(self, frame: pl.DataFrame, select: Mapping[str, str], where: str | None) -> list[str | None]:
        """Returns the error that each row of *frame* causes, or None."""
        texts = {"where": where} if where else {}
        for name, sql in select.items():
            texts[_TOPOLOGY_KEYS.get(name, f"select.{name}")] = sql
        flags: list[str] = []
        values: dict[str, str] = {}
        for key, sql in texts.items():
            # TRY gives null for an error. A struct is never null otherwise.
            flags.append(f"(try({{'v': ({sql})}}) IS NULL) AS {quoted(key)}")
            if key != "where":
                values[key] = f"try(({sql})) AS {quoted(key)}"
        # A subexpression that two expressions share must fail within each TRY, and not before both.
        careful = _connection("SET GLOBAL disabled_optimizers = 'common_subexpressions'")
        is_left_out = f"try(({where})) IS NOT TRUE" if where else "false"
        failures = _run(careful, f"SELECT {', '.join(flags)}, ({is_left_out}) AS _left_out FROM records", frame)
        if values:
            for flag in beyond_years(_run(careful, f"SELECT {', '.join(values.values())} FROM records", frame)):
                failures = failures.with_columns((pl.col(flag.name) | flag).alias(flag.name))
            # Rows that `where` leaves out are in no result, so the select list cannot fail for them.
            failures = failures.with_columns(pl.col([*values]) & ~pl.col("_left_out"))
        first_failure = pl.coalesce(*(pl.when(pl.col(key)).then(pl.lit(key)) for key in texts))
        keys = failures.select(first_failure).to_series()
        return [key and f"{key}: {self._message(frame[row], texts[key])}" for row, key in enumerate(keys)]

    def _message(self, row: pl.DataFrame, sql: str) -> str:
        """Returns the error of *sql* for a single *row*."""
        import duckdb

        try:
            value = _run(self._duckdb, f"SELECT ({sql}) FROM records", row)
        except duckdb.Error as error:
            return str(error).splitlines()[0]
        return BEYOND if any(column.any() for column in beyond_years(value)) else "fails among other records"


COMPARED, KEPT = "_compared", "_kept"
"""Columns that hold the results of a map's `identity` and `where`."""
_TOPOLOGY_KEYS = {COMPARED: "identity", KEPT: "where"}


def _is_of_a_record(error: duckdb.Error) -> bool:
    """Returns True for errors that values of a record cause, where the columns fit."""
    import duckdb

    kinds = (duckdb.DataError, duckdb.InvalidInputException, duckdb.NotSupportedError, duckdb.SequenceException)
    return isinstance(error, kinds)


def _connection(more: str = "") -> duckdb.DuckDBPyConnection:
    """Returns a new connection to the database of this process, which has no tables.

    Only this connection sees the frames that are registered with it. *more* are further settings of the database.
    """
    return _database(more).cursor()


@cache
def _database(more: str) -> duckdb.DuckDBPyConnection:
    """Returns a database in memory, which takes 20 ms of a processor."""
    import duckdb

    database = duckdb.connect(":memory:", config={"enable_external_access": "false", "threads": "2"})
    # External access is off, and SQL of a topology cannot switch it on in a locked configuration. Later connections
    # have global settings alone; none of them prints a progress bar among the answer of a command.
    database.execute(f"SET GLOBAL TimeZone = 'UTC'; {more}; SET lock_configuration = true")
    return database


def _run(connection: duckdb.DuckDBPyConnection, query: str, frame: pl.DataFrame, name: str = "records") -> pl.DataFrame:
    connection.register(name, frame.to_arrow())
    try:
        result = connection.sql(query)
        if any("INTERVAL" in str(kind) for kind in result.types):
            msg = "a column cannot be an INTERVAL; write date_diff('microsecond', earlier, later), which is a number"
            raise InvalidArgument(msg)
        return _with_infinite_seconds(result).pl()
    finally:
        connection.unregister(name)


def _with_infinite_seconds(result: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Returns *result* with TIMESTAMP_MS for TIMESTAMP_S."""
    # polars, which counts in ms, makes 1969 of infinite seconds.
    kinds = [re.sub(r"\bTIMESTAMP_S\b", "TIMESTAMP_MS", str(kind)) for kind in result.types]
    if all(kind == str(old) for kind, old in zip(kinds, result.types, strict=True)):
        return result
    names = [quoted(name) for name in result.columns]
    return result.project(", ".join(f"{name}::{kind} AS {name}" for name, kind in zip(names, kinds, strict=True)))


def quoted(name: str) -> str:
    """Returns *name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
