"""Waits of a batch for task slots that another stream uses."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from tidemark.clock import wall_clock_ms
from tidemark.control.process import wait_until
from tidemark.stream.driver.task_slots import TaskSlots
from tidemark.stream.journal.batch import NOT_QUEUED, QueueWait

WAIT_MS = 2_000
PATIENCE_S = 60


def occupy(context: SparkContext, slots: TaskSlots, released: Path) -> None:
    """Runs a batch of `play/other` in both slots until *released* exists."""

    def wait(number: int) -> None:
        released.with_name(f"task_{number}").touch()
        while not released.exists():
            time.sleep(0.01)

    context.setLocalProperty("spark.scheduler.pool", "play/other")
    with slots.batch("play/other"):
        context.parallelize(range(2), 2).foreach(wait)


def test_a_job_without_stages_is_no_wait(spark):
    context, slots = spark.sparkContext, TaskSlots(wall_clock_ms)
    with slots.batch("play/other"), slots.batch("play/own"):
        since_ms = wall_clock_ms()
        context.setJobGroup("no-rows", "a batch over no rows")
        assert context.emptyRDD().collect() == []
        wait_until(lambda: len(context.statusTracker().getJobIdsForGroup("no-rows")) > 0, "the job", PATIENCE_S)
        assert slots.queued("play/own", context, since_ms) == NOT_QUEUED
    context.setLocalProperty("spark.jobGroup.id", None)


def test_the_wait_behind_another_stream_is_measured_and_named(spark, tmp_path):
    context, slots = spark.sparkContext, TaskSlots(wall_clock_ms)
    released = tmp_path / "released"

    def start(began_at_ms: list[int], queued: list[QueueWait]) -> StreamingQuery:
        """Starts a query with a checkpoint of its own.

        Spark may end a batch of the previous query after its `stop()`.
        """

        def batch(rows: DataFrame, batch_id: int) -> None:
            if batch_id == 0:  # the first batch of a rate source has no rows, so no task
                return
            with slots.batch("play/own"):
                began_at_ms.append(wall_clock_ms())
                rows.toArrow()
                queued.append(slots.queued("play/own", context, began_at_ms[-1]))

        rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        query = rows.writeStream.foreachBatch(batch).trigger(processingTime="1 second")
        return query.option("checkpointLocation", str(tmp_path / f"checkpoint_{len([*tmp_path.iterdir()])}")).start()

    alone = []
    query = start([], alone)
    wait_until(lambda: alone != [], "a batch without others", PATIENCE_S)
    query.stop()
    assert set(alone) == {NOT_QUEUED}
    began_at_ms, queued = [], []
    other = threading.Thread(target=occupy, args=[context, slots, released])
    other.start()
    try:
        wait_until(lambda: len([*tmp_path.glob("task_*")]) == 2, "both slots taken", PATIENCE_S)
        query = start(began_at_ms, queued)
        wait_until(lambda: began_at_ms != [], "a batch behind another", PATIENCE_S)
        wait_until(lambda: len(context.statusTracker().getActiveJobsIds()) == 2, "the job of that batch", PATIENCE_S)
        time.sleep(WAIT_MS / 1_000)  # this is the wait that is measured
    finally:
        released.touch()
    wait_until(lambda: queued != [], "the end of that batch", PATIENCE_S)
    ended_ms = wall_clock_ms()
    query.stop()
    other.join()
    behind = queued[0]
    assert behind == QueueWait(behind.ms, ("play/other",))
    assert WAIT_MS * 0.5 < behind.ms <= ended_ms - began_at_ms[0]
