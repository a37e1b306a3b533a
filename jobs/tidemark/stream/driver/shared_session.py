"""Shares one Spark session between the streams of a process."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidemark.clock import wall_clock_ms
from tidemark.spark_session import session
from tidemark.stream.driver.task_slots import TaskSlots
from tidemark.stream.driver.waking import Hops


class SharedSession:
    """Starts the Spark session of this process for its first stream.

    If several streams share it (*is_shared*), they wake each other.
    """

    def __init__(self, name: str, *, is_shared: bool) -> None:
        self.hops = Hops(is_shared=is_shared)
        self.slots = TaskSlots(wall_clock_ms)
        self._name, self._starting = name, threading.Lock()
        self._spark: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Returns the session; starts it at the first call."""
        # Streams of a process start in threads, and a process can have one session only.
        with self._starting:
            self._spark = self._spark or session(self._name)
            return self._spark

    def start(self, writing: DataStreamWriter, *, plan_every_ms: int) -> StreamingQuery:
        """Starts a query that plans every *plan_every_ms* in silence.

        Queries of a process start one after the other, because each copies the session's settings when it starts.
        """
        with self._starting:
            assert self._spark is not None
            self._spark.conf.set("spark.sql.streaming.pollingDelay", f"{plan_every_ms}ms")
            return writing.start()

    def stop(self) -> None:
        """Stops the session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
