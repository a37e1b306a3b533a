"""Refuses queries that do more than read tables and views.

DuckDB's settings are not enough for that: `delta_scan` opens any path or URL, `write_blob` writes to any path, and
EXPLAIN ANALYZE runs a COPY. So a query is checked as DuckDB parses it, before DuckDB binds names to tables, because
that opens files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import duckdb

from tidemark.errors import InvalidArgument

EXPLAINED = re.compile(r"\s*explain\s+(?:analyze\s+)?(.*)", re.IGNORECASE | re.DOTALL)
OF_ARGUMENTS = frozenset(
    {"explode", "generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)
"""Table functions that queries may use: they read only their arguments."""
DO_MORE = frozenset({"json_serialize_plan", "write_blob", "write_log"})
"""Scalar functions that write, or open a path. tests/delta/test_read_only.py calls all functions that DuckDB has."""
NO_FILE = re.compile(r"[\w $-]+")
"""Names that DuckDB never reads as files. For any other name without a table it looks for a file."""
PARSED = """
    SELECT json_extract_string(parsed, '$.error_type'), json_array_length(parsed, '$.statements'),
           json_extract_string(parsed, '$..function_name'),
           len(json_extract(parsed, '$..function')),
           json_extract_string(json_extract(parsed, '$..function')::JSON, '$[*].function_name'),
           json_extract_string(parsed, '$..catalog_name'), json_extract_string(parsed, '$..schema_name'),
           json_extract_string(parsed, '$..table_name')
    FROM (SELECT {parsed} AS parsed)
"""
SHOWN = ("", '"tables"', '"databases"')
"""Names of tables in the parsed DESCRIBE, SHOW TABLES and SHOW DATABASES."""
MOST_PARSED = 200
_PARSED: dict[str, tuple[Any, ...]] = {}
"""What DuckDB parsed, by the text of a query: pages ask the same queries again and again."""
VIEWS = "SELECT lower(schema_name), lower(view_name) FROM duckdb_views()"


def check(connection: duckdb.DuckDBPyConnection, text: str, tables: Iterable[str]) -> None:
    """Raises InvalidArgument unless the query *text* only reads *tables*, or DuckDB's lists of them.

    A mistake in *text* raises DuckDB's own error.
    """
    error, statements, functions, calls, table_functions, *names = _parsed(connection, text)
    if error == "parser":
        connection.extract_statements(text)  # raises an error that shows the mistake
    # SELECT is the only statement that DuckDB can write as JSON.
    if statements != 1 or calls != len(table_functions):
        remedy = "start it with SELECT, WITH, FROM, DESCRIBE, or EXPLAIN without options"
        msg = f"a query must be one read-only statement, got {text!r}; {remedy}"
        raise InvalidArgument(msg)
    for name in sorted({*table_functions} - OF_ARGUMENTS | {*functions} & DO_MORE):
        msg = (
            f"a query may read only tables and views, but {name} reads more; allowed table functions: "
            f"{', '.join(sorted(OF_ARGUMENTS))}"
        )
        raise InvalidArgument(msg)
    _check_tables(connection, {*zip(*names, strict=True)}, tables)


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[Any, ...]:
    """Returns the columns of PARSED about *text*."""
    if text not in _PARSED:
        explained = EXPLAINED.fullmatch(text)
        expression = PARSED.format(parsed=_parse_expression(explained[1] if explained else text))
        parsed = connection.execute(expression).fetchone() or ()
        if len(_PARSED) >= MOST_PARSED:
            _PARSED.clear()
        _PARSED[text] = parsed
    return _PARSED[text]


def topology_of(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[str, str] | None:
    """Returns the table and the topology that a simple query reads, or None for any other query.

    A simple query is a SELECT from one table without subqueries and WITH, whose WHERE is `topology = 'NAME'`, or this
    AND other conditions.
    """
    (parsed,) = connection.execute(f"SELECT {_parse_expression(text)}").fetchone() or ("{}",)
    statements = json.loads(parsed).get("statements", [])
    node = statements[0]["node"] if len(statements) == 1 else {}
    is_simple = node.get("type") == "SELECT_NODE" and node["from_table"]["type"] == "BASE_TABLE"
    if not is_simple or node["cte_map"]["map"] or '"SUBQUERY"' in parsed or node["where_clause"] is None:
        return None
    where = node["where_clause"]
    conditions = where["children"] if where["type"] == "CONJUNCTION_AND" else [where]
    for condition in (each for each in conditions if each["type"] == "COMPARE_EQUAL"):
        sides = {side["type"]: side for side in (condition["left"], condition["right"])}
        column, constant = sides.get("COLUMN_REF"), sides.get("VALUE_CONSTANT")
        if column and constant and column["column_names"][-1].lower() == "topology":
            return node["from_table"]["table_name"], str(constant["value"].get("value"))
    return None


def _parse_expression(text: str) -> str:
    """Returns the SQL expression of *text* as DuckDB parses it, in JSON."""
    # With a parameter DuckDB imports pandas, which takes a fifth of a second.
    literal = text.replace("'", "''")
    return f"json_serialize_sql('{literal}')"


def _check_tables(
    connection: duckdb.DuckDBPyConnection, names: set[tuple[str, str, str]], tables: Iterable[str]
) -> None:
    """Raises InvalidArgument if DuckDB may read one of *names* (catalog, schema, table) as a file."""
    others = [name for name in names if any(name[:2]) or not NO_FILE.fullmatch(name[2])]
    allowed = {*connection.execute(VIEWS).fetchall()} if others else set()
    allowed |= {("main", table.lower()) for table in tables}
    allowed |= {("", table) for _, table in allowed} | {("", shown) for shown in SHOWN}
    for catalog, schema, table in others:
        if catalog or (schema.lower(), table.lower()) not in allowed:
            name = ".".join(filter(None, (catalog, schema, table)))
            msg = f"a query may read only tables and views, got {name!r}; show tables lists them"
            raise InvalidArgument(msg)
