"""Looks each second at what has arrived, while a batch works.

Purpose: in a topic with CreateTime nobody stamps when a record arrived. All that is known is that it arrived between
the last look that did not see it and the first look that did, and during a long batch Spark does not look.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidemark.model.kinds.source import Source
from tidemark.stream.journal.timeline import Timeline

log = logging.getLogger("tidemark.stream")

EVERY_S = 1.0
MOST = 600
"""So many looks are kept, those of ten minutes."""


class ArrivalLook(NamedTuple):
    """The end of each partition, by source, as it was at `at_ms` (boot clock)."""

    at_ms: int
    ends: Mapping[str, Mapping[int, int]]


class AskedEnds(Protocol):
    """Knows the ends of topics."""

    def latest(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns the latest offset of each of *partitions*."""


class ArrivalLooks:
    """Looks at the sources that *inputs* returns with their partitions, while the thread of *timeline* works.

    The thread is a daemon and ends with `end`, or with its process. A look that fails is left out: Spark asks the same
    brokers, and says what is wrong.
    """

    def __init__(
        self, broker: AskedEnds, timeline: Timeline, inputs: Callable[[], Iterable[tuple[Source, Sequence[int]]]]
    ) -> None:
        self._broker, self._timeline, self._inputs = broker, timeline, inputs
        self._looks: deque[ArrivalLook] = deque(maxlen=MOST)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread after its present look."""
        self._over.set()

    def look(self) -> None:
        """Asks for the end of each partition."""
        at_ms = self._timeline.clock()
        ends = {
            source.name: dict(self._broker.latest(source, numbers)) for source, numbers in self._inputs() if numbers
        }
        self._looks.append(ArrivalLook(at_ms, ends))

    def before(self, at_ms: int, source: str) -> list[tuple[int, int, int]]:
        """Returns the looks at *source* before *at_ms* (boot): partition, its end, and ms between look and *at_ms*."""
        return [
            (partition, end, at_ms - look.at_ms)
            for look in [*self._looks]
            if look.at_ms < at_ms
            for partition, end in look.ends.get(source, {}).items()
        ]

    def _run(self) -> None:
        known = ""
        while not self._over.wait(EVERY_S):
            if not self._timeline.is_at_work:
                continue
            try:
                self.look()
                known = ""
            except Exception as error:
                if (found := repr(error)) != known:
                    log.info("cannot look at what has arrived: %s", error)
                known = found
