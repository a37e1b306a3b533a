"""Computes statistics of the last minute or so, for a live view.

They are Kafka's sampled windows. Values go into a sample until it is `window_ms` old; a reading covers the samples that
had a value in the last `samples` × `window_ms`. With Kafka Streams' two samples of 30 s that is the last 60 to 90 s.
Source: Kafka, SampledStat. Clocks are epoch milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from reference.latency import mean_ms, merged
from tidemark.errors import InvalidArgument
from tidemark.semantics.latency import Latency


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Values since `started_at_ms`; the last one came at `last_at_ms`."""

    started_at_ms: int
    last_at_ms: int
    values: Latency = field(default_factory=Latency)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The samples, filled in turn.

    There is one slot more than `samples`, so that a sample that began before the covered time is kept whole.

    Raises:
        InvalidArgument: `window_ms` or `samples` is not above 0.
    """

    window_ms: int = 30_000
    samples: int = 2
    slots: tuple[Sample, ...] = ()
    current: int = 0

    def __post_init__(self) -> None:
        if self.window_ms <= 0 or self.samples <= 0:
            msg = f"a sampled window has samples of some length, got {self.samples} of {self.window_ms} ms; use above 0"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Statistics of a live view.

    Mean, minimum and maximum are NaN when no sample is live.
    """

    n: int
    avg_ms: float
    min_ms: float
    max_ms: float
    live_samples: int


def recorded(sampled: Sampled, value_ms: int, *, now_ms: int) -> Sampled:
    """Returns the state after a value at *now_ms*."""
    state = sampled if sampled.slots else replace(sampled, slots=(_fresh(now_ms),))
    if now_ms - state.slots[state.current].started_at_ms >= state.window_ms:
        state = _advanced(state, now_ms)
    sample = state.slots[state.current]
    value = Latency(n=1, min_ms=value_ms, max_ms=value_ms, sum_ms=value_ms)
    return _with(state, replace(sample, last_at_ms=now_ms, values=merged([sample.values, value])))


def measured(sampled: Sampled, *, now_ms: int) -> tuple[Sampled, Reading]:
    """Empties old samples; returns the state and statistics of the others."""
    covered_ms = sampled.samples * sampled.window_ms
    slots = tuple(_fresh(now_ms) if now_ms - sample.last_at_ms >= covered_ms else sample for sample in sampled.slots)
    values = merged(sample.values for sample in slots)
    reading = Reading(
        n=values.n,
        avg_ms=_or_nan(mean_ms(values)),
        min_ms=_or_nan(values.min_ms),
        max_ms=_or_nan(values.max_ms),
        live_samples=sum(sample.values.n > 0 for sample in slots),
    )
    return replace(sampled, slots=slots), reading


def _advanced(state: Sampled, now_ms: int) -> Sampled:
    current = (state.current + 1) % (state.samples + 1)
    if current == len(state.slots):
        return replace(state, slots=(*state.slots, _fresh(now_ms)), current=current)
    return _with(replace(state, current=current), _fresh(now_ms))


def _with(state: Sampled, sample: Sample) -> Sampled:
    return replace(state, slots=(*state.slots[: state.current], sample, *state.slots[state.current + 1 :]))


def _fresh(now_ms: int) -> Sample:
    return Sample(started_at_ms=now_ms, last_at_ms=now_ms)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
