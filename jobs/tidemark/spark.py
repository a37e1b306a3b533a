"""The batch jobs' edge to Spark: a session, and the tables of a topology as frames (ring 2)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from tidemark.errors import InvalidArgument
from tidemark.library import PACKAGE
from tidemark.object_path import ObjectPath
from tidemark.spec.layout import Layout
from tidemark.spec.spark_settings import SPARK_NEEDED, WITHOUT_SPARK, driver_address, is_local, jars
from tidemark.spec.tables import TABLES, Table
from tidemark.warehouse import delta_tables, views

PROJECT = Path(__file__).resolve().parents[2]
SECRETS = "TIDEMARK_SPARK_SECRETS"
"""Names a properties file with `spark.authenticate.secret`, which a standalone cluster shares with its drivers."""


def session(name: str) -> SparkSession:
    """Return the session of the job *name*: as spark-submit set it up, else with the project's settings and local jars.

    A job that Airflow tries without Spark ends here, for Airflow to submit it.
    """
    if WITHOUT_SPARK in os.environ:
        sys.exit(SPARK_NEEDED)
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # set by spark-submit for the Python it starts
        SparkContext._ensure_initialized()  # only with a JVM does SparkConf know what spark-submit was told
        builder = builder.config(map={**_secret(SparkConf().get("spark.master", "") or "")})
    else:
        usual = dict(settings(PROJECT / "docker" / "spark-defaults.conf"))
        address = driver_address("local")
        builder = builder.config(map={**usual, **address, "spark.jars": ",".join(jars(PROJECT))})
    found = builder.getOrCreate()
    context = found.sparkContext
    if is_local(str(context.master)):  # workers run what this process runs; those of other machines are told
        context.environment["PYTHONPATH"], context.pythonExec = str(PACKAGE.parent), sys.executable
    return found


def _secret(master: str) -> dict[str, str]:
    """The secret of the standalone cluster *master*; nothing for any other, of which Spark makes it.

    It comes from a file, and after the start of the JVM: every user of a machine can read the arguments of processes.
    """
    if not master.startswith("spark://"):
        return {}
    key = "spark.authenticate.secret"
    file = os.environ.get(SECRETS)
    found = dict(settings(Path(file))) if file and Path(file).is_file() else {}
    if key not in found:
        msg = (
            f"{SECRETS} must name a properties file with {key}, that of {master} and its workers, got {file!r}; "
            "docs/cluster.md says how to make one"
        )
        raise InvalidArgument(msg)
    return {key: found[key]}


def have_checkpoints_written(spark: SparkSession, place: Path) -> None:
    """Have the queries of *spark* write the files of checkpoints in *place* as its kind has them whole or not at all.

    That is by one PUT in an object store, where Spark's usual way, a rename, is a copy.
    """
    if isinstance(place, ObjectPath):
        manager = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
        spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", manager)


def settings(file: Path) -> Iterator[tuple[str, str]]:
    """Key and value of each line of a spark-defaults.conf."""
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.strip().partition(" ")
        if key and not key.startswith("#"):
            yield key, value.strip()


def read_table(spark: SparkSession, layout: Layout, topology: str, table: Table) -> DataFrame:
    """All rows of *table* in *topology*, the sub-topologies' together; none when nobody has written it yet."""
    report = layout.report_table(topology, table.name)
    paths = stream_tables(layout, topology, table.name) if table.written_by == "stream" else [report]
    frames = [read(spark, path) for path in paths if is_table(path)]
    return _together([no_rows(spark, table), *frames]).select(*table.names)


def register(spark: SparkSession, layout: Layout) -> None:
    """Make every table and view of a warehouse a temporary view, under the names that `tidemark sql` has for them.

    A table that nobody has written yet has no rows. Hours are those of the session's time zone: set it to UTC.
    """
    frames = {name: [no_rows(spark, table)] for name, table in TABLES.items()}
    for name, paths in delta_tables(layout.warehouse).items():
        frames.setdefault(name, []).extend(read(spark, path) for path in paths)
    for name, parts in frames.items():
        _together(parts if name in TABLES else _of_sinks(parts)).createOrReplaceTempView(name)
    for view in views():
        if view.name not in frames:
            spark.sql(view.select).createOrReplaceTempView(view.name)


def no_rows(spark: SparkSession, table: Table) -> DataFrame:
    """A frame with the columns of *table*, of which Spark's planner knows that it is empty."""
    columns = (f"CAST(NULL AS {column.type}) AS `{column.name}`" for column in table.columns)
    return spark.sql(f"SELECT {', '.join(columns)} WHERE false")


def _together(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows of *frames*; a column that one lacks, as one that an older version wrote may, is null in its rows."""
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


def _of_sinks(frames: Sequence[DataFrame]) -> Iterator[DataFrame]:
    """*frames* of sinks' tables of one name; a timestamp in one is no epoch ms of an older version in others."""
    instants = {field.name for frame in frames for field in frame.schema if field.dataType == TimestampType()}
    for frame in frames:
        in_ms = [field.name for field in frame.schema if field.name in instants and field.dataType == LongType()]
        yield frame.withColumns({name: F.timestamp_millis(F.col(name)) for name in in_ms}) if in_ms else frame


def read(spark: SparkSession, path: Path) -> DataFrame:
    """The Delta table at *path*."""
    return spark.read.format("delta").load(str(path))


def stream_tables(layout: Layout, topology: str, table: str) -> list[Path]:
    """Where *table* lies, one path for each sub-topology that has created it."""
    pattern = layout.stream_table(topology, "*", table).relative_to(layout.warehouse)
    return [path for path in sorted(layout.warehouse.glob(str(pattern))) if is_table(path)]


def is_table(path: Path) -> bool:
    """Whether there is a Delta table at *path*."""
    return (path / "_delta_log").is_dir()
