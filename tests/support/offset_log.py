"""Writes a checkpoint with the installed Spark, and describes it.

`python -m support.offset_log FOLDER` adds the files of one plan and its commit to a folder of samples
(`tests/unit/offset_logs`). CONTRIBUTING.md has the whole command.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyspark
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.local import broker
from tidemark.local.broker import create_topics
from tidemark.spark_session import session

TOPIC = "orders"
RECORDS = {0: 3, 1: 1}
"""Records of the topic by partition."""


def write_checkpoint(spark: SparkSession, address: str, folder: Path, topic: str = TOPIC) -> tuple[int, str]:
    """Runs a query until it has read all of three sources.

    The sources are, in this order: Spark's rate source, *topic* with RECORDS, and a Delta table whose versions 0 to 3
    have a row each.

    Args:
        spark: the session.
        address: a broker.
        folder: gets the folders `table` and `checkpoint`.
        topic: one that the broker does not have.

    Returns:
        The newest batch that was completed, and the id of the table.
    """
    _send(address, topic, RECORDS)
    for number in range(3):
        write_deltalake(str(folder / "table"), pa.table({"value": [str(number)]}), mode="append")
    ticks = spark.readStream.format("rate").load()
    kafka = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**kafka).load()
    rows = spark.readStream.format("delta").load(str(folder / "table"))
    united = ticks.select(F.col("value").cast("string")).union(records.select(F.col("value").cast("string")))
    written = united.union(rows.select("value")).writeStream.format("noop").trigger(availableNow=True)
    checkpointed = written.option("checkpointLocation", str(folder / "checkpoint"))
    checkpointed.start().awaitTermination()
    # The first run reads the table's initial content, and plans it in another form than new versions.
    write_deltalake(str(folder / "table"), pa.table({"value": ["3"]}), mode="append")
    checkpointed.start().awaitTermination()
    newest = max(int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*"))
    return newest, str(DeltaTable(str(folder / "table")).metadata().id)


def _send(address: str, topic: str, records: Mapping[int, int]) -> None:
    create_topics(address, {topic: len(records)})
    producer = Producer({"bootstrap.servers": address})
    for partition, n in records.items():
        for number in range(n):
            producer.produce(topic, str(number), partition=partition)
    if producer.flush(30):
        msg = f"{address} has not taken all records"
        raise OSError(msg)


def main(samples: Path) -> None:
    """Adds a sample of the installed Spark to the folder *samples*."""
    with TemporaryDirectory() as name:
        home = Path(name)
        started = broker.start(home / "broker")
        spark = session("offset log")
        try:
            newest, _ = write_checkpoint(spark, started.address, home)
        finally:
            spark.stop()
            broker.stop(home / "broker")
        for kind in ("offsets", "commits"):
            target = samples / pyspark.__version__ / kind
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(home / "checkpoint" / kind / str(newest), target / str(newest))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
