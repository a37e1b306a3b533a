"""Shows Kafka's own tools how far a recorded query has come.

Purpose: Spark's Kafka source keeps its progress in the checkpoint, so lag exporters, which read the offsets of consumer
groups, do not see it.

How it works: when Spark has reported a batch, which it does after the commit, the ends of the batch are written into a
group without members, by a client of the JVM with the settings of the query's own source, so that Python learns neither
the address nor the login of the broker. Nobody waits for the answer, and a failed write fails no query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from tidemark.api.progress import partitions_of
from tidemark.semantics.progress import TopicPartition

log = logging.getLogger("tidemark.api")

REPEATED_EVERY_S = 3_600.0
"""Unchanged offsets are written again after so many seconds.

A broker forgets the offsets of a group without members after `offsets.retention.minutes`, by default 7 days.
"""
ENDS_WITHIN_S = 5
"""Longest wait for the answer to the last write of a query."""


class QueryGroup:
    """Writes the offsets of one run of a query into the consumer group *group*.

    Args:
        jvm: the JVM of the query's session.
        group: the name of the group.
        plan: Spark's object of the run.
        clock_s: a monotonic clock.
    """

    def __init__(self, jvm: Any, group: str, plan: Any, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._jvm, self._group, self._plan, self._clock_s = jvm, group, plan, clock_s
        # Sources of the query are known by their number in Spark's plan.
        self._ends: dict[int, dict[TopicPartition, int]] = {}
        self._written: dict[int, dict[TopicPartition, int]] = {}
        self._written_s = clock_s()
        self._clients: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._failures: dict[int, set[str]] = {}

    def note(self, progress: Mapping[str, Any]) -> None:
        """Notes the offsets up to which the batch of *progress* has read; `write` writes them."""
        ends: dict[int, dict[TopicPartition, int]] = {}
        lowest: dict[TopicPartition, int] = {}
        for number, source in enumerate(progress["sources"]):
            for offsets in partitions_of(source):
                partition, end = TopicPartition(offsets["source"], offsets["partition"]), offsets["until_offset"]
                ends.setdefault(number, {})[partition] = end
                # Two sources of a query may read one topic: the slower one says what is left to read.
                lowest[partition] = min(end, lowest.get(partition, end))
        self._ends = {
            number: {partition: lowest[partition] for partition in partitions} for number, partitions in ends.items()
        }

    def write(self) -> None:
        """Writes the offsets that have changed since the last write, or whose write failed; waits for no answer."""
        self._handle_answers()
        if self._clock_s() - self._written_s >= REPEATED_EVERY_S:
            self._written.clear()
        for number, ends in self._ends.items():
            if number in self._answers or self._written.get(number) == ends:
                continue
            self._written[number], self._written_s = ends, self._clock_s()
            try:
                self._answers[number] = self._send(number, ends)
            except Exception as error:
                self._retry_after(number, error)

    def end(self) -> None:
        """Writes a last time, waits for the answers, and ends the clients."""
        for _ in range(2):  # a write that is under way may be of older offsets
            self.write()
            for answer in self._answers.values():
                try:
                    answer.get(ENDS_WITHIN_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
                except Exception:
                    log.debug("consumer group %s: the answer is a failure, or late", self._group, exc_info=True)
        self._handle_answers()
        for client in self._clients.values():
            client.close(self._jvm.java.time.Duration.ZERO)

    def _send(self, number: int, ends: Mapping[TopicPartition, int]) -> Any:
        """Sends the offsets *ends* of the source *number* to the broker; returns the future of the answer."""
        if number not in self._clients:
            settings = self._plan.sources().distinct().apply(number).kafkaOffsetReader().driverKafkaParams()
            create = self._jvm.org.apache.kafka.clients.admin.AdminClient.create
            self._clients[number] = create(self._jvm.java.util.HashMap(settings))
        topic_partition = self._jvm.org.apache.kafka.common.TopicPartition
        offset_and_metadata = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        offsets = self._jvm.java.util.HashMap()
        for partition, end in ends.items():
            offsets.put(topic_partition(*partition), offset_and_metadata(end))
        return self._clients[number].alterConsumerGroupOffsets(self._group, offsets).all()

    def _handle_answers(self) -> None:
        """Handles the answers that have come: offsets whose write failed are written again."""
        for number, answer in [*self._answers.items()]:
            if not answer.isDone():
                continue
            del self._answers[number]
            try:
                answer.get()
            except Exception as error:
                self._retry_after(number, error)
            else:
                self._failures.pop(number, None)

    def _retry_after(self, number: int, error: Exception) -> None:
        """Has the offsets of the source *number* written again after *error*, which is logged once until it is over."""
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
