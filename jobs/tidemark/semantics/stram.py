"""Operator latency and critical path as Apache Apex's STRAM computes them, for comparing with it.

Each operator is measured in its own current window and the path sums moving averages, so it is no window's path:
`critical_path` has that. Apex's −1, "no sample", is a state without a latency here. Source: StreamingContainerManager,
updateOperatorLatency and findCriticalPath. Of equal upstreams and leaves the one named first is taken, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.semantics.critical_path import Instants, Limits, Path, State, Step, Upstreams, path_to

LATENCY_SAMPLES = 10
"""Latencies in an operator's moving average: THROUGHPUT_CALCULATION_INTERVAL / HEARTBEAT_INTERVAL_MILLIS."""


def operator_latency(
    operator: str,
    names: Sequence[str],
    *,
    windows: Mapping[str, int | None],
    ewt_ms: Instants | None,
    limits: Limits,
) -> Step:
    """The latency of *operator* behind the upstreams *names* in its current window.

    Args:
        operator: the one to be measured.
        names: its upstreams.
        windows: the number of each operator's current window, None before the first.
        ewt_ms: skew-adjusted EWTs of the operator's current window; None when all of these have been dropped, so
            that the latency can only be estimated by how many windows the upstreams are ahead.
        limits: the width of a window, and how far behind an operator may be before it counts as stuck.
    """
    if not names:
        return Step(operator=operator, state=State.INPUT, latency_ms=0, unclamped_ms=0)
    window = windows.get(operator)
    if window is None or (ewt_ms is not None and ewt_ms.get(operator) is None):
        return Step(operator=operator, state=State.NO_WINDOW_YET)
    samples = [
        sample
        for name in names
        if (sample := _sample(operator, name, (windows.get(name) or 0) - window, ewt_ms, limits)) is not None
    ]
    return min(samples, key=_latency_ms, default=Step(operator=operator, state=State.UPSTREAM_MISSING))


def critical_path(upstreams: Upstreams, slowest: Mapping[str, str], average_ms: Mapping[str, int]) -> Path:
    """The critical path by each operator's *slowest* upstream and its latency's moving average; 0 where it has none."""
    steps = {
        operator: Step(
            operator=operator,
            state=State.MEASURED if operator in slowest else State.INPUT,
            latency_ms=average_ms.get(operator, 0),
            slowest_upstream=slowest.get(operator),
        )
        for operator in {*upstreams, *(name for names in upstreams.values() for name in names)}
    }
    read = {name for names in upstreams.values() for name in names}
    return max((path_to(leaf, steps) for leaf in upstreams if leaf not in read), key=lambda path: path.latency_ms)


def _sample(operator: str, name: str, ahead: int, ewt_ms: Instants | None, limits: Limits) -> Step | None:
    """The latency of *operator* behind the upstream *name*, which is so many windows *ahead*; None for no sample."""
    ahead_ms = ahead * limits.window_ms
    if ewt_ms is None:
        if ahead < 0:
            return None
        return Step(operator=operator, state=State.ESTIMATED, latency_ms=ahead_ms, slowest_upstream=name)
    own_ms, upstream_ms = ewt_ms.get(operator), ewt_ms.get(name)
    if own_ms is None or upstream_ms is None:
        return None
    measured_ms = own_ms - upstream_ms
    if ahead_ms > max(measured_ms, limits.heartbeat_timeout_ms):
        return Step(operator=operator, state=State.STUCK, latency_ms=ahead_ms, slowest_upstream=name)
    return Step(
        operator=operator,
        state=State.CLAMPED_NEGATIVE if measured_ms < 0 else State.MEASURED,
        latency_ms=max(0, measured_ms),
        unclamped_ms=measured_ms,
        slowest_upstream=name,
    )


def _latency_ms(step: Step) -> int:
    return step.latency_ms or 0
