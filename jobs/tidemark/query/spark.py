"""Reads the Delta tables of a warehouse by Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES, Table
from tidemark.query.spark_views import identifier
from tidemark.storage.delta.current_view import current_rows
from tidemark.storage.warehouse import changes_of, delta_tables, is_table, named_in, stream_tables, views


def read_table(spark: SparkSession, layout: Layout, topology: str, table: Table) -> DataFrame:
    """Returns all rows of *table* in *topology*, of all sub-topologies.

    There are none if the table has not been written yet.
    """
    report = layout.report_table(topology, table.name)
    paths = stream_tables(layout, topology, table.name) if table.written_by == "stream" else [report]
    frames = [read(spark, path) for path in paths if is_table(path)]
    return _union([no_rows(spark, table), *frames]).select(*table.names)


def register(spark: SparkSession, layout: Layout, *statements: str, topology: str | None = None) -> None:
    """Makes tables and views of a warehouse temporary views of *spark*.

    They have the same names as in `tidemark sql`. A table that is not written yet has no rows. Hours are those of the
    session's time zone: set it to UTC.

    Args:
        spark: the session.
        layout: the warehouse.
        statements: SQL; only tables and views that it names are registered. Without any, all are.
        topology: the topology whose tables are read; None: all topologies.
    """
    paths_by_name = delta_tables(layout.warehouse, topology)
    # A table of a sink hides a view of the same name.
    view_by_name = {view.name: view for view in views() if view.name not in paths_by_name}
    names = {*TABLES, *paths_by_name, *view_by_name}
    for name in named_in(" ".join(statements or names), names, view_by_name.values()):
        if name in view_by_name:
            frame = spark.sql(view_by_name[name].select)
        else:
            parts = [_current(spark, path) for path in paths_by_name.get(name, ())]
            frame = _union([no_rows(spark, TABLES[name]), *parts] if name in TABLES else _sink_frames(parts))
        frame.createOrReplaceTempView(name)


def _current(spark: SparkSession, path: Path) -> DataFrame:
    """Returns the Delta table at *path*.

    A table with current rows includes the rows appended since it was merged.
    """
    changes = changes_of(path)
    if changes is None:
        return read(spark, path)
    names = {path: "{table}", changes: "{changes}"}
    text = current_rows(path, changes, names.__getitem__, identifier)
    return spark.sql(text, table=read(spark, path), changes=read(spark, changes))


def no_rows(spark: SparkSession, table: Table) -> DataFrame:
    """Returns a frame with the columns of *table* and no rows.

    Spark's planner knows that it is empty.
    """
    # Not createDataFrame: this is an empty relation, which the planner removes.
    columns = (f"CAST(NULL AS {column.type}) AS {identifier(column.name)}" for column in table.columns)
    return spark.sql(f"SELECT {', '.join(columns)} WHERE false")


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    """Returns all rows of *frames*."""
    # An older version wrote fewer columns: what a frame lacks is null in its rows.
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


def _sink_frames(frames: Sequence[DataFrame]) -> Iterator[DataFrame]:
    """Yields *frames* of sinks' tables of one name, with the same types."""
    instants: set[str] = set()
    for frame in frames:
        instants.update(field.name for field in frame.schema if field.dataType == TimestampType())
    for frame in frames:
        # Older versions wrote epoch ms in columns that are timestamps in other frames.
        in_ms = [field.name for field in frame.schema if field.name in instants and field.dataType == LongType()]
        yield frame.withColumns({name: F.timestamp_millis(F.col(name)) for name in in_ms}) if in_ms else frame


def read(spark: SparkSession, path: Path) -> DataFrame:
    """Returns the Delta table at *path*."""
    return spark.read.format("delta").load(str(path))
