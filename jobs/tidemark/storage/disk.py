"""Repeats writes while a disk is full, over quota, read-only or failing.

A write is repeated until it succeeds, so it must be a step that can be repeated: an entry of the journal, a commit that
carries its batch, a streaming query from its checkpoint.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1, 30
# delta-rs and Spark wrap the system's error, and only its text survives.
_TROUBLES = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))


class WriteRepeater(Protocol):
    """Repeats a write until the disk takes it."""

    def __call__(self, write: Callable[[], T], /) -> T:
        """Returns the result of *write* when it has succeeded."""


def at_once(write: Callable[[], T]) -> T:
    """Calls *write* once, and returns its result or raises its error."""
    return write()


def trouble_of(error: BaseException) -> str | None:
    """Returns the system's text for a disk that takes no writes.

    None: *error* is about something else.
    """
    return next((trouble for trouble in _TROUBLES if trouble in str(error)), None)


class Disk:
    """Repeats a write while the disk is in trouble.

    How it works: it pauses for 1, 2, 4, … and at most LONGEST_PAUSE_S seconds. Each second of a pause begins with
    *check*, whose error ends the wait: a drain was requested, or the lease is lost. `trouble` is the present problem,
    for the heartbeat; the log has it once.
    """

    def __init__(self, check: Callable[[], None], *, sleep_s: Callable[[float], None] = time.sleep) -> None:
        self._check, self._sleep_s = check, sleep_s
        self.trouble: str | None = None

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
        self.trouble = None

    def _tell(self, trouble: str) -> None:
        last_trouble, self.trouble = self.trouble, f"cannot write: {trouble}"
        if last_trouble != self.trouble:
            log.warning("%s; tried again until the disk takes it", self.trouble)
