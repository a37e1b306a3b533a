"""Waits for a disk that takes no writes: it is full, over its quota, read-only or failing.

What is written is repeated until it is there, so it must be a step that can be done again: an entry of the journal, a
commit that carries its batch, a streaming query from its checkpoint.
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


class UntilWritten(Protocol):
    """Does a write, again and again where the disk does not take it, and returns what it returns."""

    def __call__(self, write: Callable[[], T], /) -> T:
        """What *write* returns in the end."""


def at_once(write: Callable[[], T]) -> T:
    """What *write* returns; what it raises is raised."""
    return write()


def trouble_of(error: Exception) -> str | None:
    """Why the disk took no write, in the system's words; None when *error* is about something else."""
    return next((trouble for trouble in _TROUBLES if trouble in str(error)), None)


class Disk:
    """Tries a write again for as long as the disk is in trouble.

    How it works: after 1, 2, 4, … and at most LONGEST_PAUSE_S seconds. Each second of waiting begins with *check*,
    which raises what ends the waiting: a drain, or a lease that is lost. `trouble` is what is wrong now, for others to
    tell; the log has it once.
    """

    def __init__(self, check: Callable[[], None], *, sleep_s: Callable[[float], None] = time.sleep) -> None:
        self._check, self._sleep_s = check, sleep_s
        self.trouble: str | None = None

    def until_written(self, write: Callable[[], T]) -> T:
        """What *write* returns once the disk takes it; every other error is raised."""
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
        """Say that a write has succeeded."""
        if self.trouble is not None:
            log.info("the disk takes writes again")
        self.trouble = None

    def _tell(self, trouble: str) -> None:
        told, self.trouble = self.trouble, f"cannot write: {trouble}"
        if told != self.trouble:
            log.warning("%s; tried again until the disk takes it", self.trouble)
