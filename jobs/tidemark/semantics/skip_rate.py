"""Computes KIP-557's idempotent-update-skip-rate over the last minute.

The rate counts the unchanged updates per second that were not sent on. The minute slides: it ends with the batch that
reports the rate, whatever the trigger. Instants are decision times, epoch ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MINUTE_MS = 60_000
Skips = tuple[tuple[int, int, int], ...]
"""Skips of one operator as (instant, task, count), oldest first."""


def skips_of_minute(skips: Skips, fresh: Mapping[int, int], *, now_ms: int) -> Skips:
    """Returns the *skips* of the minute before *now_ms*, with the *fresh* number of each task added.

    >>> skips_of_minute(((0, 0, 5), (1, 0, 2)), {0: 3, 1: 0}, now_ms=60_000)
    ((1, 0, 2), (60000, 0, 3))
    """
    within_minute = tuple(skip for skip in skips if skip[0] > now_ms - MINUTE_MS)
    return (*within_minute, *((now_ms, task, n) for task, n in fresh.items() if n))


def per_second(skips: Iterable[Iterable[int]], task: int) -> float:
    """Returns the skips per second of *task*, given the *skips* of a minute.

    >>> per_second([(0, 0, 5), (1, 0, 1), (1, 1, 9)], 0)
    0.1
    """
    return sum(n for _, number, n in skips if number == task) / (MINUTE_MS / 1_000)


def ends_at_ms(skips: Skips) -> int | None:
    """Returns when the last of *skips* is a minute old, from which on the rate is 0; None without skips.

    >>> ends_at_ms(((0, 0, 5), (1, 0, 2))), ends_at_ms(())
    (60001, None)
    """
    return skips[-1][0] + MINUTE_MS if skips else None
