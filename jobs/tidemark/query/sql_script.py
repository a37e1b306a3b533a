"""Writes the script that gives a catalog of Spark the tables and views of a warehouse.

Each Delta table becomes an external table. Over them there is one view per name, as in `tidemark sql`, and the views of
`tidemark/views`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES
from tidemark.query.spark_views import external_names, identifier, location_of, union_of
from tidemark.query.views import views
from tidemark.selection import names_in
from tidemark.storage.warehouse import delta_tables

TRINO_CATALOG = "delta"


def script(layout: Layout, *, schema: str, catalog: str | None = None) -> str:
    """Returns statements of Spark SQL, each ended by `;`, and calls for Trino as comments.

    If the script is run again, it changes no table. It replaces the views, so that they show new tables.

    Args:
        layout: paths of the warehouse.
        schema: the schema for tables and views, which is created.
        catalog: the catalog that has the schema, or None for the session's catalog.

    Raises:
        InvalidArgument: the warehouse has no tables, or two that would have one name.
    """
    paths_by_name = delta_tables(layout.warehouse)
    shown = {*TABLES, *paths_by_name, *names_in(views())}
    external = external_names(layout, [path for paths in paths_by_name.values() for path in paths])
    if taken := sorted(shown & {*external.values()}):
        msg = f"{', '.join(taken)}: the table of a stream and a view would have one name; rename the sink's table"
        raise InvalidArgument(msg)
    full_name = ".".join(map(identifier, filter(None, (catalog, schema))))
    # A view keeps the time zone of the session that made it, and the hours of views are UTC.
    statements = ["SET TIME ZONE 'UTC'", f"CREATE SCHEMA IF NOT EXISTS {full_name}", f"USE {full_name}"]
    # Only the location is registered: columns are those of Delta's log, when the table is read.
    for path, name in external.items():
        statements.append(
            f"CREATE TABLE IF NOT EXISTS {identifier(name)} USING DELTA LOCATION {_literal(_location(path))}"
        )
    for name in sorted({*TABLES, *paths_by_name}):
        statements.append(_union(name, paths_by_name.get(name, ()), external))
    for view in views():
        if view.name not in paths_by_name:  # a table of a sink hides a view
            comment = f"COMMENT {_literal(f'One row per {view.row}')}"
            statements.append(f"CREATE OR REPLACE VIEW {identifier(view.name)} {comment} AS\n{view.select}")
    return "\n\n".join([*(f"{statement};" for statement in statements), "\n".join(_for_trino(external, schema))])


def _union(name: str, paths: Sequence[Path], external: Mapping[Path, str]) -> str:
    """Returns the statement that makes a view of all tables of one *name*."""
    table = TABLES.get(name)
    columns, select = union_of(name, paths, lambda path: identifier(external[path]))
    comments = {column.name: column.comment for column in table.columns} if table else {}
    header = ", ".join(f"{identifier(column)} COMMENT {_literal(comments.get(column, ''))}" for column in columns)
    comment = f"COMMENT {_literal(f'One row per {table.row}')} " if table else ""
    return f"CREATE OR REPLACE VIEW {identifier(name)} ({header}) {comment}AS\n{select}"


def _for_trino(external: Mapping[Path, str], schema: str) -> Iterator[str]:
    """Yields comments with a call for each table. No test runs them in Trino."""
    yield f"-- The same tables in Trino (not tried), with a catalog `{TRINO_CATALOG}` that permits register_table:"
    for path, name in external.items():
        arguments = {"schema_name": schema, "table_name": name, "table_location": _location(path)}
        texts = ", ".join(f"{key} => {_text(value)}" for key, value in arguments.items())
        yield f"-- CALL {TRINO_CATALOG}.system.register_table({texts});"


def _location(path: Path) -> str:
    """Returns the URL of a table: without a scheme Spark would look in its default file system."""
    location = location_of(path)
    return location if "://" in location else f"file://{location}"


def _literal(text: str) -> str:
    """Returns *text* as a literal of Spark SQL, which would replace a variable `${…}` in it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{") + "'"


def _text(text: str) -> str:
    """Returns *text* as a literal of standard SQL."""
    return "'" + text.replace("'", "''") + "'"
