"""Repeats writes while a disk is full, over quota, read-only or failing.

A write is repeated until it succeeds, so it must be a step that can be repeated: an entry of the journal, a commit that
carries its batch, a streaming query from its checkpoint.

The heartbeat of a driver has its trouble with the disk, and the next driver repeats what the one before said last.
Clock: epoch ms UTC of the driver's host.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol, TypeVar

from tidemark.clock import Clock, wall_clock_ms
from tidemark.model.settings.intervals import iso

log = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1, 30
# delta-rs and Spark wrap the system's error, and only its text survives.
_TROUBLES = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
_CANNOT = re.compile(r"cannot write: (.+), since (\S+)")
_COULD_NOT = re.compile(r"could not write from (\S+) until (\S+): .+")
BEFORE = "a driver before this one "
"""How a message begins that a driver repeats, because the driver before it ended with its work undone."""


class Work(StrEnum):
    """The work of a driver that writes."""

    BATCH = "batch"
    FLUSH = "flush"


class WriteRepeater(Protocol):
    """Repeats a write until the disk takes it."""

    def __call__(self, write: Callable[[], T], /) -> T:
        """Returns the result of *write* when it has succeeded."""


def at_once(write: Callable[[], T]) -> T:
    """Calls *write* once, and returns its result or raises its error."""
    return write()


def trouble_of(error: BaseException) -> str | None:
    """Returns the system's text if *error* says that the disk accepts no writes, or None for any other error."""
    return _trouble_in(str(error))


def _trouble_in(text: str) -> str | None:
    return next((trouble for trouble in _TROUBLES if trouble in text), None)


def is_over(reason: str) -> bool:
    """Returns True if the *reason* of a driver is a trouble of the disk that has ended."""
    return bool(_COULD_NOT.fullmatch(reason.removeprefix(BEFORE)))


def past_trouble(reason: str | None, at_ms: int) -> str | None:
    """Returns in the past tense why a driver could not write, or None if its reason is about something else.

    *reason* is the reason in its last heartbeat, which it sent at *at_ms*.
    """
    reason = reason or ""
    if cannot := _CANNOT.fullmatch(reason):
        return _past(cannot[2], iso(at_ms), cannot[1])
    if is_over(reason):
        return reason
    trouble = _trouble_in(reason)
    return None if trouble is None else _past(iso(at_ms), iso(at_ms), trouble)


def trouble_of_driver_before(reason: str | None, at_ms: int) -> str | None:
    """Returns what a new driver says of the disk if the one before it ended with *reason* at *at_ms*, or None."""
    past = past_trouble(reason, at_ms)
    return None if past is None else f"{BEFORE}{past.removeprefix(BEFORE)}"


def since_of(past: str) -> str:
    """Returns the instant from which on a driver could not write, from a text of `past_trouble`."""
    return past.removeprefix(BEFORE).split()[4]


def _past(since: str, until: str, trouble: str) -> str:
    return f"could not write from {since} until {until}: {trouble}"


class Disk:
    """Repeats a write while the disk is in trouble.

    How it works: it pauses for 1, 2, 4, … and at most LONGEST_PAUSE_S seconds. Each second of a pause begins with
    *check*, whose error ends the wait: a drain was requested, or the lease is lost. `trouble` is the present problem,
    for the heartbeat; the log has it once. When the disk takes writes again, `past` has what happened, until the batch
    or the flush that waited is done. A driver begins with the *past* of the driver before it.
    """

    def __init__(
        self,
        check: Callable[[], None],
        *,
        sleep_s: Callable[[float], None] = time.sleep,
        clock: Clock = wall_clock_ms,
        past: str | None = None,
    ) -> None:
        self._check, self._sleep_s, self._clock = check, sleep_s, clock
        self.trouble: str | None = None
        self.past = past
        self._waiting = set() if past is None else {Work.BATCH}
        self._since = self._what = ""
        self._thread = threading.local()

    def until_written(self, write: Callable[[], T]) -> T:
        """Returns the result of *write* once the disk takes it.

        Every error that is not about the disk is raised.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                written = write()
            except Exception as error:
                trouble = trouble_of(error)
                if trouble is None:
                    raise
                self._tell(trouble)
            else:
                self.takes_writes()
                return written
            for _ in range(pause_s):
                self._check()
                self._sleep_s(1)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def takes_writes(self) -> None:
        """Records that a write has succeeded."""
        if self.trouble is not None:
            log.info("the disk takes writes again")
            # In this order: the heartbeat, in another thread, has one of the two.
            self.past, self.trouble = self.in_past_tense, None

    @property
    def in_past_tense(self) -> str | None:
        """What a driver that ends now says of the disk, or None if no work waits for the disk."""
        return self.past if self.trouble is None else _past(self._since, iso(self._clock()), self._what)

    @contextmanager
    def work(self, work: Work) -> Iterator[None]:
        """Inside the block the driver does *work*; if the block succeeds, this work no longer waits for the disk."""
        self._thread.work = work
        try:
            yield
        finally:
            del self._thread.work
        self._waiting.discard(work)
        if not self._waiting:
            self.past = None

    def _tell(self, trouble: str) -> None:
        # A query that cannot plan its next batch does no work yet: the trouble counts until a batch is done.
        self._waiting.add(getattr(self._thread, "work", Work.BATCH))
        if self.trouble is None:
            self._since = iso(self._clock())
        if self.trouble is None or trouble != self._what:
            log.warning("cannot write: %s; tried again until the disk takes it", trouble)
        self._what, self.trouble = trouble, f"cannot write: {trouble}, since {self._since}"
