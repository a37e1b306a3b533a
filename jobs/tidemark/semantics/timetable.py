"""Computes when a driver's batches would have begun with less work.

It assumes that a batch begins at a multiple of the trigger interval, or as soon as the batch before has ended if that
is later. So a driver that is always busy begins sooner when its batches are shorter, and one that waits for its trigger
does not. A driver that has just read records may begin up to a trigger sooner than that (stream/driver/pace.py).

Instants are epoch ms of the driver's clock, lengths ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TimetableBatch:
    """A micro-batch: when it began and was committed, and its saved work.

    `saved_ms` is negative for more work.
    """

    started_ms: int
    finished_ms: int
    saved_ms: int = 0


class Timetable:
    """Compares one driver's batches as they were with those of less work.

    *batches* are in order of time, *interval_ms* is the driver's trigger.
    """

    def __init__(self, batches: Sequence[TimetableBatch], interval_ms: int) -> None:
        self._was = _BatchStarts([replace(batch, saved_ms=0) for batch in batches], interval_ms)
        self._then = _BatchStarts(batches, interval_ms)

    def sooner_ms(self, began_ms: int, upstream_ms: int, upstream_sooner_ms: int) -> int:
        """Returns by how much sooner the work on a window begins.

        The window was in the batch that began at *began_ms*. Its last upstream finished it at *upstream_ms*, and would
        have done so *upstream_sooner_ms* sooner.
        """
        before_ms = self._was.last_before(began_ms)
        # If the window was not in an earlier batch that was possible, it had become visible only after that batch
        # began.
        visible_ms = min(upstream_ms if before_ms is None else max(upstream_ms, before_ms + 1), began_ms)
        then_ms = self._then.first_from(visible_ms - upstream_sooner_ms)
        return upstream_sooner_ms if then_ms is None else began_ms - then_ms


class _BatchStarts:
    """Instants at which batches begin, or could begin if there were records.

    They are kept as runs of instants, one after each *interval_ms*.
    """

    def __init__(self, batches: Sequence[TimetableBatch], interval_ms: int) -> None:
        runs = [*_runs(batches, interval_ms)]
        self._interval_ms = interval_ms
        self._starts = [start for start, _ in runs]
        self._counts = [count for _, count in runs]

    def last_before(self, at_ms: int) -> int | None:
        """Returns the last one before *at_ms*; None where there is none."""
        run = bisect_left(self._starts, at_ms) - 1
        if run < 0:
            return None
        number = min((at_ms - 1 - self._starts[run]) // self._interval_ms, self._counts[run] - 1)
        return self._starts[run] + number * self._interval_ms

    def first_from(self, at_ms: int) -> int | None:
        """Returns the first one at *at_ms* or later; None without one."""
        run = bisect_left(self._starts, at_ms)
        if run > 0:
            # Negated twice, // rounds up.
            number = -(-(at_ms - self._starts[run - 1]) // self._interval_ms)
            if number < self._counts[run - 1]:
                return self._starts[run - 1] + number * self._interval_ms
        return self._starts[run] if run < len(self._starts) else None


def _runs(batches: Sequence[TimetableBatch], interval_ms: int) -> Iterator[tuple[int, int]]:
    """Yields runs of begins: the first of each, and their number.

    The last run is the begin of the last of *batches*.
    """
    if not batches:
        return
    running, at_ms = 0, batches[0].started_ms
    while at_ms < batches[-1].started_ms:
        while batches[running + 1].started_ms <= at_ms:
            running += 1
        batch, following = batches[running], batches[running + 1]
        free_ms = max(batch.finished_ms, _trigger_after(batch.started_ms, interval_ms))
        if at_ms >= free_ms:  # it waited for records
            # Negated twice, // rounds up.
            count = -(-(following.started_ms - at_ms) // interval_ms)
            yield at_ms, count
            at_ms += count * interval_ms
        else:
            yield at_ms, 1
            # Spark began the next batch so long after the trigger; that delay would have been the same.
            planning_ms = (following.started_ms - free_ms) % interval_ms
            # A batch takes as long as the one that ran at that instant, less what that one saves.
            length_ms = batch.finished_ms - batch.started_ms - batch.saved_ms
            at_ms = max(at_ms + 1, at_ms + length_ms, _trigger_after(at_ms, interval_ms)) + planning_ms
    yield batches[-1].started_ms, 1


def _trigger_after(at_ms: int, interval_ms: int) -> int:
    return (at_ms // interval_ms + 1) * interval_ms
