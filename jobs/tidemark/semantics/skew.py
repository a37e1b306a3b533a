"""Estimates the offset of a host's clock from the reference clock.

An offset is added to an instant of the host's clock to have it on the reference clock; it is negative where the host is
ahead. Heartbeats and the order of work give estimates. Milliseconds throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

RPC_LATENCY_COMPENSATION_SAMPLES = 100
"""Heartbeats that an estimate uses; the name is Apex's."""


LEAST_CLOCK_ERROR_MS = 1_000
"""Least clock error that is assumed: producers have clocks of their own.

It applies however well the driver's clock is known.
"""
DRIFT_MS_PER_S = 0.1
"""How fast two clocks may drift apart: each by 0.05 ms a second at most."""


@dataclass(frozen=True, kw_only=True)
class TimedHeartbeat:
    """A heartbeat with its instants on both clocks.

    Attributes:
        sent_ms: when it was sent, by the host's clock.
        received_ms: when it was received, by the reference clock.
        round_trip_ms: how long the host waited for the answer; None when there was none.
    """

    sent_ms: int
    received_ms: int
    round_trip_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Skew:
    """An estimated offset with its error bound.

    The true offset is at most `error_ms` away from `offset_ms`; None when no bound is known.
    """

    offset_ms: int
    error_ms: int | None

    @property
    def evident_ms(self) -> int:
        """The offset, or 0 where it is no larger than its error."""
        return self.offset_ms if self.error_ms is None or abs(self.offset_ms) > self.error_ms else 0


def minimum_skew(
    heartbeats: Sequence[TimedHeartbeat], *, samples: int = RPC_LATENCY_COMPENSATION_SAMPLES
) -> Skew | None:
    """Returns an estimate from the fastest of the last *samples* heartbeats, or None without heartbeats."""
    last = heartbeats[-samples:] if samples else ()
    # The delay of a heartbeat is between 0 and its round trip. With half of the round trip subtracted the offset is
    # within half of it (Cristian 1989), so the shortest round trip gives the best bound.
    timed = [(heartbeat.round_trip_ms, heartbeat) for heartbeat in last if heartbeat.round_trip_ms is not None]
    if not timed:
        # Without round trips the lowest difference still includes the shortest delay, and has no bound.
        lowest_ms = min((heartbeat.received_ms - heartbeat.sent_ms for heartbeat in last), default=None)
        return None if lowest_ms is None else Skew(offset_ms=lowest_ms, error_ms=None)
    round_trip_ms, fastest = min(timed, key=lambda pair: pair[0])
    # Rounded down here and up in the error, so that the bound holds for odd round trips, too.
    half_ms = round_trip_ms // 2
    return Skew(offset_ms=fastest.received_ms - fastest.sent_ms - half_ms, error_ms=round_trip_ms - half_ms)


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """The work of a host in one stage of a batch, from its first start to its last end, by the host's clock."""

    first_ms: int
    last_ms: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of the offset of a host's clock, both inclusive."""

    low_ms: int
    high_ms: int

    @property
    def skew(self) -> Skew:
        """The middle of the bounds, as an estimate."""
        offset_ms = (self.low_ms + self.high_ms) // 2
        return Skew(offset_ms=offset_ms, error_ms=self.high_ms - offset_ms)

    @property
    def is_possible(self) -> bool:
        """True if an offset is within the bounds."""
        # There is no possible offset when a clock was set meanwhile.
        return self.low_ms <= self.high_ms

    def intersection(self, other: Bounds) -> Bounds:
        """Returns the bounds of the offsets that lie within these bounds and the *other* ones."""
        return Bounds(low_ms=max(self.low_ms, other.low_ms), high_ms=min(self.high_ms, other.high_ms))

    def after(self, passed_ms: int) -> Bounds:
        """Returns these bounds after *passed_ms*, wider by what the clocks may have drifted."""
        drift_ms = math.ceil(abs(passed_ms) / 1_000 * DRIFT_MS_PER_S)
        return Bounds(low_ms=self.low_ms - drift_ms, high_ms=self.high_ms + drift_ms)


def bounds_of_work(
    stages: Sequence[Mapping[str, HostWork]], *, began_ms: int, ended_ms: int, skews: Mapping[str, Bounds]
) -> dict[str, Bounds]:
    """Returns the offset bounds of each host that worked, without hosts whose clock was set in between.

    Args:
        stages: by host, its work in each stage, one stage after the other.
        began_ms: reference clock before all of the work.
        ended_ms: reference clock after all of it.
        skews: bounds that were known before. They narrow the result unless the work contradicts them, which means that
            the clock was set since.
    """
    hosts = set().union(*stages)
    bounds: dict[str, Bounds] = {}
    for host in hosts:
        spans = [stage[host] for stage in stages if host in stage]
        bounds[host] = _bounds(spans, began_ms, ended_ms, skews.get(host))
    # Nothing of a stage starts before all of the stage before has ended. So each stage bounds the clocks of the hosts
    # in the next one, and the other way round, and a host does not look behind because others were slow.
    for before, after in pairwise(stages):
        _bound_by_order(bounds, before, after)
    return {host: bounds[host] for host in sorted(bounds) if bounds[host].is_possible}


def _bounds(spans: Sequence[HostWork], began_ms: int, ended_ms: int, earlier: Bounds | None) -> Bounds:
    """Returns the offset bounds of a host that did the work *spans*.

    Args:
        spans: its work in each stage, in order, by its own clock.
        began_ms: reference clock before all of the work.
        ended_ms: reference clock after all of it.
        earlier: bounds that were known before; None without any.
    """
    first_ms = min(span.first_ms for span in spans)
    last_ms = max(span.last_ms for span in spans)
    # Clocks show whole milliseconds: an instant is up to 1 ms later than shown.
    of_work = Bounds(low_ms=began_ms - first_ms - 1, high_ms=ended_ms - last_ms + 1)
    narrowed = of_work if earlier is None else of_work.intersection(earlier)
    return narrowed if narrowed.is_possible else of_work


def _bound_by_order(bounds: dict[str, Bounds], before: Mapping[str, HostWork], after: Mapping[str, HostWork]) -> None:
    """Narrows *bounds*: all work *before* ended when the work *after* started."""
    is_done_again = any(before[host].last_ms > after[host].first_ms for host in before.keys() & after.keys())
    # A host that contradicts the order did some work again because its result was lost. Then nothing follows from the
    # order.
    if is_done_again or not before or not after:
        return
    ended_from_ms = max(span.last_ms + bounds[host].low_ms for host, span in before.items())
    started_by_ms = min(span.first_ms + bounds[host].high_ms + 1 for host, span in after.items())
    for host, span in before.items():
        bounds[host] = bounds[host].intersection(replace(bounds[host], high_ms=started_by_ms - span.last_ms))
    for host, span in after.items():
        bounds[host] = bounds[host].intersection(replace(bounds[host], low_ms=ended_from_ms - span.first_ms - 1))
