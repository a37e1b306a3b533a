"""Reads JSON from Kafka into a Delta table with Spark alone.

`append` writes every record. `merge` keeps the last record of each key, by `foreachBatch` and MERGE. `state` and
`state_pandas` write each record with another value than the one before, which `transformWithState` and
`transformWithStateInPandas` keep.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    import pandas as pd

FIELDS = "id string, status string, amount bigint, note string, at bigint"
STATE_STORES = "org.apache.spark.sql.execution.streaming.state"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "4",  # Spark's default is for a cluster: 200
    "spark.ui.enabled": "false",
    # transformWithState demands RocksDB.
    "spark.sql.streaming.stateStore.providerClass": f"{STATE_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
VALUE = ["status", "amount", "note"]


def main(way: str, address: str, topic: str, table: str, jars: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = ",".join(map(str, sorted(Path(jars).glob("*.jar"))))
    spark = SparkSession.builder.master("local[2]").config(map={**SETTINGS, "spark.jars": paths}).getOrCreate()
    raw = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    raw = raw.option("subscribe", topic).option("startingOffsets", "earliest")
    fields = F.from_json(F.col("value").cast("string"), FIELDS).alias("fields")
    parsed = raw.load().select(fields).select("fields.*")
    if way != "merge":
        rows = parsed if way == "append" else changes(way, parsed)
        writing = rows.writeStream.format("delta").option("path", table)
    else:
        DeltaTable.createIfNotExists(spark).location(table).addColumns(parsed.schema).execute()
        writing = parsed.writeStream.foreachBatch(lambda batch, _: merge(batch, table))
    writing.option("checkpointLocation", f"{table}_checkpoint").start().awaitTermination()


def changes(way: str, parsed: DataFrame) -> DataFrame:
    """Returns the rows that change the value of their key."""
    keyed = parsed.groupBy("id")
    if way == "state":
        return keyed.transformWithState(ChangedRows(), FIELDS, "Append", "None")
    return keyed.transformWithStateInPandas(ChangedFrames(), FIELDS, "Append", "None")


class ChangedRows(StatefulProcessor):
    """Emits the rows of a key that change its value."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", "status string, amount bigint, note string")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: object) -> Iterator[Row]:  # noqa: N802, N803
        last = before = self._value.get()
        for row in sorted(rows, key=lambda row: row.at):  # a shuffle promises no order
            value = (row.status, row.amount, row.note)
            if value != last:
                yield row
                last = value
        if last != before:
            self._value.update(last)

    def close(self) -> None:
        """Has nothing to close."""


class ChangedFrames(ChangedRows):
    """The same with frames of pandas."""

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd  # only this way needs it

        frame = pd.concat(rows, ignore_index=True).sort_values("at", ignore_index=True)
        before = frame[VALUE].shift()
        before.iloc[0] = self._value.get() or (None, None, None)
        yield frame[(frame[VALUE] != before).any(axis=1)]
        self._value.update(tuple(frame[VALUE].iloc[-1]))


def merge(batch: DataFrame, table: str) -> None:
    """Replaces the rows of the batch's keys by their last records."""
    last = batch.groupBy("id").agg(F.max_by(F.struct("status", "amount", "note", "at"), "at").alias("last"))
    target = DeltaTable.forPath(batch.sparkSession, table).alias("old")
    merging = target.merge(last.select("id", "last.*").alias("new"), "old.id = new.id")
    merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
