"""How much of the API server the pages may take: forty tabs of one page cost what one costs.

Purpose: what is asked of the warehouse is computed in threads of its own, AT_ONCE at a time, so that no request waits
in a thread that Airflow's own pages need. Who asks the same while it is computed, or within KEPT_S, gets the same
answer. One that took long is kept for COSTS times as long as it took, at most for LONGEST_S, so that pages which
refresh themselves take a small share of a core. Where too many others wait, or the answer takes too long, a request is
refused with 503, and told when to ask again.

What it does not do: keep an error. Clock: the monotonic one of this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, wraps
from threading import Lock
from typing import Any, TypeVar

from starlette.responses import Response

from tidemark.errors import TidemarkError

T = TypeVar("T")
AT_ONCE = 2
MOST_WAITING = 20
"""The most different answers that are computed or pending; beyond it a request is refused."""
KEPT_S = 5.0
COSTS, LONGEST_S = 10.0, 60.0
WAITS_S = 20.0
AGAIN_AFTER_S = 5


class Busy(TidemarkError):
    """Raised when a request would wait too long behind others."""


@dataclass
class Answer:
    """The answer, done or pending, to a request of *asked_s*, done at *done_s*: seconds of the monotonic clock."""

    future: Future[Any]
    asked_s: float
    done_s: float | None = None

    def __post_init__(self) -> None:
        self.future.add_done_callback(self._done)

    def is_kept(self, now_s: float) -> bool:
        """Whether the same request gets this answer at *now_s*, seconds of the monotonic clock."""
        if self.done_s is None:
            return True
        kept_s = max(KEPT_S, min(LONGEST_S, COSTS * (self.done_s - self.asked_s)))
        return now_s - self.asked_s < kept_s and self.future.exception() is None

    def _done(self, _: Future[Any]) -> None:
        self.done_s = time.monotonic()


class Answers:
    """Computes answers, AT_ONCE at a time; safe for several event loops."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tidemark")
        self._lock = Lock()
        self._known: dict[Hashable, Answer] = {}
        self._last: dict[Hashable, Any] = {}

    async def to(self, request: Hashable, compute: Callable[[], T]) -> T:
        """What *compute* returns or raises, or has done just now for the same *request*; raises Busy."""
        answer = asyncio.wrap_future(self._computed(request, compute))
        try:
            return await asyncio.wait_for(asyncio.shield(answer), WAITS_S)
        except TimeoutError:
            if answer.done():  # it is what was computed that raised this
                raise
            seen = f"this answer takes longer than {WAITS_S:g} s"
            raise _busy(seen) from None

    async def soon(self, request: Hashable, compute: Callable[[], T], *, within_s: float) -> T | None:
        """The last answer to *request*, while a newer one is computed; None: none was there *within_s*.

        What *compute* raises counts as no answer.
        """
        with suppress(TidemarkError):
            future = self._computed(request, partial(_remembered, self._last, request, compute))
            if future.done() or request not in self._last:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), within_s)
        last: T | None = self._last.get(request)
        return last

    def forget(self) -> None:
        """Forget what was answered, and do not remember what is computed now."""
        with self._lock:
            self._known, self._last = {}, {}

    def _computed(self, request: Hashable, compute: Callable[[], T]) -> Future[T]:
        now_s = time.monotonic()
        with self._lock:
            self._known = {asked: answer for asked, answer in self._known.items() if answer.is_kept(now_s)}
            if request not in self._known:
                if sum(not answer.future.done() for answer in self._known.values()) >= MOST_WAITING:
                    seen = f"{MOST_WAITING} other answers are waited for"
                    raise _busy(seen)
                future = self._threads.submit(copy_context().run, compute)
                self._known[request] = Answer(future, now_s)
            return self._known[request].future


ANSWERS = Answers()


def shared(answer: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """*answer*, a function of what a request says, as one by way of ANSWERS.

    Each request gets a response of its own: middleware, such as Airflow's that compresses, writes into its headers.
    """

    @wraps(answer)
    async def by_answers(**said: Any) -> Response:
        found = await ANSWERS.to((answer.__name__, *sorted(said.items())), partial(answer, **said))
        return Response(found.body, found.status_code, headers=dict(found.headers))

    return by_answers


def _remembered(answers: dict[Hashable, Any], request: Hashable, compute: Callable[[], T]) -> T:
    """What *compute* returns, which is also put into *answers*."""
    answers[request] = answer = compute()
    return answer


def _busy(seen: str) -> Busy:
    return Busy(f"the pages answer {AT_ONCE} different requests at a time, and {seen}; ask again in {AGAIN_AFTER_S} s")
