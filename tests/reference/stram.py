"""Computes latencies and the critical path as Apache Apex's STRAM does.

Apex's −1, "no sample", is a state without a latency here. Of equal upstreams the first one is taken, as in Apex.
Source: StreamingContainerManager, updateOperatorLatency and findCriticalPath. Of equal leaves the one named first is
taken, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reference.critical_path import Step, path_to
from tidemark.semantics.critical_path import HEARTBEAT_TIMEOUT_MS, Instants, LatencyState, Path, Upstreams


@dataclass(frozen=True, kw_only=True)
class EstimateLimits:
    """The width of a window, and how far behind an operator may be before it counts as stuck."""

    window_ms: int
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS


def operator_latency(
    operator: str,
    names: Sequence[str],
    *,
    windows: Mapping[str, int | None],
    ewt_ms: Instants | None,
    limits: EstimateLimits,
) -> Step:
    """Returns the latency of *operator* in its current window.

    Args:
        operator: the operator to measure.
        names: its upstreams.
        windows: the number of each operator's current window, None before the first.
        ewt_ms: skew-adjusted EWTs of the operator's current window; None when all of these have been dropped, so
            that the latency can only be estimated by how many windows the upstreams are ahead.
        limits: of windows and heartbeats.
    """
    if not names:
        return Step(operator=operator, state=LatencyState.INPUT, latency_ms=0, unclamped_ms=0)
    window = windows.get(operator)
    if window is None or (ewt_ms is not None and ewt_ms.get(operator) is None):
        return Step(operator=operator, state=LatencyState.NO_WINDOW_YET)
    steps = (_sample(operator, name, (windows.get(name) or 0) - window, ewt_ms, limits) for name in names)
    samples = [step for step in steps if step is not None]
    # The smallest latency is that behind the upstream that finished last.
    return min(samples, key=_latency_ms, default=Step(operator=operator, state=LatencyState.UPSTREAM_MISSING))


def critical_path(upstreams: Upstreams, slowest: Mapping[str, str], average_ms: Mapping[str, int]) -> Path:
    """Returns the critical path along each operator's *slowest* upstream.

    *average_ms* is the moving average of each operator's latency, 0 where it has none.
    """
    read = set().union(*upstreams.values())
    steps: dict[str, Step] = {}
    for operator in {*upstreams, *read}:
        steps[operator] = Step(
            operator=operator,
            state=LatencyState.MEASURED if operator in slowest else LatencyState.INPUT,
            latency_ms=average_ms.get(operator, 0),
            slowest_upstream=slowest.get(operator),
        )
    # max keeps the first of equal paths, as Apex does.
    paths = (path_to(leaf, steps) for leaf in upstreams if leaf not in read)
    return max(paths, key=lambda path: path.latency_ms)


def _sample(operator: str, name: str, ahead: int, ewt_ms: Instants | None, limits: EstimateLimits) -> Step | None:
    """Returns the latency of *operator* behind the upstream *name*.

    *ahead* is the number of windows by which the upstream is ahead. None for no sample.
    """
    ahead_ms = ahead * limits.window_ms
    if ewt_ms is None:
        if ahead < 0:
            return None
        return Step(operator=operator, state=LatencyState.ESTIMATED, latency_ms=ahead_ms, slowest_upstream=name)
    own_ms, upstream_ms = ewt_ms.get(operator), ewt_ms.get(name)
    if own_ms is None or upstream_ms is None:
        return None
    measured_ms = own_ms - upstream_ms
    if ahead_ms > max(measured_ms, limits.heartbeat_timeout_ms):
        return Step(operator=operator, state=LatencyState.STUCK, latency_ms=ahead_ms, slowest_upstream=name)
    return Step(
        operator=operator,
        state=LatencyState.CLAMPED_NEGATIVE if measured_ms < 0 else LatencyState.MEASURED,
        latency_ms=max(0, measured_ms),
        unclamped_ms=measured_ms,
        slowest_upstream=name,
    )


def _latency_ms(step: Step) -> int:
    return step.latency_ms or 0
