"""Computes when a driver's batches would have begun with less work.

A batch can begin when three things are so: the batch before has ended, there is something to read, and the trigger's
time since the batch before has passed. It really begins a little later than the last of these instants, because Spark
plans, or finds records only when it looks for them. This delay is assumed to be the same with less work.
In names, `then` marks the hypothetical run with less work: `start_ms` is when a batch began, `start_then_ms` when it
would have begun.

Instants are epoch ms of the driver's clock, lengths ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LOOKS_AT_HOPS_EVERY_MS = 10_000
"""The longest time between two looks at hops of other processes: writers in other processes cannot wake a stream."""


@dataclass(frozen=True)
class TimetableBatch:
    """A micro-batch: when it began and was committed, and the work that it would have saved (negative: more work)."""

    started_ms: int
    finished_ms: int
    saved_ms: int = 0


def next_batch_ms(began_ms: float, expected_ms: float, distance_ms: float) -> float:
    """Returns when the batch after one that began at *began_ms* is expected.

    Batches are *distance_ms* apart on average. A batch may begin as much as that too early, so that the rest of a burst
    need not wait; *expected_ms* is when the batch itself was expected.
    """
    # A batch that was asked for, by a person or a hop of the process, delays the next one by a distance at most.
    return min(max(began_ms, expected_ms), began_ms + distance_ms) + distance_ms


class Timetable:
    """Compares one driver's batches as they were with the same batches with less work.

    Args:
        batches: the batches, in order of time.
        distance_ms: the time between two of them on average; at 0 a batch begins as soon as there is something to read.
        commits_ms: known commits of its upstream drivers, in order.
    """

    def __init__(self, batches: Sequence[TimetableBatch], distance_ms: int, commits_ms: Sequence[int] = ()) -> None:
        self._starts_ms = [batch.started_ms for batch in batches]
        self._starts_then_ms = self._starts_ms[:1]
        # After each batch but the last, the instant at which the next one may begin.
        self._free_ms: list[int] = []
        self._free_then_ms: list[int] = []
        expected_ms = expected_then_ms = 0.0
        for batch, following in pairwise(batches):
            start_ms, start_then_ms = batch.started_ms, self._starts_then_ms[-1]
            free_ms = min(batch.finished_ms, following.started_ms)
            free_then_ms = start_then_ms + max(0, free_ms - start_ms - batch.saved_ms)
            expected_ms = next_batch_ms(start_ms, expected_ms, distance_ms)
            expected_then_ms = next_batch_ms(start_then_ms, expected_then_ms, distance_ms)
            # The driver counts a first batch from before `started_ms`: state is loaded in between.
            early_ms = max(0.0, expected_ms - distance_ms - following.started_ms)
            expected_ms -= early_ms
            expected_then_ms -= early_ms
            free_ms = max(free_ms, round(expected_ms) - distance_ms)
            free_then_ms = max(free_then_ms, round(expected_then_ms) - distance_ms)
            self._free_ms.append(free_ms)
            self._free_then_ms.append(free_then_ms)
            # What came after the batch began was left for the next one.
            cause = bisect_left(commits_ms, start_ms)
            if cause < len(commits_ms) and commits_ms[cause] < following.started_ms:
                cause_ms = commits_ms[cause]
            else:
                # Spark looks for records once a distance: after a longer pause there had been none.
                was_busy = following.started_ms - free_ms < distance_ms
                cause_ms = start_ms if was_busy else following.started_ms
            delay_ms = following.started_ms - max(free_ms, cause_ms)
            self._starts_then_ms.append(max(free_then_ms, cause_ms) + delay_ms)

    def sooner_ms(self, began_ms: int, upstream_ms: int, upstream_sooner_ms: int) -> int:
        """Returns by how much sooner the work on a streaming window would have begun.

        Args:
            began_ms: when the batch began that had the window.
            upstream_ms: when the last upstream in another driver had finished the window.
            upstream_sooner_ms: by how much sooner that upstream would have finished it.
        """
        batch = bisect_left(self._starts_ms, began_ms)
        if not 0 < batch <= len(self._free_ms):
            return upstream_sooner_ms
        # The window was not in the batch before, so it had become visible only after that batch began.
        visible_ms = min(max(upstream_ms, self._starts_ms[batch - 1] + 1), began_ms)
        delay_ms = began_ms - max(visible_ms, self._free_ms[batch - 1])
        visible_then_ms = visible_ms - upstream_sooner_ms
        then = bisect_left(self._starts_then_ms, visible_then_ms, hi=batch)
        free_then_ms = self._free_then_ms[then - 1] if then else visible_then_ms
        then_ms = max(visible_then_ms, free_then_ms) + delay_ms
        # If an earlier batch begins before that, it takes the window.
        return began_ms - (min(then_ms, self._starts_then_ms[then]) if then < batch else then_ms)
