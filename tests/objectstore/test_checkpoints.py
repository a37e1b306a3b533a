"""Counts the requests of Spark's checkpoint, and proves its guard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from objectstore.counting import GET, LIST, PUT, Requests
from objectstore.lossy import lossy
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from support.shared_spark import one_spark
from tidemark.spark_session import have_checkpoints_written
from tidemark.stream.driver.ticks import Ticks

BATCHES = 10
KEPT_AT_MOST = 5
"""More plans than Spark keeps of two batches."""


@pytest.fixture(scope="module")
def spark(store: str) -> Iterator[SparkSession]:
    assert store
    with one_spark() as spark:
        yield spark


def run_batches(spark: SparkSession, checkpoint: Path, number: int) -> None:
    """Runs *number* batches of a query without rows, one after the other."""
    ticks = Ticks(spark, -1)
    query = ticks.rows.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(checkpoint)).start()
    for _ in range(number):
        query.processAllAvailable()
        ticks.tick()
    query.processAllAvailable()
    query.stop()


def test_a_batch_is_two_puts_and_two_heads_of_spark(spark: SparkSession, warehouse: Path, server_log: Path) -> None:
    have_checkpoints_written(spark, warehouse)
    # Drivers keep twenty batches. With two, Spark removes two files a batch from the start.
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    requests = Requests(server_log, warehouse)
    counted = []
    for number in (BATCHES, 2 * BATCHES):
        requests.since_last()
        run_batches(spark, warehouse / f"checkpoint_{number}", number)
        counted.append(requests.since_last())
    # The plan and the commit: each is looked for and put. Old ones are removed without a look.
    plans = [path for path in (warehouse / f"checkpoint_{2 * BATCHES}" / "offsets").iterdir() if path.name.isdecimal()]
    assert 0 < len(plans) < KEPT_AT_MOST
    assert {kind: counted[1][kind] - counted[0][kind] for kind in (PUT, LIST, GET)} == {
        PUT: 2 * BATCHES,
        LIST: 0,
        GET: 2 * BATCHES,
    }


def test_of_two_drivers_that_write_one_plan_the_second_fails(spark: SparkSession, warehouse: Path) -> None:
    have_checkpoints_written(spark, warehouse)
    checkpointing: Any = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    manager = getattr(getattr(checkpointing, "CheckpointFileManager$"), "MODULE$").create
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    plan = spark._jvm.org.apache.hadoop.fs.Path(str(warehouse / "7"))
    older, newer = (manager(plan.getParent(), conf).createAtomic(plan, False) for _ in range(2))  # noqa: FBT003
    for file, text in ((older, "older"), (newer, "newer")):
        file.write(bytearray(text.encode()))
    assert not (warehouse / "7").is_file(), "a plan is whole or not there"
    newer.close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        older.close()
    assert (warehouse / "7").read_text() == "newer"


@pytest.mark.parametrize("status", [500, None])
def test_a_plan_whose_answer_was_lost_is_not_anothers(
    spark: SparkSession, store: str, warehouse: Path, status: int | None
) -> None:
    have_checkpoints_written(spark, warehouse)
    checkpointing: Any = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    manager = getattr(getattr(checkpointing, "CheckpointFileManager$"), "MODULE$").create
    plan = spark._jvm.org.apache.hadoop.fs.Path(str(warehouse / "7"))
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    with lossy(store, status) as address:
        conf.set("fs.s3a.endpoint", address)
        conf.set("fs.s3a.impl.disable.cache", "true")
        own, other = (manager(plan.getParent(), conf).createAtomic(plan, False) for _ in range(2))  # noqa: FBT003
        for file, text in ((own, "own"), (other, "other")):
            file.write(bytearray(text.encode()))
        own.close()
        with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
            other.close()
    assert (warehouse / "7").read_text() == "own"


def test_a_cancelled_plan_is_not_written(spark: SparkSession, warehouse: Path) -> None:
    have_checkpoints_written(spark, warehouse)
    checkpointing: Any = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    manager = getattr(getattr(checkpointing, "CheckpointFileManager$"), "MODULE$").create
    plan = spark._jvm.org.apache.hadoop.fs.Path(str(warehouse / "7"))
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    file = manager(plan.getParent(), conf).createAtomic(plan, False)  # noqa: FBT003
    file.write(bytearray(b"text"))
    file.cancel()
    file.close()
    assert not (warehouse / "7").is_file()
