"""Forecasts when a growing length of time will reach its limit.

There are two signs of growth. A stream into which more records come than it reads falls behind: the wait of its newest
record grows by arrival / working − 1. Any other growth is the slope by Theil and Sen, the median of the slopes between
all pairs of measurements, which single outliers do not move (P. K. Sen, 1968). Steps and noise are no growth.

Lengths are ms, instants epoch ms of the check's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

Point = tuple[int, float]
"""An instant, and the length that was measured at it."""
LOOK_BACK_MS = 900_000
"""Time that measurements cover."""
FEWEST_POINTS = 8
"""Lowest number of measurements of a forecast."""
RATES_MS = 240_000
"""Time for which a stream must fall behind; a burst is shorter."""
GENTLE = 0.1
"""Growth (ms per ms) up to which RATES_MS / 4 is enough."""
FORESEEABLE_MS = 1_500_000
"""Longest time to an expected break.

Growth in LOOK_BACK_MS is no evidence about a later one.
"""
SUDDEN_MS = 300_000
"""A stream whose rates would break its limit sooner has a burst."""
STANDS_MS = 1_200_000
"""Time without an expected break that ends a forecast."""
FEWEST_RISING, LEAST_THIRD, LEAST_GROWTH = 0.7, 0.2, 3.0
"""Conditions of growth.

They are the share of pairs in which the later value is higher; the part of the growth between the first and second
third of the values, and the second and third (a step has all of it in one); growth as a multiple of the median
deviation.
"""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Records per second that came into a stream, and that it read."""

    arrival_per_s: float
    working_per_s: float

    @property
    def growth(self) -> float:
        """Growth of the wait of the newest record, in ms per ms.

        >>> Rates(arrival_per_s=150, working_per_s=100).growth
        0.5
        """
        return self.arrival_per_s / self.working_per_s - 1 if self.working_per_s > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The instant at which growth will reach a limit.

    Attributes:
        breaks_at_ms: that instant.
        growth: in ms per ms.
        rates: of the stream that falls behind; None: the measurements themselves grow.
    """

    breaks_at_ms: int
    growth: float
    rates: Rates | None = None


def forecast(points: Sequence[Point], *, limit_ms: float, rates: Sequence[Rates | None] = ()) -> Forecast | None:
    """Returns when *limit_ms* will be reached; None: no break is expected.

    Args:
        points: a measurement a minute of the last LOOK_BACK_MS, oldest first, since the driver started.
        limit_ms: the length that breaks the SLA.
        rates: those of the stream in the last RATES_MS, oldest first. None: it kept up, or its rates are unknown.

    >>> forecast([(minute * 60_000, minute * 1_000.0) for minute in range(11)], limit_ms=30_000)
    Forecast(breaks_at_ms=1860000, growth=0.016666666666666666, rates=None)
    """
    newest = rates[-1] if rates else None
    if newest is not None and newest.growth <= 0:
        # The stream catches up: the length will shrink.
        return None
    if len(points) < FEWEST_POINTS:
        return None
    now_ms = points[-1][0]
    # The newest value alone may be an outlier.
    value_ms = median([value for _, value in points[-3:]])
    if newest is not None and _falls_behind(rates, newest):
        eta_ms = (limit_ms - value_ms) / newest.growth
        if SUDDEN_MS <= eta_ms <= FORESEEABLE_MS:
            return Forecast(breaks_at_ms=now_ms + round(eta_ms), growth=newest.growth, rates=newest)
    growth = _growth(points, least=(limit_ms - value_ms) / FORESEEABLE_MS)
    if growth is None:
        return None
    eta_ms = max(0.0, (limit_ms - value_ms) / growth)
    return Forecast(breaks_at_ms=now_ms + round(eta_ms), growth=growth) if eta_ms <= FORESEEABLE_MS else None


def _falls_behind(rates: Sequence[Rates | None], newest: Rates) -> bool:
    """Returns True if the stream has fallen behind for long enough."""
    lasting = rates if newest.growth > GENTLE else rates[-max(1, len(rates) // 4) :]
    return all(each is not None and each.growth > 0 for each in lasting)


def _growth(points: Sequence[Point], *, least: float) -> float | None:
    """Returns the slope of *points*, ms per ms; None: no growth.

    The result may also be None for a slope below *least*.
    """
    values = [value for _, value in points]
    third, span_ms = len(points) // 3, points[-1][0] - points[0][0]
    # Usually nothing grows: this saves the sorting of all pairs.
    if 4 * (median(values[-3:]) - median(values[:3])) <= max(0.0, least * span_ms):
        return None
    low, middle, high = median(values[:third]), median(values[third:-third]), median(values[-third:])
    if high <= low or min(middle - low, high - middle) < LEAST_THIRD * (high - low):
        return None
    pairs = [(later[0] - former[0], later[1] - former[1]) for former, later in combinations(points, 2)]
    if sum(rise > 0 for _, rise in pairs) < FEWEST_RISING * len(pairs):
        return None
    slope = median([rise / length for length, rise in pairs])
    rests = [value - slope * at for at, value in points]
    middle = median(rests)
    noise = median([abs(rest - middle) for rest in rests])
    return slope if slope * span_ms >= LEAST_GROWTH * noise else None
