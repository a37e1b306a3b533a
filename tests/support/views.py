"""Reads tables, and views over tables, of one stream by name."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import polars as pl

from tidemark.model.tables.catalog import TABLES
from tidemark.query.sql import SPARKS_WORDS, UTC
from tidemark.query.views import names_used_in, views


def tables_of(name: str) -> list[str]:
    """Returns the tables that the view *name* reads; *name* itself, if it is none."""
    view = {view.name: view for view in views()}.get(name)
    return [name] if view is None else names_used_in(view.select, TABLES, ())


def table_or_view(name: str, read: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    """Returns the rows called *name*; *read* returns those of a table."""
    view = {view.name: view for view in views()}.get(name)
    if view is None:
        return read(name)
    with duckdb.connect() as connection:
        for statement in (UTC, *(f"CREATE {word}" for word in SPARKS_WORDS)):
            connection.execute(statement)
        for table in tables_of(name):
            connection.register(table, read(table).to_arrow())
        return connection.sql(view.select).pl()
