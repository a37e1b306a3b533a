"""Finds the columns that the SQL of a topology reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import duckdb

from tidemark.errors import InvalidArgument


def columns_read() -> Callable[[str], list[str]]:
    """Returns a function that returns the columns which an expression of SQL reads.

    The function raises InvalidArgument if the text is no expression.
    """
    connection = duckdb.connect()

    def read(sql: str) -> list[str]:
        rows = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [f"SELECT {sql}"]).fetchall()
        parsed = json.loads(rows[0][0])
        if parsed["error"]:
            msg = f"{sql!r} is not an expression of SQL: {parsed['error_message']}; `tidemark check` names its place"
            raise InvalidArgument(msg)
        return [*_references(parsed)]

    return read


def _references(parsed: Any) -> Iterator[str]:
    """Yields the columns to which a syntax tree of DuckDB refers."""
    if isinstance(parsed, dict):
        if parsed.get("class") == "COLUMN_REF":
            # `a.b` is a column of a table, or a field of a column.
            yield from parsed["column_names"]
        parsed = [*parsed.values()]
    if isinstance(parsed, list):
        for part in parsed:
            yield from _references(part)
