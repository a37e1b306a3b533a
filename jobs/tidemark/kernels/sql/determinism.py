"""Refuses SQL of a topology that is not deterministic per record.

A batch is decided again after a crash, and values are compared with earlier ones. So an expression may read the columns
of its record and nothing else: no clock, no random numbers, no setting, no other record. DuckDB parses the expression
and reports the stability of its functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from tidemark.errors import InvalidArgument

if TYPE_CHECKING:
    import duckdb

SETTINGS = frozenset(
    {"current_setting", "getenv", "getvariable", "version", "current_localtime", "current_localtimestamp"}
)
"""Functions that depend on settings or the clock, although DuckDB declares them CONSISTENT."""

WORDS = frozenset({
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "localtime", "localtimestamp", "session_user", "user",
})  # fmt: skip
"""Words that DuckDB reads as functions unless a column has that name."""

CLASSES = {
    "SUBQUERY": ("a subquery", "which reads other records"),
    "WINDOW": ("a window function", "which reads other records"),
    "STAR": ("*", "which is no column"),
}

FUNCTIONS = """
    SELECT lower(function_name), bool_or(stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY')),
           bool_and(function_type = 'aggregate'), list(DISTINCT macro_definition) FILTER (macro_definition IS NOT NULL)
    FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro') GROUP BY ALL
"""


@cache
def _functions() -> list[Any]:
    """Returns the functions of DuckDB, the same for every connection."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        return connection.execute(FUNCTIONS).fetchall()


class Determinism:
    """Checks SQL against the functions of *connection*."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        functions = _functions()
        self._unstable = {name for name, unstable, _, _ in functions if unstable} | SETTINGS
        self._aggregates = {name for name, _, aggregate, _ in functions if aggregate}
        self._macros: dict[str, list[str]] = {name: macros for name, _, _, macros in functions if macros}

    def check(self, sql: str, columns: Collection[str]) -> None:
        """Raises InvalidArgument where *sql* depends on more than *columns*."""
        for word, why in self._offences(sql, {column.lower() for column in columns}, frozenset()):
            msg = f"uses {word}, {why}; use the record's columns alone, and its timestamp in place of the clock"
            raise InvalidArgument(msg)

    def no_expression(self, sql: str) -> str | None:
        """Returns why *sql* alone, outside of the query that it will be part of, is not one expression;
        None if it is.
        """
        # `a, b` is two expressions alone, and one row in brackets.
        alone, within = self._parsed(sql), self._parsed(f"({sql})")
        if alone["error"]:
            message = str(alone["error_message"])
            return "it is empty" if message.startswith("SELECT clause without") else message
        return None if _shape(alone) == _shape(within) else "it is not one expression"

    def _offences(self, sql: str, columns: Collection[str], within: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Yields each word of *sql* that is refused, and why; *within* are the macros whose definition
        contains *sql*.
        """
        for node in _nodes(self._parsed(f"({sql})")):
            match node.get("class"):
                case "SUBQUERY" | "WINDOW" | "STAR" as kind:
                    yield CLASSES[kind]
                case "COLUMN_REF":
                    path = node["column_names"]
                    if path[-1].lower() in WORDS - {*columns} and len(path) == 1:
                        yield path[-1].lower(), _UNSTABLE
                case "FUNCTION":
                    yield from self._of_function(node["function_name"].lower(), len(node["children"]), within)

    def _of_function(self, name: str, arguments: int, within: frozenset[str]) -> Iterator[tuple[str, str]]:
        if name in self._unstable or (name == "age" and arguments == 1):  # age(x) is from x to today
            yield f"{name}()", _UNSTABLE
        elif name in self._aggregates:
            yield f"{name}()", _OTHERS
        elif name not in within:
            for macro in self._macros.get(name, []):
                for word, why in self._offences(macro, (), within | {name}):
                    yield f"{name}(), which is {word}", why

    def _parsed(self, sql: str) -> Any:
        """Returns DuckDB's syntax tree of *sql*, or the tree of an error if *sql* is not a list of expressions."""
        # DuckDB imports pandas for a query with parameters.
        literal = sql.replace("'", "''")
        query = self._connection.execute(f"SELECT json_serialize_sql('SELECT {literal}')")
        (text,) = query.fetchone() or ("{}",)
        return json.loads(text)


_OTHERS = "which reads other records"
_UNSTABLE = "which gives another result when the batch is decided again, or elsewhere"


def _nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in *parsed*, outer ones first."""
    if isinstance(parsed, dict):
        yield parsed
        parsed = list(parsed.values())
    if isinstance(parsed, list):
        for part in parsed:
            yield from _nodes(part)


def _shape(parsed: Any) -> Any:
    """Returns the syntax tree *parsed* without the positions of its words in the text."""
    if isinstance(parsed, dict):
        return {key: _shape(part) for key, part in parsed.items() if key != "query_location"}
    return [_shape(part) for part in parsed] if isinstance(parsed, list) else parsed
