"""Weeks of a stream, simulated minute by minute as a queue.

A week has days and nights, bursts, restarts and ramps. It was written before the forecast that is measured with it.
Even seeds are for the design of that forecast, and odd ones are held out for its measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

MINUTES = 7 * 24 * 60
HOUR = 60
WEEKS = 200
Series = NDArray[np.float64]


class RampKind(StrEnum):
    """Kinds of slow changes."""

    ARRIVAL = "arrival"
    """More and more records come in."""
    WORKING = "working"
    """The stream gets slower and slower."""
    PATH = "path"
    """An operator takes longer and longer, and no records wait unread."""


@dataclass(frozen=True)
class Ramp:
    """A slow change from minute *start* on.

    It has its full height from minute *top* to *end*.
    """

    kind: RampKind
    start: int
    top: int
    end: int


@dataclass(frozen=True, kw_only=True)
class SimulatedWeek:
    """A week of one stream, and an SLA of its latency.

    Each series has a value per minute.

    Attributes:
        limit_ms: the SLA breaks at this latency.
        over: minutes that a check looks back. Its latency is the highest of them.
        latency_ms: high quantile of the latency of records finished in the minute; NaN while the driver is down.
        arrival: records per second that came in, over three minutes; NaN while the stream keeps up or is down.
        working: records per second that were read, in the same minutes.
        behind: unread records at the end of the minute.
        since: minute since which the driver has been running; -1: it is down.
        ramps: slow changes. Some end before the limit is reached.
        sudden: minutes in which a burst or restart was at most 20 minutes ago.
    """

    limit_ms: float
    over: int
    latency_ms: Series
    arrival: Series
    working: Series
    behind: Series
    since: NDArray[np.int64]
    ramps: tuple[Ramp, ...]
    sudden: NDArray[np.bool_]

    @property
    def observed_ms(self) -> Series:
        """Latency that a check in each minute measures; NaN: none."""
        padded = np.concatenate([np.full(self.over - 1, np.nan), self.latency_ms])
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.over)
        highest: Series = np.where(np.isnan(windows), -np.inf, windows).max(axis=1)
        return np.where(np.isinf(highest), np.nan, highest)

    @property
    def breaches(self) -> list[int]:
        """First minutes of breaches; the SLA held for half an hour before."""
        broken = np.flatnonzero(self.observed_ms >= self.limit_ms)
        return [int(at) for at, before in zip(broken, [-HOUR, *broken], strict=False) if at - before > HOUR // 2]

    @property
    def ramp_breaches(self) -> list[int]:
        """The breaches that a ramp caused, and no burst or restart."""
        return [
            at
            for at in self.breaches
            if not self.sudden[at] and any(ramp.start < at <= ramp.end for ramp in self.ramps)
        ]


def simulated_week(seed: int) -> SimulatedWeek:
    """Returns the week of *seed*."""
    random = np.random.default_rng(seed)
    minutes = np.arange(MINUTES)
    ramps = tuple(_ramps(random))
    # A day has its busy and its quiet hours, and weekends are quiet.
    hours, peak = minutes / HOUR, random.uniform(0.4, 0.85)
    night = random.uniform(0.1, 0.6)
    day = night + (1 - night) * (0.5 - 0.5 * np.cos(2 * np.pi * (hours - random.uniform(0, 24)) / 24)) ** 2
    weekend = np.where(hours >= 5 * 24, random.uniform(0.4, 1), 1)
    load = peak * day * weekend * _noise(random, random.uniform(0.02, 0.08), 0.9)
    speed = _noise(random, random.uniform(0.01, 0.05), 0.5)
    sudden = np.zeros(MINUTES, bool)
    for at in random.integers(0, MINUTES, random.poisson(8)):
        length = int(random.integers(1, 6))
        load[at : at + length] *= random.uniform(1.3, 2.5)
        sudden[at : at + length + 20] = True
    since = _starts(random, sudden)
    path_share = np.zeros(MINUTES)
    for ramp in ramps:
        shape = np.clip((minutes - ramp.start) / (ramp.top - ramp.start), 0, 1) * (minutes <= ramp.end)
        # In terms of what the stream can do: below 1 it keeps up.
        height = random.uniform(0.75, 1.8)
        around = float(np.median(load[ramp.start : ramp.end]))
        match ramp.kind:
            case RampKind.ARRIVAL:
                load = load * (1 + shape * max(0.2, height / around - 1))
            case RampKind.WORKING:
                speed = speed / (1 + shape * max(0.2, height / around - 1))
            case RampKind.PATH:
                path_share += shape * random.uniform(0.5, 2.5)
    base_ms = random.uniform(2_000, 30_000)
    limit_ms = max(60_000, base_ms * random.uniform(4, 15))
    behind, read = _queue(load, np.where(since < 0, 0, speed))
    # Records wait until the ones before them are read; a busy stream is somewhat slower.
    busy = np.minimum(load / speed, 0.95)
    quantile = base_ms * (1 + 0.3 * busy / (1.05 - busy)) * _noise(random, random.uniform(0.05, 0.2), 0.3)
    latency_ms = quantile + path_share * limit_ms + behind / speed * 60_000
    latency_ms[since < 0] = np.nan
    records_per_s = random.uniform(100, 50_000)
    keeps_up = (behind < 0.03) | (np.roll(behind, 1) < 0.03) | (minutes - since < 3) | (since < 0)
    return SimulatedWeek(
        limit_ms=limit_ms,
        over=int(random.choice([1, 10])),
        latency_ms=latency_ms,
        arrival=np.where(keeps_up, np.nan, _mean_of_three(load) * records_per_s),
        working=np.where(keeps_up, np.nan, _mean_of_three(read) * records_per_s),
        behind=behind * 60 * records_per_s,
        since=since,
        ramps=ramps,
        sudden=sudden,
    )


def _ramps(random: np.random.Generator) -> Iterator[Ramp]:
    """Yields up to three ramps, each on a day of its own."""
    for day in random.choice(7, random.integers(1, 4), replace=False):
        start = int(day) * 24 * HOUR + int(random.integers(0, 18 * HOUR))
        top = start + int(random.integers(30, 181))
        yield Ramp(list(RampKind)[random.integers(3)], start, top, top + int(random.integers(20, 91)))


def _starts(random: np.random.Generator, sudden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the start of the running driver, by minute; -1: none.

    It marks restarts as *sudden*.
    """
    since = np.zeros(MINUTES, np.int64)
    for at in np.sort(random.integers(HOUR, MINUTES - HOUR, random.integers(2, 7))):
        length = int(random.integers(1, 6))
        since[at:] = at + length
        since[at : at + length] = -1
        sudden[at : at + length + 20] = True
    return since


def _queue(arriving: Series, speed: Series) -> tuple[Series, Series]:
    """Returns the work that waits, and that was done, by minute."""
    # What waits is the surplus since the queue was last empty (Lindley's recursion).
    surplus = np.cumsum(arriving - speed)
    behind = surplus - np.minimum(np.minimum.accumulate(surplus), 0)
    return behind, arriving - np.diff(behind, prepend=0)


def _noise(random: np.random.Generator, size: float, memory: float) -> Series:
    """Returns factors around 1 that remember the minute before."""
    steps = random.normal(0, size * np.sqrt(1 - memory**2), MINUTES)
    # After 100 minutes a step is forgotten.
    return np.exp(np.convolve(steps, memory ** np.arange(100))[:MINUTES])


def _mean_of_three(values: Series) -> Series:
    return np.convolve(values, np.full(3, 1 / 3))[: len(values)]
