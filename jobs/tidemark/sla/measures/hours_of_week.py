"""Derives limits by hour of the week from past measurements.

The usual maximum of an hour of the week is the median, over the weeks, of the highest measurement in that hour and the
two beside it. So a fault of one week moves no limit, whatever its size, and a rise that comes every week does. A limit
is MARGIN times the usual maximum, rounded up.

Hours of the week are counted from Monday, 00:00, weeks back from an instant. Lengths are ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from tidemark.collecting import present
from tidemark.model.settings.lengths import ROUND_MS, rounded_up

HOURS = 168
HOURS_OF_DAY = 24
MARGIN = 2
FEWEST_WEEKS = 4
"""Lowest number of weeks of a proposal.

The limits that judge a week are those of the others.
"""
MOST_BLOCKS = 8
"""Largest number of blocks of hours; finer differences are rounded away."""


@dataclass(frozen=True)
class HourBlock:
    """Hours of *days* with one limit: from *start*, inclusive, to *end*.

    A day is its number from Monday, 0.
    """

    days: tuple[int, ...]
    start: int
    end: int
    limit_ms: int

    @property
    def hours(self) -> tuple[int, ...]:
        """Its hours of the week."""
        return tuple(HOURS_OF_DAY * day + hour for day in self.days for hour in range(self.start, self.end))


@dataclass(frozen=True)
class HourlyLimits:
    """The limits of *blocks*, and the highest one for all other hours."""

    limit_ms: int
    blocks: tuple[HourBlock, ...]

    @property
    def by_hour(self) -> tuple[int, ...]:
        """The limit of each hour of the week."""
        limits_ms = [self.limit_ms] * HOURS
        for block in self.blocks:
            for hour in block.hours:
                limits_ms[hour] = block.limit_ms
        return tuple(limits_ms)


def usual_maxima(highest: Mapping[tuple[int, int], float], weeks: Sequence[int]) -> dict[int, float]:
    """Returns the usual maximum of each hour of the week.

    Args:
        highest: the highest measurement of each week and hour of the week.
        weeks: the weeks that count. An hour without measurements in FEWEST_WEEKS − 1 of them has no usual maximum.
    """
    usual: dict[int, float] = {}
    for hour in range(HOURS):
        # A daily change comes some minutes earlier or later, which the hours beside it absorb.
        near = [(hour + by) % HOURS for by in (-1, 0, 1)]
        by_week = [present(highest.get((week, each)) for each in near) for week in weeks]
        maxima = [max(of_week) for of_week in by_week if of_week]
        if len(maxima) >= FEWEST_WEEKS - 1:
            usual[hour] = median(maxima)
    return usual


def hourly_limits(usual: Mapping[int, float]) -> HourlyLimits:
    """Returns the limits for *usual* maxima by hour of the week.

    Hours without one have the highest limit.
    """
    steps_ms: Sequence[int] = ROUND_MS
    while True:
        limits_ms = {hour: rounded_up(MARGIN * ms, steps_ms) for hour, ms in usual.items()}
        highest_ms = max(limits_ms.values())
        blocks = _blocks([limits_ms.get(hour, highest_ms) for hour in range(HOURS)], highest_ms)
        if len(blocks) <= MOST_BLOCKS or len(steps_ms) == 1:
            return HourlyLimits(highest_ms, blocks if len(blocks) <= MOST_BLOCKS else ())
        steps_ms = steps_ms[1::2]


def _blocks(limits_ms: Sequence[int], highest_ms: int) -> tuple[HourBlock, ...]:
    """Returns blocks of all hours with a limit below *highest_ms*."""
    days: dict[tuple[int, int, int], list[int]] = {}
    for day in range(HOURS // HOURS_OF_DAY):
        of_day, start = limits_ms[HOURS_OF_DAY * day : HOURS_OF_DAY * (day + 1)], 0
        for limit_ms, run in groupby(of_day):
            end = start + len(list(run))
            if limit_ms < highest_ms:
                days.setdefault((start, end, limit_ms), []).append(day)
            start = end
    return tuple(HourBlock(tuple(of_days), *block) for block, of_days in days.items())
