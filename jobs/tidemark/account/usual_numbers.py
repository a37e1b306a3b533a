"""How many records usually come, and whether a share of records is as usual."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import polars as pl

from tidemark.account.counts import HOUR_MS, TimeSpan
from tidemark.model.settings.retention import DAY_MS

AS_USUAL = 1.5
"""A promise is broken as usual if the broken share is at most this many times the usual one."""
ERRORS = 3
"""A share within this many standard errors of the usual one is as usual."""
ENOUGH = 5
"""At least this many earlier times of the same length must be known to say what is usual."""
Numbers = npt.NDArray[np.int64]


def is_usual(share: float, usual: float, n: int, *, times: float = 1) -> bool:
    """Returns whether a *share* of *n* is at most *times* the *usual* one, or within three standard errors of it.

    >>> is_usual(0.03, 0.02, 100, times=1.5), is_usual(0.05, 0.02, 100), is_usual(0.07, 0.02, 100), is_usual(1, 0, 1)
    (True, True, False, False)
    """
    return share <= max(times * usual, usual + ERRORS * math.sqrt(usual * (1 - usual) / n))


def numbers_before(finished_ms: Numbers, n: Numbers, span: TimeSpan) -> Numbers:
    """Returns how many records came in earlier times of the same length as *span*.

    Batches finished at *finished_ms*, in order, and read *n* records each. To compare like with like, an earlier time
    begins as long after a batch with records as *span* does. First come the times around the same hour on earlier days.
    If they are fewer than ENOUGH, the times of the day before are taken, and if these are too few, all. If all are
    fewer than ENOUGH, the answer is empty.

    >>> times, n = np.arange(0, 100, 10), np.full(10, 3)  # three records every 10 ms
    >>> numbers_before(times, n, TimeSpan(95, 130)).tolist()
    [12, 12, 12, 12, 12, 12]
    """
    none = np.zeros(0, np.int64)
    times, read = finished_ms[n > 0], n[n > 0]
    earlier = times[times <= span.since_ms]
    if not len(earlier):
        return none
    starts = earlier + (span.since_ms - earlier[-1])
    starts = starts[starts + span.length_ms <= span.since_ms]
    before_ms = span.since_ms - starts
    from_hour_ms = np.abs((before_ms + DAY_MS // 2) % DAY_MS - DAY_MS // 2)
    is_same_hour = (from_hour_ms <= HOUR_MS // 2) & (before_ms >= DAY_MS // 2)
    total = np.concatenate([[0], np.cumsum(read)])
    for chosen in (is_same_hour, before_ms <= DAY_MS, before_ms > 0):
        if chosen.sum() >= ENOUGH:
            until, since = (
                np.searchsorted(times, instants, side="right")
                for instants in (starts[chosen] + span.length_ms, starts[chosen])
            )
            return np.asarray(total[until] - total[since])
    return none


def usual_number(rows: pl.DataFrame, span: TimeSpan) -> float | None:
    """Returns how many records usually come in a time of the length of *span*; None without a history.

    *rows* are batches in order, with `finished_ms` and the number of records `n`. If the history is too short for that
    length, the number for a shorter time is scaled up.
    """
    times, n = rows["finished_ms"].to_numpy(), rows["n"].to_numpy()
    known_ms = span.since_ms - int(times[0]) if len(times) else 0
    length_ms = span.length_ms
    while length_ms > 0:
        found = numbers_before(times, n, TimeSpan(span.since_ms, span.since_ms + length_ms))
        if len(found):
            return float(np.median(found)) * span.length_ms / length_ms
        length_ms = min(length_ms, known_ms) // 2
    return None
