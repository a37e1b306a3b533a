"""Reads the Delta tables of a warehouse by Spark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES, Table
from tidemark.query.spark_views import union_of
from tidemark.query.views import names_used_in, views
from tidemark.storage.warehouse import delta_tables, is_table, stream_tables


def read_table(spark: SparkSession, layout: Layout, topology: str, table: Table) -> DataFrame:
    """Returns all rows of *table* in *topology*, of all sub-topologies; none if it has not been written yet."""
    report = layout.report_table(topology, table.name)
    paths = stream_tables(layout, topology, table.name) if table.written_by == "stream" else [report]
    return rows_of(spark, table.name, [path for path in paths if is_table(path)])


def register(spark: SparkSession, layout: Layout, *statements: str, topology: str | None = None) -> None:
    """Makes tables and views of a warehouse temporary views of *spark*, with the same names as in `tidemark sql`.

    A table that is not written yet has no rows. Hours are those of the session's time zone: set it to UTC.

    Args:
        spark: the session.
        layout: the warehouse.
        statements: SQL; only tables and views that it names are registered. Without any, all are.
        topology: the topology whose tables are read; None for all topologies.
    """
    paths_by_name = delta_tables(layout.warehouse, topology)
    # A table of a sink hides a view of the same name.
    view_by_name = {view.name: view for view in views() if view.name not in paths_by_name}
    names = {*TABLES, *paths_by_name, *view_by_name}
    for name in names_used_in(" ".join(statements or names), names, view_by_name.values()):
        if name in view_by_name:
            frame = spark.sql(view_by_name[name].select)
        else:
            frame = rows_of(spark, name, paths_by_name.get(name, ()))
        frame.createOrReplaceTempView(name)


def rows_of(spark: SparkSession, name: str, paths: Sequence[Path]) -> DataFrame:
    """Returns the current rows of the Delta tables at *paths*, which have one *name*.

    Without paths the frame has the columns of the declared table, and Spark's planner knows that it is empty.
    """
    tables: dict[str, Any] = {}

    def read_by(path: Path) -> str:
        table = f"t{uuid.uuid4().hex}"
        tables[table] = read(spark, path)
        return table

    _, select = union_of(name, paths, read_by)
    # Names of columns may have braces, which Spark would take for a table.
    select = select.replace("{", "{{").replace("}", "}}")
    for table in tables:
        select = select.replace(table, f"{{{table}}}")
    return spark.sql(select, **tables)


def read(spark: SparkSession, path: Path) -> DataFrame:
    """Returns the Delta table at *path*."""
    return spark.read.format("delta").load(str(path))
