"""Amounts that real Spark reads per batch from folders, tables, hops."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from support.made_up import SOURCE, installed
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model import toml_operators
from tidemark.model.kinds import source_place
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import HOP
from tidemark.model.topology import SubTopology, Topology, parse
from tidemark.storage.delta.tables import create
from tidemark.stream.driver.ticks import Ticks
from tidemark.stream.journal.checkpoint import last_tick
from tidemark.stream.read import sources
from tidemark.stream.read.data_files import files_of_batch
from tidemark.stream.read.source_tables import SourceTables
from tidemark.stream.read.sources import collect, stream

TOML = """
name = "paced"
[operators.lines]
kind = "source"
{place}
fields = "n int, at bigint"
timestamp = "at"
bound = "1 s"
[operators.by_n]
kind = "repartition"
input = "lines"
key = ["n"]
columns = ["at"]
[operators.total]
kind = "aggregate"
input = "by_n"
aggregates = {{ n = "count(*)" }}
[operators.kept]
kind = "sink"
input = "total"
table = "kept"
"""
NOON = 1_400_000_000_000


def paced(place: str) -> Topology:
    return parse(tomllib.loads(TOML.format(place=place)), file="paced.toml")


def row(n: int) -> dict[str, int]:
    return {"n": n, "at": NOON + n}


def batches(spark: SparkSession, topology: Topology, sub: SubTopology, warehouse: Path) -> list[list[int]]:
    """Returns numbers per batch until the end, continuing the last call."""
    found: list[pl.DataFrame] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        files = files_of_batch(sub, warehouse, warehouse / "checkpoint", batch_id, None)
        found.append(collect(files.added_to(rows), sub.operators))

    read = stream(spark, sub, Layout(warehouse), topology.name, {}, Ticks(spark, last_tick(warehouse / "checkpoint")))
    writer = read.writeStream.foreachBatch(take).option("checkpointLocation", str(warehouse / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    name = sub.sources[0].name
    column = pl.col(name).struct.field("n") if isinstance(sub.sources[0], Source) else pl.col("offset")
    return [sorted(rows.select(column).to_series()) for rows in found if rows.height]


def test_five_files_are_three_batches_of_two_at_most(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(23):
        (folder / f"{n}.json").write_text(json.dumps(row(n)) + "\n")
    topology = paced('files = "in"\nmax_files = 2')
    read = batches(spark, topology, topology.sub_topologies[0], tmp_path)
    assert [len(batch) for batch in read] == [2] * 11 + [1]
    # Spark rewrites its notes about files in every tenth batch: each file is read once all the same.
    assert sorted(n for batch in read for n in batch) == [*range(23)]


def test_another_limit_counts_from_the_next_start_on(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    line = json.dumps(row(1)) + "\n"
    read = []
    for part, limit in enumerate(["max_files = 1", f"max_bytes = {2 * len(line)}", "max_bytes = 1", ""]):
        for n in range(3):
            (folder / f"{part}-{n}.json").write_text(line)
        topology = paced(f'files = "in"\n{limit}')
        read.append([len(batch) for batch in batches(spark, topology, topology.sub_topologies[0], tmp_path)])
    assert read == [[1, 1, 1], [2, 1], [1, 1, 1], [3]]


@pytest.mark.parametrize(
    ("limits", "read"),
    [("max_files = 2", [[0, 1], [2, 3], [4]]), ("max_bytes = 1", [[0], [1], [2], [3], [4]]), ("", [[0, 1, 2, 3, 4]])],
)
def test_a_delta_table_is_read_so_many_files_at_once(
    spark: SparkSession, tmp_path: Path, limits: str, read: list[list[int]]
) -> None:
    schema = pa.schema([("n", pa.int32()), ("at", pa.int64())])
    for n in range(5):
        write_deltalake(tmp_path / "in", pa.Table.from_pylist([row(n)], schema), mode="append")
    topology = paced(f'delta = "in"\n{limits}')
    assert batches(spark, topology, topology.sub_topologies[0], tmp_path) == read


def test_a_delta_table_is_read_on_after_a_change_of_another_column_and_a_lost_file_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("n", pa.int32()), ("at", pa.int64()), ("other", pa.string())])
    write_deltalake(tmp_path / "in", pa.Table.from_pylist([row(0)], schema))
    table, topology = f"delta.`{tmp_path}/in`", paced('delta = "in"')
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")

    def read() -> list[list[int]]:
        SourceTables(topology.sub_topologies[0], tmp_path, tmp_path / "checkpoint").refuse_other_columns()
        return batches(spark, topology, topology.sub_topologies[0], tmp_path)

    assert read() == [[0]]
    spark.sql(f"INSERT INTO {table} VALUES (1, {NOON}, 'x')")  # version 2
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN other TO another")
    assert read() == [[1]]
    spark.sql(f"INSERT INTO {table} VALUES (4, {NOON}, 'x')")
    before, after = ({*DeltaTable(str(tmp_path / "in"), version=number).file_uris()} for number in (3, 4))
    (added,) = after - before
    Path(added).unlink()
    with pytest.raises(StreamingQueryException) as lost:
        read()
    said = SourceTables(topology.sub_topologies[0], tmp_path, tmp_path / "checkpoint").explained(lost.value)
    assert "the stream has yet to read version 4, whose files are gone" in str(said)


def test_a_place_of_a_package_is_read_as_a_table_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path, {"sources": SOURCE}))
    monkeypatch.setattr(source_place.RECORD_PLACES, "_kinds", dict(source_place.RECORD_PLACES))
    import_module("made_up_sources")
    toml_operators.operator_form.cache_clear()
    try:
        topology = paced('orc = "in"')
    finally:
        toml_operators.operator_form.cache_clear()
    for n in range(2):
        spark.createDataFrame([row(n)], "n int, at bigint").coalesce(1).write.mode("append").orc(str(tmp_path / "in"))
    assert batches(spark, topology, topology.sub_topologies[0], tmp_path) == [[0, 1]]


def test_a_hop_has_the_limits_of_a_delta_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_FILES_PER_BATCH", 2)
    topology = paced('topic = "lines"')
    path = Layout(tmp_path).hop(topology.name, "lines", "by_n")
    create(path, arrow_schema(HOP), description="a hop")
    for batch_id in range(5):
        hop = rows_of(HOP, [{"seq": 0, "partition": 0}], topology="paced", sub_topology="lines", batch_id=batch_id)
        write_deltalake(path, hop, mode="append")
    behind = topology.sub_topologies[1]
    assert batches(spark, topology, behind, tmp_path) == [[0, 1], [2, 3], [4]]
