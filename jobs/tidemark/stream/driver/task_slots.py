"""Measures how long a batch waited for Spark's task slots while other streams of its process ran batches.

Spark reports when it submitted a stage and when it launched the first task of it, by the driver's clock (epoch ms UTC).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from tidemark.clock import Clock
from tidemark.spark_session import java_class
from tidemark.stream.journal.batch import NOT_QUEUED, QueueWait

SCHEDULING_MS = 20
"""The longest time that Spark itself needs to launch a stage: that from a stage to its first task when all is idle."""


@dataclass
class TaskSlots:
    """The task slots of a Spark session, which its streams share."""

    clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _batches: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)

    @contextmanager
    def batch(self, stream: str) -> Iterator[None]:
        """Records that a batch of *stream* runs until the context ends."""
        began_ms = self.clock()
        with self._lock:
            newest = self._batches.get(stream, [])[-1:]
            # The last batch is kept beside the current one: a wait of another stream may overlap it.
            self._batches[stream] = [*newest, (began_ms, None)]
        try:
            yield
        finally:
            with self._lock:
                self._batches[stream][-1] = (began_ms, self.clock())

    def queued(self, stream: str, context: SparkContext, since_ms: int) -> QueueWait:
        """Returns how long the jobs of the current batch of *stream*, which began at *since_ms*, were queued."""
        # The JVM is asked only if another stream ran a batch at the same time.
        if not self._others(stream, since_ms, self.clock()):
            return NOT_QUEUED
        queued_ms, others = 0, set[str]()
        for from_ms, until_ms in _waits(context, since_ms):
            # A wait within what Spark itself needs is no queue.
            if until_ms - from_ms > SCHEDULING_MS:
                queued_ms += until_ms - from_ms
                others.update(self._others(stream, from_ms, until_ms))
        return QueueWait(queued_ms, tuple(sorted(others))) if others else NOT_QUEUED

    def _others(self, stream: str, from_ms: int, until_ms: int) -> set[str]:
        """Returns the other streams that ran a batch between two instants."""
        others: set[str] = set()
        with self._lock:
            for name, batches in self._batches.items():
                for began_ms, ended_ms in batches:
                    if name != stream and began_ms <= until_ms and (ended_ms is None or ended_ms >= from_ms):
                        others.add(name)
        return others


def _waits(context: SparkContext, since_ms: int) -> Iterator[tuple[int, int]]:
    """Yields when the first stage of each job was submitted and launched.

    The jobs are those of the current job group since *since_ms*, newest first.
    """
    for line in str(_job_waits(context).since(context._jsc, since_ms)).splitlines():
        submitted_ms, launched_ms = map(int, line.split())
        yield submitted_ms, launched_ms


@cache
def _job_waits(context: SparkContext) -> JavaObject:
    """Returns the object of the JVM that has the answer."""
    made: JavaObject = java_class(context, __package__, "JobWaits").newInstance()
    return made
