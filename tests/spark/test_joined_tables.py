"""A joined table whose rows are not simply those of its files, compared with what Spark reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tidemark.stream.read.joined_tables import Reference


def test_a_table_of_others_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    table, seen = f"delta.`{tmp_path}/places`", pa.array([0, 1_000_001, None], pa.timestamp("us", "UTC"))
    columns = {"id": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int32()), "seen": seen}
    write_deltalake(tmp_path / "places", pa.table(columns))
    in_driver = Reference(tmp_path)
    plain = in_driver("places")
    features = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({features}, 'delta.enableTypeWidening' = 'true')")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN n TO m")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN m TYPE bigint")
    spark.sql(f"DELETE FROM {table} WHERE id = 'b'")
    rows = in_driver("places")
    assert rows.select("id", "m").sort("id").rows() == [("a", 1), ("c", 3)]
    # The type of a column does not depend on who reads it.
    assert (rows.columns, rows.schema["seen"]) == (["id", "m", "seen"], plain.schema["seen"])

    in_driver.versions = {"places": in_driver.version("places")}
    in_driver.leave_copy("places", tmp_path / "copies")
    in_task = Reference(tmp_path, in_driver.versions, copies=tmp_path / "copies")
    assert in_task("places").equals(rows)
