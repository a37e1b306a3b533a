"""Notices brokers that do not answer, and waits until they do.

Purpose: while a broker cannot be reached, Spark waits for minutes without a sign, and then ends the query. So a thread
asks all clusters of a stream, for the heartbeat, and a driver whose query ended for that reason can continue.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from confluent_kafka import KafkaException

from tidemark.clock import Clock
from tidemark.errors import TidemarkError
from tidemark.model.settings.intervals import iso
from tidemark.stream.kafka.access import LoginInterrupted, text_with_causes
from tidemark.stream.kafka.publishing import PublishError

log = logging.getLogger("tidemark.stream")

EVERY_S = 10.0
PAUSE_S = 3
"""Pause between two requests while a driver waits; a request itself may take until its timeout."""
_OF_KAFKA = re.compile(r"org\.apache\.kafka\.|\.sql\.kafka010\.|PublishError")
"""What the texts of Spark's errors have if a broker caused them."""


class AskedClusters(Protocol):
    """Kafka clusters that can be asked for a sign of life."""

    def silent(self) -> Mapping[str, str]:
        """Returns the address of each cluster that does not answer, by name."""


def may_be_silence(error: Exception) -> bool:
    """Returns True if a silent broker may be the reason of *error*."""
    if isinstance(error, KafkaException | PublishError | LoginInterrupted):
        return True
    return not isinstance(error, TidemarkError) and bool(_OF_KAFKA.search(text_with_causes(error)))


class BrokerWatch:
    """Asks *clusters* every EVERY_S seconds whether they answer.

    `trouble` names, for the heartbeat, the clusters that do not answer, and since when; it is logged once. The thread
    is a daemon and ends with `end`, or with its process.

    Args:
        clusters: the clusters of the stream.
        clock: epoch ms UTC.
        look: is called after each check that all clusters answered.
        sleep_s: waits.
    """

    def __init__(
        self,
        clusters: AskedClusters,
        clock: Clock,
        *,
        look: Callable[[], None] = lambda: None,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clusters, self._clock, self._look, self._sleep_s = clusters, clock, look, sleep_s
        self._answered_ms = clock()
        self._was_silent = False
        self._one_at_a_time = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.trouble: str | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread after its present request."""
        self._over.set()

    def answer(self) -> bool:
        """Asks all clusters, and returns True if all of them answer."""
        with self._one_at_a_time:
            asked_ms = self._clock()
            silent = self._clusters.silent()
            if not silent:
                if self.trouble is not None:
                    log.info("the brokers answer again")
                self._answered_ms, self.trouble = asked_ms, None
                return True
            self._was_silent = True
            names = ", ".join(f"{address} (cluster {name})" for name, address in sorted(silent.items()))
            before, self.trouble = self.trouble, f"waits for Kafka: no answer of {names} since {iso(self._answered_ms)}"
            if before is None:
                log.warning(self.trouble)
            return False

    def wait_after(self, error: Exception, check: Callable[[], None]) -> None:
        """Returns when all clusters answer, if their silence may explain *error*.

        Each second of a pause begins with *check*, whose error ends the wait.

        Raises:
            Exception: *error*, if no cluster was silent since this watch began, or *error* has another reason.
        """
        if not may_be_silence(error) or (self.answer() and not self._was_silent):
            raise error
        log.warning("%s; the stream continues when they answer: %s", self.trouble or "brokers were silent", error)
        while not self.answer():
            for _ in range(PAUSE_S):
                check()
                self._sleep_s(1)
        check()

    def _run(self) -> None:
        known = ""
        while not self._over.wait(EVERY_S):
            try:
                if self.answer():
                    self._look()
                known = ""
            # The stream goes on without an answer, and the next round may have one.
            except Exception as error:
                if (found := repr(error)) != known:
                    log.exception("the brokers could not be asked; they are asked again every %g s", EVERY_S)
                known = found
