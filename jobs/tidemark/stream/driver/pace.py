"""Decides when Spark plans again after a batch.

Purpose: a new record is read soon, although a plan of Spark costs ten times as much as a question to a broker.
How it works: batches begin one trigger interval apart, or earlier only if a person has requested something. Once that
has passed, and for 10 s after a batch that read records, the driver asks the brokers, less often the longer the
silence, and lets Spark plan as soon as there is a record. A record after a silence is often the first of many, so the
driver waits up to 200 ms for more. After these 10 s Spark plans by itself, each trigger.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from tidemark.clock import boot_clock_ms
from tidemark.semantics.timetable import next_batch_ms

log = logging.getLogger("tidemark.stream")

ASKS_FOR_MS = 10_000
"""How long after records were read the brokers are asked.

Spark commits the batch only then, or after a trigger if that is longer, and only then finds new topics and partitions.
"""
ASK_MS = 50
"""The shortest time between two questions."""
SILENCE_OF_A_QUESTION = 0.2
"""The time between two questions, as a share of the silence until then."""
GATHERS_FOR_MS = 200
"""The longest wait for further records after the first one."""


class Pace:
    """Keeps batches one trigger interval apart on average; a single batch may begin early.

    Args:
        trigger_ms: the trigger interval.
        unread: a function for each source that asks a broker how many records no batch has read. Empty for a stream
            that also reads what no broker knows.
        clock: the boot clock, ms.

    Attributes:
        in_vain_ms: when brokers were last asked and had no unread record, by *clock*; None if that never happened.
    """

    def __init__(
        self, trigger_ms: int, unread: Sequence[Callable[[], int]], clock: Callable[[], float] = boot_clock_ms
    ) -> None:
        self._trigger_ms, self._unread, self._clock = trigger_ms, unread, clock
        self.in_vain_ms: int | None = None
        self._next_ms, self._read_ms = 0.0, -math.inf

    def begin(self) -> None:
        """Counts a batch that begins now."""
        self._next_ms = next_batch_ms(self._clock(), self._next_ms, self._trigger_ms)

    def wait(self, urgent: threading.Event, caused: threading.Event, *, has_read: bool) -> None:
        """Returns when Spark may plan the next batch.

        Args:
            urgent: is set when the next batch may not wait for the trigger.
            caused: is set when something is due, so that no broker is asked.
            has_read: whether the last batch read records of topics.
        """
        if has_read:
            self._read_ms = self._clock()
        early_ms = self._next_ms - self._trigger_ms - self._clock()
        urgent.wait(max(0.0, early_ms) / 1_000)
        try:
            self._await_records(caused)
        except Exception as error:  # Spark asks the same brokers, and says what is wrong
            log.info("cannot find out whether there are records: %s", error)

    def _await_records(self, caused: threading.Event) -> None:
        if not self._unread or caused.is_set() or self._silent_ms() >= ASKS_FOR_MS or self._ask(caused):
            return  # records may have arrived during the batch
        number = 0
        while not number:
            silent_ms = self._silent_ms()
            wait_ms = min(max(ASK_MS, SILENCE_OF_A_QUESTION * silent_ms), ASKS_FOR_MS - silent_ms)
            if wait_ms < 1 or caused.wait(wait_ms / 1_000):
                return
            number = self._ask(caused)
        seen_ms, before = self._clock(), 0
        while number > before and self._clock() - seen_ms < GATHERS_FOR_MS and not caused.wait(ASK_MS / 1_000):
            before, number = number, self._ask(caused)

    def _ask(self, caused: threading.Event) -> int:
        """Returns the number of unread records; once *caused* is set, no other source is asked."""
        asked_ms, number = self._clock(), 0
        for unread in self._unread:
            if caused.is_set():
                return number
            number += unread()
        if not number:
            self.in_vain_ms = int(asked_ms)
        return number

    def _silent_ms(self) -> float:
        return self._clock() - self._read_ms
