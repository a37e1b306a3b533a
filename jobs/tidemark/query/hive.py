"""Registers a warehouse in a Hive metastore, by Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType, TimestampType

from tidemark.collecting import names_in
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES, Table
from tidemark.query.spark import identifier
from tidemark.storage.delta.current_view import current_rows
from tidemark.storage.warehouse import changes_of, delta_tables, no_tables, views

SESSION = {"spark.sql.catalogImplementation": "hive"}
"""Setting of a session whose tables are in a metastore."""
METASTORE = "spark.hadoop.hive.metastore.uris"


def register_in_metastore(spark: SparkSession, layout: Layout, database: str) -> list[str]:
    """Registers tables and views in the metastore of *spark*.

    Each Delta table is an external table `<topology>__<sub_topology>__<table>` or, of a report, `<topology>__<table>`.
    Over these there is one view per name, as in `tidemark sql`, with comments. Rows are always the current ones. What
    was registered before is replaced; tables that have vanished stay.

    Returns:
        The names of the views.

    Raises:
        InvalidArgument: the warehouse has no tables, or two that would have one name.
    """
    paths_by_name = delta_tables(layout.warehouse)
    external = _external_names(layout, [path for paths in paths_by_name.values() for path in paths])
    folder = layout.warehouse / "metastore" / database
    # A database has a folder, and `DROP DATABASE … CASCADE` removes it: it must not be that of the tables.
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {identifier(database)} LOCATION {_literal(str(folder))}")
    spark.sql(f"USE {identifier(database)}")
    for path, name in external.items():
        _register_table(spark, path, name)
    for name in sorted({*TABLES, *paths_by_name}):
        _register_union(spark, name, paths_by_name.get(name, ()), external)
    shown = [view for view in views() if view.name not in paths_by_name]  # a table of a sink hides a view
    for view in shown:
        comment = f"COMMENT {_literal(view.row)}"
        spark.sql(f"CREATE OR REPLACE VIEW {identifier(view.name)} {comment} AS\n{view.select}")
    return sorted({*TABLES, *paths_by_name, *names_in(shown)})


def _external_names(layout: Layout, paths: Sequence[Path]) -> dict[Path, str]:
    """Returns the name of the external table of each path."""
    names = {path: "__".join(path.relative_to(layout.warehouse).parts[1:]) for path in paths}
    for name, count in Counter(name.lower() for name in names.values()).items():
        if count > 1:
            places = ", ".join(str(path) for path, other in names.items() if other.lower() == name)
            msg = f"{places} would both be the table {name} of the metastore; rename a topology or an operator"
            raise InvalidArgument(msg)
    if not names:
        raise no_tables(layout.warehouse)
    return names


def _register_table(spark: SparkSession, path: Path, name: str) -> None:
    """Makes the Delta table at *path* the external table *name*."""
    # Only its place is registered: columns are those of Delta's log, when it is read.
    place = path.absolute() if "://" not in str(path) else path
    if spark.catalog.tableExists(name):
        (at,) = spark.sql(f"DESCRIBE DETAIL {identifier(name)}").select("location").first() or ("",)
        if str(at).removeprefix("file:").rstrip("/") == str(place):
            return
        spark.sql(f"DROP TABLE {identifier(name)}")
    spark.sql(f"CREATE TABLE {identifier(name)} USING delta LOCATION {_literal(str(place))}")


def _register_union(spark: SparkSession, name: str, paths: Sequence[Path], external: Mapping[Path, str]) -> None:
    """Makes a view of all tables of one *name*.

    Without tables it has no rows.
    """
    table = TABLES.get(name)
    schemas = {path: spark.table(identifier(external[path])).schema for path in paths}
    columns = _columns(table, list(schemas.values()))
    empty = ", ".join(f"CAST(NULL AS {type_}) AS {identifier(column)}" for column, type_ in columns.items())
    parts = [f"SELECT {empty} WHERE false"]
    for path, schema in schemas.items():
        shown = ", ".join(_shown(schema, columns))
        parts.append(f"SELECT {shown} FROM {_current(path, external)}")
    comments = {column.name: column.comment for column in table.columns} if table else {}
    header = ", ".join(f"{identifier(column)} COMMENT {_literal(comments.get(column, ''))}" for column in columns)
    comment = f"COMMENT {_literal(table.row)} " if table else ""
    union = "\nUNION ALL\n".join(parts)
    spark.sql(f"CREATE OR REPLACE VIEW {identifier(name)} ({header}) {comment}AS\n{union}")


def _columns(table: Table | None, schemas: Sequence[StructType]) -> dict[str, str]:
    """Returns the columns of a union with Spark's types.

    A column that is an instant in one table is one in all: older versions wrote epoch ms.
    """
    if table:
        return {column.name: column.type for column in table.columns}
    columns: dict[str, str] = {}
    for schema in schemas:
        for field in schema:
            if field.name not in columns or field.dataType == TimestampType():
                columns[field.name] = field.dataType.simpleString()
    return columns


def _shown(schema: StructType, columns: Mapping[str, str]) -> Iterator[str]:
    """Yields the columns of a union from a table with *schema*."""
    types = {field.name: field.dataType for field in schema}
    for column, type_ in columns.items():
        name = identifier(column)
        if column not in types:
            yield f"CAST(NULL AS {type_}) AS {name}"
        elif type_ == "timestamp" and types[column] == LongType():
            yield f"timestamp_millis({name}) AS {name}"
        else:
            yield name


def _current(path: Path, external: Mapping[Path, str]) -> str:
    """Returns the SQL that reads a table.

    A table with current rows includes the rows appended since it was merged.
    """
    changes = changes_of(path)
    if changes is None:
        return identifier(external[path])
    return f"({current_rows(path, changes, lambda place: identifier(external[place]), identifier)})"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
