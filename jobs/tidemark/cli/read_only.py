"""What a query may be: one statement that reads tables and views, and nothing else (ring 2).

DuckDB's settings do not see to that alone: `delta_scan` opens any place that it is given, by name or by URL,
`write_blob` writes to any, and EXPLAIN ANALYZE runs a COPY. So a query is looked at as DuckDB parses it, before it is
bound: to bind it, places are opened.
"""

from __future__ import annotations

import re

import duckdb

from tidemark.errors import InvalidArgument

EXPLAINED = re.compile(r"\s*explain\s+(?:analyze\s+)?(.*)", re.IGNORECASE | re.DOTALL)
OF_ARGUMENTS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
"""The functions of which a query may read rows: they make them of their arguments."""
DO_MORE = frozenset({"json_serialize_plan", "write_blob", "write_log"})
"""The functions of values that write, or open what a text names. tests/delta/test_read_only.py calls all there are."""
NO_FILE = re.compile(r"[\w $-]+")
"""A name that DuckDB, where no table has it, does not take for that of a file: such a one has an ending."""
PARSED = """
    SELECT json_extract_string(parsed, '$.error_type'), json_array_length(parsed, '$.statements'),
           json_extract_string(parsed, '$..function_name'),
           len(json_extract(parsed, '$..function')),
           json_extract_string(json_extract(parsed, '$..function')::JSON, '$[*].function_name'),
           json_extract_string(parsed, '$..catalog_name'), json_extract_string(parsed, '$..schema_name'),
           json_extract_string(parsed, '$..table_name')
    FROM (SELECT json_serialize_sql($1::VARCHAR) AS parsed)
"""
SHOWN = ("", '"tables"', '"databases"')
"""What stands for the name of a table in DESCRIBE, SHOW TABLES and SHOW DATABASES."""
VIEWS = "SELECT lower(schema_name), lower(view_name) FROM duckdb_views()"


def check(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Raise InvalidArgument, or one of DuckDB's errors, unless *text* reads tables and views and nothing else."""
    explained = EXPLAINED.fullmatch(text)
    parsed = connection.execute(PARSED, [explained[1] if explained else text]).fetchone() or ()
    error, statements, functions, calls, of_rows, *names = parsed
    if error == "parser":
        connection.extract_statements(text)  # which says where the mistake is
    if statements != 1 or calls != len(of_rows):  # of DuckDB's statements, SELECT alone can be written as JSON
        remedy = "start it with SELECT, WITH, FROM, DESCRIBE, or EXPLAIN without options"
        msg = f"a query is one statement that reads, got {text!r}; {remedy}"
        raise InvalidArgument(msg)
    for name in sorted({*of_rows} - OF_ARGUMENTS | {*functions} & DO_MORE):
        msg = (
            f"a query reads tables and views, and {name} more than that; rows without a table are those of "
            f"{', '.join(sorted(OF_ARGUMENTS))}"
        )
        raise InvalidArgument(msg)
    _check_tables(connection, {*zip(*names, strict=True)})


def _check_tables(connection: duckdb.DuckDBPyConnection, names: set[tuple[str, str, str]]) -> None:
    """Raise InvalidArgument where one of *names*, of catalog, schema and table, might be that of a file."""
    others = [name for name in names if any(name[:2]) or not NO_FILE.fullmatch(name[2])]
    known = {*connection.execute(VIEWS).fetchall()} if others else set()
    known |= {("", table) for _, table in known} | {("", shown) for shown in SHOWN}
    for catalog, schema, table in others:
        if catalog or (schema.lower(), table.lower()) not in known:
            name = ".".join(filter(None, (catalog, schema, table)))
            msg = f"a query reads tables and views, got {name!r}; show tables lists them"
            raise InvalidArgument(msg)
