"""How far a host's clock is from the reference clock, estimated from its heartbeats.

An offset is what to add to an instant of the host's clock to have it on the reference clock: negative where the host
is ahead. Milliseconds throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RPC_LATENCY_COMPENSATION_SAMPLES = 100
"""Heartbeats that an estimate looks back on, by the name that Apex gives it."""


LEAST_CLOCK_ERROR_MS = 1_000
"""Clocks are trusted no further than that, however well that of the driver is known: producers have their own."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Sent at `sent_ms` of the host's clock, received at `received_ms` of the reference clock.

    `round_trip_ms` is how long the host waited for the answer, None when there was none.
    """

    sent_ms: int
    received_ms: int
    round_trip_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Skew:
    """An estimate: the true offset is within `error_ms` of it; None when no bound is known."""

    offset_ms: int
    error_ms: int | None

    @property
    def evident_ms(self) -> int:
        """The offset, or 0 where it is no larger than its error: then the clocks may as well agree."""
        return self.offset_ms if self.error_ms is None or abs(self.offset_ms) > self.error_ms else 0


def moving_average(values: Sequence[int], *, samples: int) -> int:
    """The mean of the last *samples* values, truncated toward zero; 0 when there are none, or with 0 samples.

    Source: Apache Apex, MovingAverageLong.

    >>> moving_average([-195, -194], samples=100)
    -194
    """
    last = values[-samples:] if samples else ()
    if not last:
        return 0
    total = sum(last)
    mean = abs(total) // len(last)
    return -mean if total < 0 else mean


def mean_skew(heartbeats: Sequence[Heartbeat], *, samples: int = RPC_LATENCY_COMPENSATION_SAMPLES) -> Skew:
    """The estimate of Apex: the moving average of received less sent, which has the mean delay in it.

    Source: Apache Apex, StreamingContainerManager.updateRPCLatency.
    """
    differences = [heartbeat.received_ms - heartbeat.sent_ms for heartbeat in heartbeats]
    return Skew(offset_ms=moving_average(differences, samples=samples), error_ms=None)


def minimum_skew(heartbeats: Sequence[Heartbeat], *, samples: int = RPC_LATENCY_COMPENSATION_SAMPLES) -> Skew | None:
    """The sturdier estimate, from the fastest of the last *samples* heartbeats; None when there are none.

    The delay of a heartbeat is between 0 and its round trip, so with half of that taken off the offset is within half
    of it (Cristian 1989); the shortest round trip says most. Without round trips it is the lowest difference, which
    still has the shortest delay in it, and no bound.
    """
    last = heartbeats[-samples:] if samples else ()
    timed = [(heartbeat.round_trip_ms, heartbeat) for heartbeat in last if heartbeat.round_trip_ms is not None]
    if not timed:
        lowest_ms = min((heartbeat.received_ms - heartbeat.sent_ms for heartbeat in last), default=None)
        return None if lowest_ms is None else Skew(offset_ms=lowest_ms, error_ms=None)
    round_trip_ms, fastest = min(timed, key=lambda pair: pair[0])
    half_ms = round_trip_ms // 2
    return Skew(offset_ms=fastest.received_ms - fastest.sent_ms - half_ms, error_ms=round_trip_ms - half_ms)
