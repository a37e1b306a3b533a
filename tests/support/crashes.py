"""Ends a driver at a named step of its batch, or at any write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class Crash(Exception):
    """The driver is gone."""


def crash_at(step: str) -> Callable[[str], None]:
    """Ends a driver when it reaches *step*."""

    def reached(name: str) -> None:
        if name == step:
            raise Crash(step)

    return reached


class Killed(BaseException):
    """The process is gone; nothing may handle that."""


WRITES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink"}


class Killer:
    """Ends what runs in this process at a write into the folder *home*, as kill -9 does.

    Neither that write happens nor any later one, as those of `finally`. A write by a library that is no Python counts
    if the code calls `step` beside it.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._left, self._is_dead, self._is_paused = str(home), -1, False, False
        self.steps = 0
        sys.addaudithook(self._hook)  # cannot be removed

    def kill_after(self, steps: int | None) -> None:
        """Ends the process at the write after so many *steps*; None: it lives."""
        self._left, self._is_dead, self._is_paused, self.steps = -1 if steps is None else steps, False, False, 0

    def release_locks(self) -> None:
        """Closes the locks below the folder that are still open, as the end of a process does."""
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                if path.startswith(self._home) and path.endswith(".lock"):
                    os.close(int(name))

    def pause(self) -> None:
        """Counts nothing until `go_on`: the process waits, and what a test does meanwhile is not of it."""
        self._is_paused = True

    def go_on(self) -> None:
        """Ends a pause."""
        self._is_paused = False

    def step(self) -> None:
        """Counts a step, and raises Killed if the process is gone."""
        if self._left < 0 or self._is_paused:
            return
        self.steps += 1
        if self._is_dead or self.steps > self._left:
            self._is_dead = True
            raise Killed

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._left < 0:
            return
        if event == "open":
            path, mode, flags = arguments
            is_write = (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (
                isinstance(mode, str) and not {*mode}.isdisjoint("wax+")
            )
            if is_write and str(path).startswith(self._home):
                self.step()
        elif event in WRITES and str(arguments[0]).startswith(self._home):
            self.step()
