"""Has Spark plan a batch when something is due; in silence Spark plans none by itself.

A stream that reads only hops waits here between batches if their writers run in the same process, until one of them has
committed or something is due. Batches that are due stay a trigger apart. Those that a commit or a person's request
causes do not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.clock import Clock
from tidemark.model.topology import SubTopology
from tidemark.semantics.timetable import LOOKS_AT_HOPS_EVERY_MS
from tidemark.stream.driver.pace import Pace

log = logging.getLogger("tidemark.stream")

SIGN_EVERY_MS, SELDOM_SIGN_EVERY_MS = 60_000, 600_000
"""The longest time between two batches, on a disk and in an object store, where each batch costs requests.

A batch shows that Spark still plans, and asks brokers what is unread.
"""
AGAIN_AFTER_MS = 5_000
"""The time after which a missing batch is caused again."""


class Waker:
    """Has Spark plan a batch when something is due.

    Args:
        due_at_ms: returns when the stream itself has something to do (decision time), or None.
        requests: returns the open requests of people. A batch serves all that existed when it began.
        waits: called with the time whenever nothing is due.
        clock: returns epoch ms UTC.
        every_s: the longest time between two looks for what is due.
        sign_every_ms: the longest time between two batches.
        is_woken: whether the next batch waits until something causes it.
        trigger_ms: the interval at which Spark plans in silence.
        pace: keeps batches apart, if it is given.
    """

    def __init__(
        self,
        due_at_ms: Callable[[], int | None],
        requests: Callable[[], Hashable],
        waits: Callable[[int], None],
        clock: Clock,
        *,
        every_s: float,
        sign_every_ms: int = SIGN_EVERY_MS,
        is_woken: bool = False,
        trigger_ms: int = 0,
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace
        self._due_at_ms, self._requests, self._waits = due_at_ms, requests, waits
        self._clock, self._every_s, self.is_woken = clock, every_s, is_woken
        self.own_sign_every_ms = self.sign_every_ms = sign_every_ms
        self._trigger_ms, self._has_changed = trigger_ms, False
        self._is_in_batch = self._has_news = False
        self._begun_ms = self._ticked_ms = 0
        self._seen: Hashable = ()
        self._done: Hashable = ()
        self._changed, self._over = threading.Event(), threading.Event()
        self._caused, self._urgent = threading.Event(), threading.Event()

    @contextmanager
    def ticking(self, tick: Callable[[], None]) -> Iterator[None]:
        """Has *tick* cause batches of a query, from a thread that looks for what is due, until the context ends."""
        # The first batch of a query comes by itself.
        self._begun_ms = self._ticked_ms = self._clock()
        self._is_in_batch = False
        self._over.clear()
        thread = threading.Thread(target=self._run, args=[tick], name=threading.current_thread().name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._changed.set()
            self._caused.set()
            self._urgent.set()
            thread.join()

    def begin(self) -> None:
        """Marks the start of a batch: none is caused before its end."""
        self._is_in_batch, self._begun_ms, self._done = True, self._clock(), self._seen
        self._caused.clear()
        self._urgent.clear()
        if self._pace:
            self._pace.begin()

    def finish(self, *, has_changed: bool = False, has_read: bool = False) -> None:
        """Marks the end of a batch; returns when Spark may plan the next.

        Args:
            has_changed: whether the batch changed the stream's progress. If so, a stream that looks at hops looks again
                after a trigger.
            has_read: whether the batch read records of topics.
        """
        self._is_in_batch, self._ticked_ms, self._has_changed = False, 0, has_changed
        self._changed.set()
        if self._pace:
            self._pace.wait(self._urgent, self._caused, has_read=has_read)
        if self.is_woken:
            self._caused.wait()
        if self._caused.is_set():
            # Spark plans the caused batch only now, so this reads all that was committed before.
            self._has_news = False

    def wake(self) -> None:
        """Causes a batch as soon as possible: there are records to read."""
        self._has_news = True
        self._changed.set()

    def _run(self, tick: Callable[[], None]) -> None:
        while not self._over.is_set():
            self._changed.clear()
            try:
                wait_s = self._look(tick)
            except Exception as error:  # a folder that cannot be read, or a query that has ended meanwhile
                log.warning("cannot find out whether a batch is due: %s", error)
                wait_s = self._every_s
            self._changed.wait(wait_s)

    def _look(self, tick: Callable[[], None]) -> float:
        """Has *tick* cause a batch if one is due; returns the seconds until the next look."""
        now_ms, due_at_ms = self._clock(), self._due_at_ms()
        if self._is_in_batch:
            return self._every_s
        # A hop that had news is likely to have more soon.
        looks_again = self._has_changed and self.sign_every_ms == LOOKS_AT_HOPS_EVERY_MS
        sign_at_ms = self._begun_ms + (self._trigger_ms if looks_again else self.sign_every_ms)
        at_ms = sign_at_ms if due_at_ms is None else min(sign_at_ms, due_at_ms)
        # After a wake-up there is something to read, so neither requests nor due times count.
        if not self._has_news:
            self._seen = self._requests()
            if at_ms > now_ms and self._seen == self._done:
                self._waits(now_ms)
                return min(self._every_s, (at_ms - now_ms) / 1_000)
        is_urgent = (self.is_woken and self._has_news) or self._seen != self._done
        if now_ms - self._ticked_ms >= AGAIN_AFTER_MS:
            # If Spark has begun to plan already, the next batch reads what the wake-up was about.
            self._has_news, self._ticked_ms = False, now_ms
            tick()
            self._caused.set()
        if is_urgent:
            self._urgent.set()
        return self._every_s


class Hops:
    """Wakes streams of one process when other streams of it have written.

    Only streams that read the written hops are woken. A stream is identified by its folder of tables. Without
    `is_shared` the process has one stream, and wakes none.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared, self._lock = is_shared, threading.Lock()
        self._running: dict[Path, tuple[frozenset[Path], Waker]] = {}

    def wakes(self, sub: SubTopology, *, asks_seldom: bool = False) -> bool:
        """Returns whether the batches of *sub* begin when it is woken.

        They do if *sub* reads only hops, and either their writers may run in this process, or each look for new records
        costs a request (*asks_seldom*).
        """
        return (self._is_shared or asks_seldom) and sub.reads_hops_alone

    @contextmanager
    def running(self, stream: Path, upstreams: Collection[Path], waking: Waker) -> Iterator[None]:
        """Registers *stream* as running until the context ends.

        *stream* reads hops of *upstreams*, and *waking* causes its batches.
        """
        with self._lock:
            self._running[stream] = (frozenset(upstreams), waking)
            self._set_signs()
        try:
            yield
        finally:
            with self._lock:
                del self._running[stream]
                self._set_signs()

    def committed(self, stream: Path) -> None:
        """Wakes the streams that read hops of *stream*."""
        with self._lock:
            for upstreams, waking in self._running.values():
                if stream in upstreams:
                    waking.wake()

    def _set_signs(self) -> None:
        for upstreams, waking in self._running.values():
            # A writer in another process wakes no reader, so the reader looks at its hops itself.
            are_here = not waking.is_woken or upstreams <= self._running.keys()
            waking.sign_every_ms = waking.own_sign_every_ms if are_here else LOOKS_AT_HOPS_EVERY_MS
