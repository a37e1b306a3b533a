"""Reads JSON from Kafka into a Delta table with Spark alone.

`append` writes every record. `merge` keeps the last record of each key, by `foreachBatch` and MERGE.
"""

from __future__ import annotations

import sys
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

FIELDS = "id string, status string, amount bigint, note string, at bigint"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "4",  # Spark's default is for a cluster: 200
    "spark.ui.enabled": "false",
}


def main(way: str, address: str, topic: str, table: str, jars: str) -> None:
    paths = ",".join(map(str, sorted(Path(jars).glob("*.jar"))))
    spark = SparkSession.builder.master("local[2]").config(map={**SETTINGS, "spark.jars": paths}).getOrCreate()
    raw = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    raw = raw.option("subscribe", topic).option("startingOffsets", "earliest")
    fields = F.from_json(F.col("value").cast("string"), FIELDS).alias("fields")
    parsed = raw.load().select(fields).select("fields.*")
    if way == "append":
        writing = parsed.writeStream.format("delta").option("path", table)
    else:
        DeltaTable.createIfNotExists(spark).location(table).addColumns(parsed.schema).execute()
        writing = parsed.writeStream.foreachBatch(lambda batch, _: merge(batch, table))
    writing.option("checkpointLocation", f"{table}_checkpoint").start().awaitTermination()


def merge(batch: DataFrame, table: str) -> None:
    """Replaces the rows of the batch's keys by their last records."""
    last = batch.groupBy("id").agg(F.max_by(F.struct("status", "amount", "note", "at"), "at").alias("last"))
    target = DeltaTable.forPath(batch.sparkSession, table).alias("old")
    merging = target.merge(last.select("id", "last.*").alias("new"), "old.id = new.id")
    merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
