"""A joined table whose rows are not simply those of its files, compared with what Spark reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from support.play import Play
from support.separate_executors import Apart
from support.topologies import operators, sink, source, table, topology_of
from tidemark.stream.read.joined_tables import Reference

T = 1_400_000_000_000
TOML = topology_of(events=source()) + operators(
    newest=table(key=["id"]),
    near={"kind": "join", "input": "newest", "delta": "places", "on": {"id": "id"}},
    out=sink("near", table="out"),
)


def test_a_table_of_others_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    places, seen = f"delta.`{tmp_path}/places`", pa.array([0, 1_000_001, None], pa.timestamp("us", "UTC"))
    columns = {"id": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int32()), "seen": seen}
    write_deltalake(tmp_path / "places", pa.table(columns))
    in_driver = Reference(tmp_path)
    plain = in_driver("places")
    features = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"ALTER TABLE {places} SET TBLPROPERTIES ({features}, 'delta.enableTypeWidening' = 'true')")
    spark.sql(f"ALTER TABLE {places} RENAME COLUMN n TO m")
    spark.sql(f"ALTER TABLE {places} ALTER COLUMN m TYPE bigint")
    spark.sql(f"DELETE FROM {places} WHERE id = 'b'")
    rows = in_driver("places")
    assert rows.select("id", "m").sort("id").rows() == [("a", 1), ("c", 3)]
    # The type of a column does not depend on who reads it.
    assert (rows.columns, rows.schema["seen"]) == (["id", "m", "seen"], plain.schema["seen"])

    # Tasks of shards have no session.
    play = Play(TOML, tmp_path).in_shards(2, Apart)
    for batch, (event, match) in enumerate((("a", 1), ("c", 3))):
        play.batch([play.row("events", T + batch, id=event, v=batch)], at_ms=T + batch)
        assert [row["m"] for row in play.rows("out")][batch:] == [match]
