"""Computes when a batch without records is due, because it would change something.

While no records come, the driver has Spark plan no batch before that instant. The rules that decide the batch use the
same functions, so no batch is planned too early or too late. All instants are decision times, epoch ms UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidemark.model.kinds.operator import Level, Operator
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology, Time, Topology
from tidemark.semantics import skip_rate
from tidemark.semantics.alignment import max_allowed_ms, must_wait
from tidemark.semantics.event_time import silence_moves_at_ms
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress
from tidemark.semantics.watermark import Progress
from tidemark.stream.updates.emitting import due_at_ms


class DueTimes:
    """Computes when a batch is due in the stream of *sub*.

    *keeps_states* returns True unless it is known that an operator has no states.

    Attributes:
        leading: the sources that advance the stream's watermark: all except those that feed joined tables.
        marking: the sinks that send marks of time.
    """

    def __init__(self, topology: Topology, sub: SubTopology, keeps_states: Callable[[Operator], bool]) -> None:
        self._keeps_states = keeps_states
        self._operators = sub.operators
        self._is_on_processing_time = topology.time is Time.PROCESSING
        self._max_drift_ms = topology.max_drift_ms
        self._measures_skips = topology.level.includes(Level.DEBUG)
        self._sources = sub.outside_sources
        self.leading = [source for source in self._sources if source.name not in sub.table_inputs()]
        self.marking = [sink for sink in sub.sinks if sink.tells_time]

    def next_at_ms(self, was: StreamProgress, looked_at_ms: int) -> int | None:
        """Returns when a batch without records may next change the progress *was*, or None if it never will.

        *looked_at_ms* is the decision time up to which everything due has been done.
        """
        # In processing time every batch advances time.
        if self._is_on_processing_time or self._goes_on_at_once(was):
            return looked_at_ms + 1
        instants = [*self.results_at_ms(was), *self._marks_at_ms(was), *self._silence_moves_at_ms(was, looked_at_ms)]
        # The newest batch did all that was due by its decision time.
        return min((at_ms for at_ms in instants if at_ms > looked_at_ms), default=None)

    def results_at_ms(self, was: StreamProgress) -> Iterator[int]:
        """Yields when operators are due to send results after *was*."""
        # The fall of a rate of suppressed updates to zero is a measurement that must be written.
        for skips in was.skipped_lately.values() if self._measures_skips else ():
            if (at_ms := skip_rate.ends_at_ms(skips)) is not None:
                yield at_ms
        for operator in self._operators:
            emission = operator.emission
            if emission and self._keeps_states(operator) and (at_ms := due_at_ms(emission, was.decided_at_ms)):
                yield at_ms

    def allowed_ms(self, progress: StreamProgress) -> int | None:
        """Returns the watermark above which a partition waits for others in the next batch (`max_drift`).

        The result is None if no partition waits.
        """
        if self._max_drift_ms is None:
            return None
        partitions = (
            Progress(watermark_ms=part.watermark_ms, activity=part.activity) for _, part in self._partitions(progress)
        )
        return max_allowed_ms(partitions, max_drift_ms=self._max_drift_ms)

    def _goes_on_at_once(self, was: StreamProgress) -> bool:
        """Returns True if the next batch changes something, whenever it is planned."""
        allowed_ms = self.allowed_ms(was)
        for source, part in self._partitions(was):
            # Records that were read wait here: the next batch may send them on, or mark the partition as backlogged.
            if part.done_until_offset < part.until_offset:
                may_be_read = not must_wait(part.watermark_ms, allowed_ms=allowed_ms)
                if may_be_read or part.activity is not Activity.BACKLOGGED:
                    return True
            # Only a batch that finds no new record in a table or folder knows that it is read to its end.
            elif source.topic is None and part.told_idle and part.activity is not Activity.IDLE:
                return True
        return False

    def _partitions(self, progress: StreamProgress) -> Iterator[tuple[Source, PartitionProgress]]:
        for source in self.leading:
            for part in progress.inputs.get(source.name, InputProgress()).partitions.values():
                yield source, part

    def _marks_at_ms(self, was: StreamProgress) -> Iterator[int]:
        for sink in self.marking:
            if (at_ms := next_mark_at_ms(sink, was, was)) is not None:
                yield at_ms

    def _silence_moves_at_ms(self, was: StreamProgress, after_ms: int) -> Iterator[int]:
        for source in self._sources:
            if source.idle_after_ms is not None:
                yield from silence_moves_at_ms(
                    was.inputs.get(source.name, InputProgress()),
                    idle_after_ms=source.idle_after_ms,
                    idle_advances=source.idle_advances,
                    after_ms=after_ms,
                )


def next_mark_at_ms(sink: Sink, was: StreamProgress, now: StreamProgress) -> int | None:
    """Returns when *sink* may send a mark with the watermark and idleness of *now*.

    *was* has the last mark of the sink. The result is None if that mark says the same already.
    """
    last = was.marks.get(sink.name)
    if (last[1:] if last else (None, False)) == (now.watermark_ms, now.idle):
        return None
    return last.at_ms + sink.mark_every_ms if last else now.decided_at_ms
