"""Tells a driver with one request to an object store if there is anything new for it.

Purpose: a driver checks before each write that it still has the lease, and looks for requests of people and tasks
between batches. On a disk that costs nothing; in an object store each of these questions is a request or two.
How it works: a process that takes the lease, or asks for something, writes that first, and then puts a new text into
the object `news` of the control folder. As long as `news` has the same text, all earlier answers still hold. A driver
reads `news` once in LOOKS_EVERY_S, by a clock that goes on while a process is suspended. Answers older than
ASKS_EVERY_S are asked for again in any case.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from tidemark.clock import since_boot_s
from tidemark.storage.location import replace

LOOKS_EVERY_S = 20.0
"""Time between two looks at `news`: much less than the silence after which a driver loses its lease."""
ASKS_EVERY_S = 300.0
"""Longest age of an answer: a command that is killed may leave a request without news."""

T = TypeVar("T")


class News:
    """Caches answers about the control folder *home* until there is news."""

    def __init__(self, home: Path) -> None:
        self._path = home / "news"
        self._lock = RLock()
        self._answers: dict[str, Any] = {}
        self._newest: str | None = None
        self._looked_s = self._asked_s = float("-inf")

    def spread(self) -> None:
        """Makes all drivers ask again. Call this after the request is written."""
        replace(self._path, uuid.uuid4().hex)
        self.forget()

    def forget(self) -> None:
        """Makes this process ask again."""
        with self._lock:
            self._looked_s = self._asked_s = float("-inf")

    def answer(self, name: str, ask: Callable[[], T]) -> T:
        """Returns the answer to the question *name*: the last one, or that of *ask* if there may be a new one."""
        with self._lock:
            now_s = since_boot_s()
            if now_s - self._looked_s >= LOOKS_EVERY_S:
                newest = self._text()
                if newest != self._newest or now_s - self._asked_s >= ASKS_EVERY_S:
                    self._answers.clear()
                    self._newest, self._asked_s = newest, now_s
                self._looked_s = now_s
            if name not in self._answers:
                self._answers[name] = ask()
            answer: T = self._answers[name]
            return answer

    def _text(self) -> str | None:
        try:
            return self._path.read_text(errors="replace")
        except FileNotFoundError:
            return None


@cache
def news_of(home: Path) -> News:
    """Returns the News of this process for the control folder *home*."""
    return News(home)
