"""Flushes facts by a timer, apart from the batches of a stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tidemark.clock import Clock
from tidemark.stream.engine import Engine

log = logging.getLogger("tidemark.stream")

ASKS_EVERY_S = 1.0


class FlushTimer:
    """Has *engine* flush facts without batches and during long ones.

    It goes by *clock* (epoch ms) and flushes a last time at the end. A failed flush loses nothing: the next flush, or
    the first of the next driver, writes the same facts. Each flush is done in a context of *flushing*.
    """

    def __init__(
        self, engine: Engine, clock: Clock, flushing: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._engine, self._clock, self._flushing = engine, clock, flushing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=threading.current_thread().name)
        self._thread.start()

    def end(self) -> None:
        """Ends the timer and flushes the rest."""
        self._over.set()
        self._thread.join()
        # The timer's thread has ended, so this flush is the last of the driver.
        self._try(self._engine.flush)

    def _run(self) -> None:
        while not self._over.wait(ASKS_EVERY_S):
            self._try(lambda: self._engine.flush_if_due(self._clock()))

    def _try(self, flush: Callable[[], None]) -> None:
        try:
            with self._flushing():
                flush()
        except Exception as error:
            log.warning("flush failed, facts stay in the journal until the next one: %r", error)
