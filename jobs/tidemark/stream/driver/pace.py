"""Says when Spark is to look for records again after a batch.

Purpose: a record need not wait for the next look of Spark, which costs ten times as much as a question to a broker.
How it works: for a while after a batch that read records the driver asks the brokers, seldom in a long silence, and
lets Spark plan as soon as there is something. What arrives after a silence is often the first of many records, so it
waits for these a moment.
What it does not do: after that while Spark looks by itself, each trigger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("tidemark.stream")

LOOKS_FOR_MS = 10_000
"""How long after a batch the brokers are asked.

Spark commits the batch only then, and only then finds new topics and partitions.
"""
LOOK_MS = 20
"""The shortest time between two questions."""
SILENCE_OF_A_LOOK = 0.1
"""The time between two questions, as a part of the silence before."""
GATHERS_FOR_MS = 200
"""The longest wait for further records after the first one."""


def now_ms() -> float:
    """Returns the monotonic clock."""
    return time.monotonic() * 1_000


class Pace:
    """Keeps batches a trigger apart on average; one may begin early.

    Args:
        trigger_ms: the interval.
        unread: returns the number of records that no batch has read; None: brokers cannot say it for this stream.
        clock: monotonic, ms.
    """

    def __init__(self, trigger_ms: int, unread: Callable[[], int] | None, clock: Callable[[], float] = now_ms) -> None:
        self._trigger_ms, self._unread, self._clock = trigger_ms, unread, clock
        self._next_ms = 0.0

    def begin(self) -> None:
        """Counts a batch that begins now."""
        # Batches that something else caused delay records by a trigger at most.
        now_ms = self._clock()
        self._next_ms = min(max(now_ms, self._next_ms), now_ms + self._trigger_ms) + self._trigger_ms

    def wait(self, caused: threading.Event, *, has_read: bool) -> None:
        """Returns when Spark is to look for records, at once if *caused*.

        The brokers are asked after a batch that *has_read* some.
        """
        early_ms = self._next_ms - self._trigger_ms - self._clock()
        if caused.wait(max(0.0, early_ms) / 1_000) or not has_read or self._unread is None:
            return
        try:
            self._look(self._unread, caused)
        except Exception as error:  # Spark asks the same brokers, and says what is wrong
            log.info("cannot find out whether there are records: %s", error)

    def _look(self, unread: Callable[[], int], caused: threading.Event) -> None:
        began_ms, number = self._clock(), unread()
        if number:
            return  # they arrived during the batch
        while not number:
            silent_ms = self._clock() - began_ms
            if silent_ms >= LOOKS_FOR_MS or caused.wait(max(LOOK_MS, SILENCE_OF_A_LOOK * silent_ms) / 1_000):
                return
            number = unread()
        seen_ms, before = self._clock(), 0
        while number > before and self._clock() - seen_ms < GATHERS_FOR_MS and not caused.wait(LOOK_MS / 1_000):
            before, number = number, unread()
