"""Records what the main thread of a stream does, as a row of segments without a gap.

Purpose: whoever explains why a result was late must know what the stream did at each instant.
How it works: the thread says what it begins, and that ends what it did before. Each journal entry gets the segments
since the entry before. Heartbeats carry the segments that no row of a batch has yet, because a driver may die or hang
before it writes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from tidemark.clock import Clock, boot_clock_ms
from tidemark.semantics.segments import NEXT, Segment, SegmentOwner

SHORT_MS = 250
"""In batches that changed nothing, shorter segments become part of the segment before them, as a rule the wait."""


class Timeline:
    """Records the segments of a driver; *clock* is the boot clock of its host (ms).

    The main thread of the stream calls all methods; other threads may call `open`.
    """

    def __init__(self, clock: Clock = boot_clock_ms) -> None:
        self.clock = clock
        self._lock = Lock()
        self._batch_id = NEXT
        self._in_entry: tuple[Segment, ...] = ()
        self._ended: list[Segment] = []
        self._running: Segment | None = None

    def begin(
        self, owner: SegmentOwner, detail: str = "", *, at_ms: int | None = None, batch_id: int | None = None
    ) -> None:
        """Begins a segment of *owner*, now or at *at_ms*, and ends the running one.

        The segment belongs to *batch_id*, or to the batch that is worked on.
        """
        at_ms = self.clock() if at_ms is None else at_ms
        with self._lock:
            at_ms = self._end(at_ms)
            self._running = Segment(owner.value, detail, self._number(batch_id), at_ms, at_ms)

    def book(self, owner: SegmentOwner, detail: str = "", *, until_ms: int, batch_id: int | None = None) -> None:
        """Gives *owner* the running segment up to *until_ms*; the rest of it keeps its owner and runs on."""
        with self._lock:
            running = self._running
            if running is not None and until_ms > running.began_ms:
                self._ended.append(Segment(owner.value, detail, self._number(batch_id), running.began_ms, until_ms))
                self._running = running._replace(began_ms=until_ms)

    def work_on(self, batch_id: int) -> None:
        """Assigns *batch_id* to the segments from now on, and to those that wait for the number of the next batch."""
        with self._lock:
            self._batch_id = batch_id
            self._ended = [_numbered(segment, batch_id) for segment in self._ended]
            self._running = self._running and _numbered(self._running, batch_id)

    def since_entry(self) -> tuple[Segment, ...]:
        """Returns the segments since the newest entry of the journal, and ends the running one."""
        with self._lock:
            running = self._running
            if running is not None:
                self._running = running._replace(began_ms=self._end(self.clock()))
            return tuple(self._ended)

    def recorded(self, segments: Sequence[Segment]) -> None:
        """Records that the newest entry has *segments*, the oldest ones.

        The row of a batch is written with the next entry. Until then heartbeats go on to show the segments of the
        newest entry; those of the entry before are in a row now, and are forgotten.
        """
        with self._lock:
            self._in_entry = tuple(segments)
            del self._ended[: len(segments)]

    def changed_nothing(self) -> None:
        """Ends a batch that changed nothing and leaves no entry: its short segments become part of those before them.

        Segments that belong to the batch before, such as writes after its entry, stay as they are.
        """
        with self._lock:
            kept: list[Segment] = []
            for segment in self._ended:
                if segment.batch_id not in {self._batch_id, NEXT}:
                    kept.append(segment)
                    continue
                before = kept[-1] if kept and kept[-1].batch_id == NEXT else None
                is_short = segment.ended_ms - segment.began_ms < SHORT_MS
                if before is not None and (is_short or before[:2] == segment[:2]):
                    kept[-1] = before._replace(ended_ms=segment.ended_ms)
                else:
                    kept.append(segment._replace(batch_id=NEXT))
            self._ended = kept
            self._batch_id = NEXT
            self._running = self._running and self._running._replace(batch_id=NEXT)

    @property
    def is_at_work(self) -> bool:
        """True unless the stream waits for its next batch, or has not begun to."""
        running = self._running
        return running is not None and running.owner != SegmentOwner.TRIGGER

    def open(self) -> tuple[Segment, ...]:
        """Returns the segments that no row of a batch has yet. The last one is running, and is shown as ending now."""
        with self._lock:
            running = self._running
            if running is None:
                return ()
            return (*self._in_entry, *self._ended, running._replace(ended_ms=self._not_before(running)))

    def _end(self, at_ms: int) -> int:
        """Ends the running segment at *at_ms*, or when it began if that is later, and returns this instant."""
        running = self._running
        if running is None or at_ms <= running.began_ms:
            return at_ms if running is None else running.began_ms
        before = self._ended[-1] if self._ended else None
        if before is not None and before[:3] == running[:3]:
            self._ended[-1] = before._replace(ended_ms=at_ms)
        else:
            self._ended.append(running._replace(ended_ms=at_ms))
        return at_ms

    def _number(self, batch_id: int | None) -> int:
        return self._batch_id if batch_id is None else batch_id

    def _not_before(self, segment: Segment) -> int:
        return max(self.clock(), segment.began_ms)


def _numbered(segment: Segment, batch_id: int) -> Segment:
    return segment._replace(batch_id=batch_id) if segment.batch_id == NEXT else segment
