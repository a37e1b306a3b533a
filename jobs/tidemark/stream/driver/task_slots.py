"""Measures how long a batch waited for Spark's task slots.

It waits while other streams of its process run batches. Spark reports when it submitted a stage and when it launched
the first task of it. Clock: the driver's, epoch ms UTC.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from tidemark.clock import Clock
from tidemark.stream.journal.batch import NOT_QUEUED, QueueWait

SCHEDULING_MS = 20
"""The longest time that Spark itself needs to launch a stage.

It is the time between a stage and its first task on an idle machine.
"""


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
        """Returns how long the jobs of the current batch were queued.

        They are the jobs that *stream* has run since *since_ms*.
        """
        # Each look at a job is a call into the JVM, which no batch makes without a batch of another stream.
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
    """Yields when each job's first stage was submitted and launched.

    Jobs are those of the current job group since *since_ms*, newest first.
    """
    group = context.getLocalProperty("spark.jobGroup.id")
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    # The newest come first: the first job from before the batch ends the search.
    for job in sorted(tracker.getJobIdsForGroup(group), reverse=True):
        info = tracker.getJobInfo(job)
        if info is None or not info.stageIds:  # Spark keeps the newest 1,000 jobs; one over no rows has no stage
            continue
        try:
            # Later stages of a job wait for data, too, so they are not counted.
            stage = store.lastStageAttempt(min(info.stageIds))
        except Py4JJavaError:  # Spark writes what happened in a thread of its own, and may be behind
            continue
        submitted_ms, launched_ms = (_epoch_ms(at()) for at in (stage.submissionTime, stage.firstTaskLaunchedTime))
        if submitted_ms is None or launched_ms is None:
            continue
        if launched_ms < since_ms:
            return
        yield submitted_ms, launched_ms


def _epoch_ms(date: Any) -> int | None:
    """Converts a Scala `Option[Date]` to epoch ms."""
    return int(date.get().getTime()) if date.isDefined() else None
