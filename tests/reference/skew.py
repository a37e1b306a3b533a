"""Estimates the offset of a host's clock as Apache Apex does."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.semantics.skew import RPC_LATENCY_COMPENSATION_SAMPLES, Skew, TimedHeartbeat


def moving_average(values: Sequence[int], *, samples: int) -> int:
    """Returns the mean of the last *samples* values, truncated toward zero.

    0 when there are no values, or with 0 samples. Source: Apache Apex, MovingAverageLong.

    >>> moving_average([-195, -194], samples=100)
    -194
    """
    last = values[-samples:] if samples else ()
    if not last:
        return 0
    total = sum(last)
    # Java's integer division truncates toward zero, Python's rounds down.
    mean = abs(total) // len(last)
    return -mean if total < 0 else mean


def mean_skew(heartbeats: Sequence[TimedHeartbeat], *, samples: int = RPC_LATENCY_COMPENSATION_SAMPLES) -> Skew:
    """Returns Apex's estimate: the moving average of received less sent.

    It includes the mean delay. Source: Apache Apex, StreamingContainerManager.updateRPCLatency.
    """
    differences = [heartbeat.received_ms - heartbeat.sent_ms for heartbeat in heartbeats]
    return Skew(offset_ms=moving_average(differences, samples=samples), error_ms=None)
