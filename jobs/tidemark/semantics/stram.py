"""Computes the critical path as Apache Apex's STRAM does.

It serves for comparison. Each operator is measured in its own current window and the path sums moving averages, so it
is no window's path: `critical_path` has that. Source: StreamingContainerManager, findCriticalPath. Of equal leaves the
one named first is taken, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.semantics.critical_path import LatencyState, Path, PathStep, Upstreams, path_to

LATENCY_SAMPLES = 10
"""Latencies in an operator's moving average: THROUGHPUT_CALCULATION_INTERVAL / HEARTBEAT_INTERVAL_MILLIS."""


def critical_path(upstreams: Upstreams, slowest: Mapping[str, str], average_ms: Mapping[str, int]) -> Path:
    """Returns the critical path along each operator's *slowest* upstream.

    *average_ms* is the moving average of each operator's latency, 0 where it has none.
    """
    read = set().union(*upstreams.values())
    steps: dict[str, PathStep] = {}
    for operator in {*upstreams, *read}:
        steps[operator] = PathStep(
            operator=operator,
            state=LatencyState.MEASURED if operator in slowest else LatencyState.INPUT,
            latency_ms=average_ms.get(operator, 0),
            slowest_upstream=slowest.get(operator),
        )
    # max keeps the first of equal paths, as Apex does.
    paths = (path_to(leaf, steps) for leaf in upstreams if leaf not in read)
    return max(paths, key=lambda path: path.latency_ms)
