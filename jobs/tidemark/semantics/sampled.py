"""Statistics of the last minute or so, for a live view: Kafka's sampled windows.

Values go into a sample until it is `window_ms` old; a reading covers the samples that had a value in the last
`samples` × `window_ms`. With Kafka Streams' two samples of 30 s that is the last 60 to 90 s. Source: Kafka,
SampledStat. Clocks are epoch milliseconds; `dataclasses.asdict` of a state is JSON.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tidemark.errors import InvalidArgument
from tidemark.semantics.latency import Latency, merged


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Values since `started_at_ms`; the last one came at `last_at_ms`."""

    started_at_ms: int
    last_at_ms: int
    values: Latency = field(default_factory=Latency)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The samples in a ring: one more than `samples`, so that one half outside of the time covered is kept whole.

    Raises:
        InvalidArgument: `window_ms` or `samples` is not above 0.
    """

    window_ms: int = 30_000
    samples: int = 2
    ring: tuple[Sample, ...] = ()
    current: int = 0

    def __post_init__(self) -> None:
        if self.window_ms <= 0 or self.samples <= 0:
            msg = f"a sampled window has samples of some length, got {self.samples} of {self.window_ms} ms; use above 0"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a live view shows; avg, min and max are NaN when no sample is live."""

    n: int
    avg_ms: float
    min_ms: float
    max_ms: float
    live_samples: int


def recorded(sampled: Sampled, value_ms: int, *, now_ms: int) -> Sampled:
    """The state after a value at *now_ms*."""
    state = sampled if sampled.ring else replace(sampled, ring=(_fresh(now_ms),))
    if now_ms - state.ring[state.current].started_at_ms >= state.window_ms:
        state = _advanced(state, now_ms)
    sample = state.ring[state.current]
    value = Latency(n=1, min_ms=value_ms, max_ms=value_ms, sum_ms=value_ms)
    return _with(state, replace(sample, last_at_ms=now_ms, values=merged([sample.values, value])))


def measured(sampled: Sampled, *, now_ms: int) -> tuple[Sampled, Reading]:
    """The state with its obsolete samples emptied, and what the others say."""
    covered_ms = sampled.samples * sampled.window_ms
    ring = tuple(_fresh(now_ms) if now_ms - sample.last_at_ms >= covered_ms else sample for sample in sampled.ring)
    values = merged(sample.values for sample in ring)
    reading = Reading(
        n=values.n,
        avg_ms=_or_nan(values.avg_ms),
        min_ms=_or_nan(values.min_ms),
        max_ms=_or_nan(values.max_ms),
        live_samples=sum(sample.values.n > 0 for sample in ring),
    )
    return replace(sampled, ring=ring), reading


def _advanced(state: Sampled, now_ms: int) -> Sampled:
    current = (state.current + 1) % (state.samples + 1)
    if current == len(state.ring):
        return replace(state, ring=(*state.ring, _fresh(now_ms)), current=current)
    return _with(replace(state, current=current), _fresh(now_ms))


def _with(state: Sampled, sample: Sample) -> Sampled:
    return replace(state, ring=(*state.ring[: state.current], sample, *state.ring[state.current + 1 :]))


def _fresh(now_ms: int) -> Sample:
    return Sample(started_at_ms=now_ms, last_at_ms=now_ms)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
