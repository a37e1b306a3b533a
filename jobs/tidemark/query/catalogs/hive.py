"""Registers a warehouse in a Hive metastore, by Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.collecting import names_in
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES
from tidemark.query.spark_views import external_names, identifier, place_of, union_of
from tidemark.storage.warehouse import delta_tables, views

SESSION = {"spark.sql.catalogImplementation": "hive"}
"""Setting of a session whose tables are in a metastore."""
METASTORE = "spark.hadoop.hive.metastore.uris"


def register_in_metastore(spark: SparkSession, layout: Layout, database: str) -> list[str]:
    """Registers tables and views in the metastore of *spark*.

    They have the names of `spark_views`, with comments. What was registered before is replaced; tables that have
    vanished stay.

    Returns:
        The names of the views.

    Raises:
        InvalidArgument: the warehouse has no tables, or two that would have one name.
    """
    paths_by_name = delta_tables(layout.warehouse)
    external = external_names(layout, [path for paths in paths_by_name.values() for path in paths])
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
        comment = f"COMMENT {_literal(f'One row per {view.row}')}"
        spark.sql(f"CREATE OR REPLACE VIEW {identifier(view.name)} {comment} AS\n{view.select}")
    return sorted({*TABLES, *paths_by_name, *names_in(shown)})


def _register_table(spark: SparkSession, path: Path, name: str) -> None:
    """Makes the Delta table at *path* the external table *name*."""
    # Only its place is registered: columns are those of Delta's log, when it is read.
    place = place_of(path)
    if spark.catalog.tableExists(name):
        (at,) = spark.sql(f"DESCRIBE DETAIL {identifier(name)}").select("location").first() or ("",)
        if str(at).removeprefix("file:").rstrip("/") == place:
            return
        spark.sql(f"DROP TABLE {identifier(name)}")
    spark.sql(f"CREATE TABLE {identifier(name)} USING delta LOCATION {_literal(place)}")


def _register_union(spark: SparkSession, name: str, paths: Sequence[Path], external: Mapping[Path, str]) -> None:
    """Makes a view of all tables of one *name*."""
    table = TABLES.get(name)
    columns, select = union_of(name, paths, lambda path: identifier(external[path]))
    comments = {column.name: column.comment for column in table.columns} if table else {}
    header = ", ".join(f"{identifier(column)} COMMENT {_literal(comments.get(column, ''))}" for column in columns)
    comment = f"COMMENT {_literal(f'One row per {table.row}')} " if table else ""
    spark.sql(f"CREATE OR REPLACE VIEW {identifier(name)} ({header}) {comment}AS\n{select}")


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
