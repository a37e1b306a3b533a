"""Shows Kafka's own tools how far a recorded query has come.

Purpose: Spark's Kafka source keeps its progress in the checkpoint, so lag exporters, which read the offsets of consumer
groups, do not see it.

How it works: when Spark has reported a batch, which it does after the commit, the ends of the batch are written into a
group without members, by a client of the JVM with the settings of the query's own source: no address and no login is
told to Python. Nobody waits for the answer, and a failure fails no query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from tidemark.api.progress import partitions_of
from tidemark.semantics.progress import Place

log = logging.getLogger("tidemark.api")

REPEATED_EVERY_S = 3_600.0
"""The same offsets are written again after this.

A broker forgets those of a group without members after `offsets.retention.minutes`, by default 7 days.
"""
ENDS_WITHIN_S = 5
"""Longest wait for the answer to the last write of a query."""


class QueryGroup:
    """Writes the offsets of one run of a query into the consumer group *group*.

    Args:
        jvm: that of the query's session.
        group: the name of the group.
        plan: Spark's object of the run.
        clock_s: a monotonic clock.
    """

    def __init__(self, jvm: Any, group: str, plan: Any, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._jvm, self._group, self._plan, self._clock_s = jvm, group, plan, clock_s
        self._ends: dict[int, dict[Place, int]] = {}
        self._written: dict[int, dict[Place, int]] = {}
        self._written_s = clock_s()
        self._clients: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._failures: dict[int, set[str]] = {}

    def take(self, progress: Mapping[str, Any]) -> None:
        """Notes the ends of the batch of *progress*, by the number of the source."""
        ends: dict[int, dict[Place, int]] = {}
        lowest: dict[Place, int] = {}
        for number, source in enumerate(progress["sources"]):
            for part in partitions_of(source):
                place, end = Place(part["source"], part["partition"]), part["until_offset"]
                ends.setdefault(number, {})[place] = end
                # Two sources of a query may read one topic: the slower one says what is left to read.
                lowest[place] = min(end, lowest.get(place, end))
        self._ends = {number: {place: lowest[place] for place in places} for number, places in ends.items()}

    def write(self) -> None:
        """Writes what has changed since the last write, or failed, without a wait."""
        self._heed_answers()
        if self._clock_s() - self._written_s >= REPEATED_EVERY_S:
            self._written.clear()
        for number, ends in self._ends.items():
            if number in self._answers or self._written.get(number) == ends:
                continue
            self._written[number], self._written_s = ends, self._clock_s()
            try:
                self._answers[number] = self._ask(number, ends)
            except Exception as error:
                self._fails(number, error)

    def end(self) -> None:
        """Writes a last time, waits for the answers, and ends the clients."""
        for _ in range(2):  # a write that is under way may be of older offsets
            self.write()
            for answer in self._answers.values():
                try:
                    answer.get(ENDS_WITHIN_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
                except Exception:
                    log.debug("consumer group %s: the answer is a failure, or late", self._group, exc_info=True)
        self._heed_answers()
        for client in self._clients.values():
            client.close(self._jvm.java.time.Duration.ZERO)

    def _ask(self, number: int, ends: Mapping[Place, int]) -> Any:
        """Returns the future of the answer to *ends*, those of the source *number*."""
        if number not in self._clients:
            settings = self._plan.sources().distinct().apply(number).kafkaOffsetReader().driverKafkaParams()
            create = self._jvm.org.apache.kafka.clients.admin.AdminClient.create
            self._clients[number] = create(self._jvm.java.util.HashMap(settings))
        partition = self._jvm.org.apache.kafka.common.TopicPartition
        position = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        offsets = self._jvm.java.util.HashMap()
        for place, end in ends.items():
            offsets.put(partition(*place), position(end))
        return self._clients[number].alterConsumerGroupOffsets(self._group, offsets).all()

    def _heed_answers(self) -> None:
        """Takes note of the answers that have come."""
        for number, answer in [*self._answers.items()]:
            if not answer.isDone():
                continue
            del self._answers[number]
            try:
                answer.get()
            except Exception as error:
                self._fails(number, error)
            else:
                self._failures.pop(number, None)

    def _fails(self, number: int, error: Exception) -> None:
        """Logs a failure of a source once until it is over, and has the offsets written again."""
        self._written.pop(number, None)
        reason = repr(error)
        if isinstance(error, Py4JJavaError):
            # A future has its reason as the cause of another exception.
            thrown = error.java_exception
            reason = str((thrown.getCause() or thrown).toString())
        known = self._failures.setdefault(number, set())
        if reason not in known:
            log.warning("consumer group %s: %s; it is tried again with the next batch", self._group, reason)
        known.add(reason)
