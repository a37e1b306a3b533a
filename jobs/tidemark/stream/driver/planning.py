"""Finds out what Spark did between two batches.

Spark notes three instants by the clock of its host: when it began to look for records, when it knew them (the time of
the plan), and, as the time of a file, when it had recorded the batch before as done.
"""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.clock import Clock
from tidemark.semantics.segments import NEXT, SegmentOwner
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.checkpoint import committed_at_ms
from tidemark.stream.journal.timeline import Timeline

log = logging.getLogger("tidemark.stream")


class Planning:
    """Books the time between two batches of a query in *timeline*.

    Args:
        timeline: the timeline of the driver.
        checkpoint: the checkpoint of the query.
        sources: the names of its sources.
        plan_every_ms: how long Spark waits after a look that found nothing.
        clock: epoch ms, the clock of Spark's host.
    """

    def __init__(self, timeline: Timeline, checkpoint: Path, sources: str, *, plan_every_ms: int, clock: Clock) -> None:
        self._timeline, self._checkpoint, self._sources = timeline, checkpoint, sources
        self._plan_every_ms, self._clock = plan_every_ms, clock
        self._query: StreamingQuery | None = None
        self._returned_ms: int | None = None
        self._committing: int | None = None
        self._lock = Lock()

    def started(self, query: StreamingQuery) -> None:
        """Asks *query* from now on, which has just been started."""
        self._query, self._returned_ms = query, None

    def returned(self, batch_id: int) -> None:
        """Marks the end of *batch_id* in this process: Spark records it as done, and plans the next one."""
        with self._lock:
            self._timeline.begin(SegmentOwner.SPARK, "commit")
            self._returned_ms, self._committing = self._timeline.clock(), batch_id

    def waits(self) -> None:
        """Ends Spark's commit of the newest batch in the timeline, if it is over: the stream waits from then on.

        Otherwise the timeline of a driver that is killed in a silence would say that Spark was committing all the time.
        Another thread may call this.
        """
        with self._lock:
            if self._committing is None or self._returned_ms is None:
                return
            now_ms = self._timeline.clock()
            done_ms = self._committed_ms(self._committing, now_ms - self._clock())
            if done_ms is None and self._is_seldom_asked and now_ms - self._returned_ms > self._plan_every_ms:
                done_ms = self._returned_ms
            if done_ms is not None:
                self._timeline.begin(SegmentOwner.TRIGGER, at_ms=min(done_ms, now_ms), batch_id=NEXT)
                self._committing = None

    def book(self, batch_id: int, planned_at_ms: int) -> int | None:
        """Books what Spark did before *batch_id*, which it planned at *planned_at_ms* and hands over now.

        Returns:
            The instant (boot clock) of the newest look that found nothing. None if the previous look found the previous
            batch, or if that is not known.
        """
        with self._lock:
            self._committing = None
            return self._book(batch_id, planned_at_ms)

    def _book(self, batch_id: int, planned_at_ms: int) -> int | None:
        timeline, now_ms = self._timeline, self._timeline.clock()
        to_boot_ms = now_ms - self._clock()
        planned_ms = planned_at_ms + to_boot_ms
        began_at_ms = self._look_began_ms()
        looking_ms = planned_ms if began_at_ms is None else began_at_ms + to_boot_ms
        excluded_ms = None
        if self._returned_ms is not None:
            done_ms = self._done_ms(batch_id - 1, self._returned_ms, looking_ms, to_boot_ms)
            timeline.book(SegmentOwner.SPARK, "commit", until_ms=min(done_ms, now_ms))
            timeline.book(SegmentOwner.TRIGGER, until_ms=min(looking_ms, now_ms), batch_id=NEXT)
            if looking_ms - self._plan_every_ms > done_ms:
                excluded_ms = looking_ms - self._plan_every_ms
        # A batch that runs again was planned by an earlier look, perhaps of another driver.
        if looking_ms <= planned_ms:
            timeline.begin(SegmentOwner.BROKER, self._sources, at_ms=looking_ms, batch_id=NEXT)
            timeline.begin(SegmentOwner.SPARK, "planning", at_ms=planned_ms, batch_id=NEXT)
        else:
            timeline.begin(SegmentOwner.SPARK, "planning", at_ms=looking_ms, batch_id=NEXT)
        timeline.begin(SegmentOwner.ENGINE, at_ms=now_ms, batch_id=NEXT)
        return excluded_ms

    def _done_ms(self, batch_id: int, returned_ms: int, looking_ms: int, to_boot_ms: int) -> int:
        """Returns when Spark had recorded *batch_id* as done (boot clock)."""
        if self._is_seldom_asked:
            # Without a wait for the trigger Spark looks at once.
            return looking_ms if looking_ms - returned_ms < self._plan_every_ms else returned_ms
        done_ms = self._committed_ms(batch_id, to_boot_ms)
        return returned_ms if done_ms is None else done_ms

    @property
    def _is_seldom_asked(self) -> bool:
        """True if the checkpoint is in an object store, where to ask for the time of a file costs a request."""
        return isinstance(self._checkpoint, ObjectPath)

    def _committed_ms(self, batch_id: int, to_boot_ms: int) -> int | None:
        """Returns when Spark had recorded *batch_id* as done (boot clock) by the checkpoint, or None if it has not."""
        at_ms = None if self._is_seldom_asked else committed_at_ms(self._checkpoint, batch_id)
        return None if at_ms is None else at_ms + to_boot_ms

    def _look_began_ms(self) -> int | None:
        """Returns when Spark began to look for the records of the current batch, epoch ms, or None if unknown."""
        if self._query is None:
            return None
        try:
            # Spark has no public method for it before the batch has ended.
            context = self._query._jsq.streamingQuery().getLatestExecutionContext()
            return int(context.currentTriggerStartTimestamp())
        except (Py4JError, AttributeError) as error:
            log.info("Spark does not tell when it began to look for records: %s", error)
            return None
