"""Limits how much of the API server the pages use: forty tabs of one page cost as much as one tab.

How it works: answers from the warehouse are computed in other threads than Airflow's, AT_ONCE at a time. The same
request gets the same answer while that is computed, and within KEPT_S. An answer that took long is kept for COSTS times
as long as it took, at most for LONGEST_S, and not after the state of what it is about has changed. Errors are not kept.
A request is refused with 503, and the time after which to try again, if too many others wait or the answer takes too
long. Clock: the monotonic one of this process.
"""

from __future__ import annotations

import asyncio
import math
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
"""Most answers that are computed or pending; more are refused."""
KEPT_S = 5.0
COSTS, LONGEST_S = 10.0, 60.0
WAITS_S = 20.0
AGAIN_AFTER_S = 5


class PagesBusy(TidemarkError):
    """Raised when a request would wait too long behind others."""


@dataclass
class PageAnswer:
    """The answer to a request that came at *asked_s*, done at *done_s* (monotonic seconds) or still pending."""

    future: Future[Any]
    asked_s: float
    done_s: float | None = None

    def __post_init__(self) -> None:
        self.future.add_done_callback(self._done)

    def is_kept(self, now_s: float) -> bool:
        """Returns True if requests get this answer at *now_s*, monotonic seconds."""
        if self.done_s is None:
            return True
        # Pages refresh themselves, and should take a small share of a core.
        kept_s = max(KEPT_S, min(LONGEST_S, COSTS * (self.done_s - self.asked_s)))
        return now_s - self.asked_s < kept_s and self.future.exception() is None

    def _done(self, _: Future[Any]) -> None:
        self.done_s = time.monotonic()


class PageAnswers:
    """Computes answers, AT_ONCE at a time; safe for several event loops."""

    def __init__(self) -> None:
        # Threads of their own: no request waits in a thread that Airflow's own pages need.
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tidemark")
        self._lock = Lock()
        self._kept: dict[Hashable, PageAnswer] = {}
        self._last: dict[Hashable, tuple[float, Any]] = {}

    async def to(self, request: Hashable, compute: Callable[[], T], *, state: Hashable = None) -> T:
        """Returns the result of *compute*, or a kept answer to the same *request* in the same *state* of its subject.

        Raises:
            PagesBusy: the answer takes too long, or too many others are pending.
        """
        answer = asyncio.wrap_future(self._computed((request, state), compute))
        try:
            # Shielded, since others may wait for the same answer.
            return await asyncio.wait_for(asyncio.shield(answer), WAITS_S)
        except TimeoutError:
            if answer.done():  # *compute* itself raised it
                raise
            problem = f"this answer takes longer than {WAITS_S:g} s"
            raise _busy(problem) from None

    async def soon(
        self, request: Hashable, compute: Callable[[], T], *, within_s: float, state: Hashable = None
    ) -> T | None:
        """Returns the answer to *request*, or the last one if a newer one is not computed *within_s*.

        The last one may be of another *state*. If it is older than LONGEST_S, None is returned. An error of *compute*
        counts as no answer.
        """
        with suppress(TidemarkError):
            future = self._computed((request, state), partial(_compute_and_keep, self._last, request, compute))
            with suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), within_s)
        last: T | None = self._kept_last(request)
        return last

    def _kept_last(self, request: Hashable) -> Any:
        """Returns the last answer to *request* if it is younger than LONGEST_S, or None."""
        asked_s, answer = self._last.get(request, (-math.inf, None))
        return answer if time.monotonic() - asked_s < LONGEST_S else None

    def forget(self) -> None:
        """Forgets all answers, and those that are computed now."""
        with self._lock:
            self._kept, self._last = {}, {}

    def _computed(self, request: Hashable, compute: Callable[[], T]) -> Future[T]:
        now_s = time.monotonic()
        with self._lock:
            self._kept = {question: answer for question, answer in self._kept.items() if answer.is_kept(now_s)}
            if request not in self._kept:
                if sum(not answer.future.done() for answer in self._kept.values()) >= MOST_WAITING:
                    problem = f"{MOST_WAITING} other answers are pending"
                    raise _busy(problem)
                # Threads of a pool do not inherit the context variables of the request.
                future = self._threads.submit(copy_context().run, compute)
                self._kept[request] = PageAnswer(future, now_s)
            return self._kept[request].future


ANSWERS = PageAnswers()


def shared_while(
    answer: Callable[..., Response], *, state_of: Callable[[str], Hashable]
) -> Callable[..., Awaitable[Response]]:
    """Wraps *answer*, a function of a request's arguments, with ANSWERS.

    One of the arguments is `name`, a topology. A kept answer ends when *state_of* the topology changes.
    """

    @wraps(answer)
    async def by_answers(**arguments: Any) -> Response:
        request = (answer.__name__, *sorted(arguments.items()))
        state = await asyncio.to_thread(state_of, arguments["name"])
        response = await ANSWERS.to(request, partial(answer, **arguments), state=state)
        # Each request gets a response of its own: middleware, such as Airflow's that compresses, writes into its
        # headers.
        return Response(response.body, response.status_code, headers=dict(response.headers))

    return by_answers


def _compute_and_keep(answers: dict[Hashable, tuple[float, Any]], request: Hashable, compute: Callable[[], T]) -> T:
    """Returns the result of *compute*, and puts it into *answers* with the instant at which it was asked for."""
    asked_s, answer = time.monotonic(), compute()
    answers[request] = asked_s, answer
    return answer


def _busy(problem: str) -> PagesBusy:
    return PagesBusy(
        f"the pages answer {AT_ONCE} different requests at a time, and {problem}; ask again in {AGAIN_AFTER_S} s"
    )
