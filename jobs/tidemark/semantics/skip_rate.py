"""How many unchanged updates per second were not sent on in the last minute (KIP-557's idempotent-update-skip-rate).

The minute slides: it ends with the batch for which the rate is told, whatever the trigger. Instants are decision times,
epoch ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MINUTE_MS = 60_000
Skips = tuple[tuple[int, int, int], ...]
"""Of one operator: when, at which task, and how many; oldest first."""


def lately(skips: Skips, fresh: Mapping[int, int], *, now_ms: int) -> Skips:
    """*skips* of the minute before *now_ms*, and those *fresh* per task.

    >>> lately(((0, 0, 5), (1, 0, 2)), {0: 3, 1: 0}, now_ms=60_000)
    ((1, 0, 2), (60000, 0, 3))
    """
    kept = tuple(skip for skip in skips if skip[0] > now_ms - MINUTE_MS)
    return (*kept, *((now_ms, task, n) for task, n in fresh.items() if n))


def per_second(skips: Iterable[Iterable[int]], task: int) -> float:
    """The rate of *task* by the *skips* of a minute; 0 when there are none.

    >>> per_second([(0, 0, 5), (1, 0, 1), (1, 1, 9)], 0)
    0.1
    """
    return sum(n for _, of, n in skips if of == task) / (MINUTE_MS / 1_000)


def has_ended(skips: Skips, *, now_ms: int) -> bool:
    """Whether there were *skips*, and a minute has passed since the last one: then the rate 0 is news."""
    return bool(skips) and not lately(skips, {}, now_ms=now_ms)
