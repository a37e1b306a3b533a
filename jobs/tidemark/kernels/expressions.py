"""The SQL that a topology's file holds, in DuckDB's dialect, over frames in memory: no files, no network."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import polars as pl

from tidemark.errors import InvalidArgument


class Expressions:
    """Evaluates select lists and conditions over frames."""

    def __init__(self) -> None:
        self._duckdb = duckdb.connect(":memory:", config={"enable_external_access": "false", "threads": "2"})
        self._duckdb.sql("SET TimeZone = 'UTC'; SET lock_configuration = true")

    def select(
        self, frame: pl.DataFrame, select: Mapping[str, str], *, keep: tuple[str, ...], where: str | None = None
    ) -> pl.DataFrame:
        """The named expressions of *select* and the columns *keep*, of the rows where *where* is true, in their order.

        Raises InvalidArgument with DuckDB's message when an expression does not fit the columns of *frame*.
        """
        columns = [f"({sql}) AS {quoted(name)}" for name, sql in select.items()] + [quoted(name) for name in keep]
        query = f"SELECT {', '.join(columns)} FROM records" + (f" WHERE ({where})" if where else "")
        self._duckdb.register("records", frame.to_arrow())
        try:
            return self._duckdb.sql(query).pl()
        except duckdb.Error as error:
            msg = f"{query}: {error}"
            raise InvalidArgument(msg) from error
        finally:
            self._duckdb.unregister("records")


def quoted(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
