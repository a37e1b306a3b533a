"""Shows Kafka's own tools how far a stream has come.

Purpose: lag exporters compare the ends of topics with the offsets of consumer groups, and know nothing of checkpoints.

How it works: after a batch was carried out, a thread writes the offsets up to which the stream has read into a group
without members. No batch waits for it, and batches that end meanwhile share the next write. Tidemark never reads these
offsets: a stream starts from its checkpoint. So after a crash they are behind until the next driver has recovered, and
never ahead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import StreamProgress, TopicPartition
from tidemark.stream.kafka.numbering import with_topic_partitions

log = logging.getLogger("tidemark.stream")

Offsets = Mapping[str, Mapping[TopicPartition, int]]
"""By cluster, the next offset to read of each partition."""

REPEATED_EVERY_S = 3_600.0
"""Unchanged offsets are written again after this.

A broker forgets those of a group without members after `offsets.retention.minutes`, by default 7 days.
"""
RETRIED_EVERY_S = 30.0
"""After a failure offsets are written again with the next batch, or after this."""
ENDS_WITHIN_S = 5.0
"""Longest wait of a driver that ends for the last write."""


def offsets_by_cluster(sub: SubTopology, progress: StreamProgress) -> dict[str, dict[TopicPartition, int]]:
    """Returns up to where *progress* has read the partitions of the topics of *sub*, by cluster.

    Records that wait in the stream's state, for example because of `max_drift`, count as read.
    """
    read_to: dict[str, dict[TopicPartition, int]] = {}
    for source in sub.outside_sources:
        if not source.topic or source.name not in progress.inputs:
            continue
        numbered, of_cluster = with_topic_partitions(source, progress), read_to.setdefault(source.kafka, {})
        for number, offset in progress.inputs[source.name].offsets_read.items():
            of_cluster[numbered.topic_partition(number)] = offset
    return read_to


class GroupOffsets:
    """Writes the offsets that *read_to* returns into the consumer group *group*, unless it is None.

    A failure is logged once, until a write succeeds. The thread is a daemon and ends with `end`, or with its process.

    Args:
        group: the name of the group.
        read_to: returns up to where batches that were carried out have read.
        write: writes offsets into the group; returns the reasons for which clusters have refused some.
        clock_s: a monotonic clock.
    """

    def __init__(
        self,
        group: str | None,
        read_to: Callable[[], Offsets],
        write: Callable[[str, Offsets], Sequence[str]],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._read_to, self._write_to, self._clock_s = group, read_to, write, clock_s
        self._written: Offsets = {}
        self._written_s = clock_s()
        self._failures: frozenset[str] = frozenset()
        self._is_awake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts the thread, if there is a group."""
        if self._group is not None:
            self._thread.start()

    def wake(self) -> None:
        """Has the thread write: a batch was carried out."""
        self._is_awake.set()

    def end(self) -> None:
        """Ends the thread after a last write."""
        self._over.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join(ENDS_WITHIN_S)

    def write(self) -> None:
        """Writes the newest offsets, unless they were written less than REPEATED_EVERY_S ago."""
        assert self._group is not None
        try:
            offsets, now_s = self._read_to(), self._clock_s()
            if offsets == self._written and now_s - self._written_s < REPEATED_EVERY_S:
                return
            failures = frozenset(self._write_to(self._group, offsets))
        # What a lag exporter shows must end no stream.
        except Exception as error:
            failures = frozenset({repr(error)})
        for failure in sorted(failures - self._failures):
            log.warning("consumer group %s: %s; the stream goes on, and writes its offsets again", self._group, failure)
        if failures:
            self._written = {}
            self._failures |= failures
            return
        if self._failures:
            log.info("consumer group %s: its offsets are written again", self._group)
        self._written, self._written_s, self._failures = offsets, now_s, frozenset()

    def _run(self) -> None:
        while not self._over.is_set():
            self._is_awake.wait(RETRIED_EVERY_S if self._failures else REPEATED_EVERY_S)
            self._is_awake.clear()
            self.write()
        # A batch may have ended between the last write and the end.
        self.write()
