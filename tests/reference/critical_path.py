"""Finds the critical path of one window, an operator at a time.

It is the reference of `tidemark.reports.paths.solver`, which measures many windows at once. Of the product it has the
classes alone: networkx has the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from tidemark.errors import InvalidArgument
from tidemark.semantics.critical_path import (
    HEARTBEAT_TIMEOUT_MS,
    Instants,
    LatencyState,
    Path,
    PathStep,
    Upstreams,
)


def graph(upstreams: Upstreams) -> nx.DiGraph[str]:
    """Returns the graph of operators, with edges to readers."""
    drawn: nx.DiGraph[str] = nx.DiGraph()
    drawn.add_nodes_from(upstreams)
    drawn.add_edges_from((name, reader) for reader, names in upstreams.items() for name in names)
    return drawn


def in_order(upstreams: Upstreams) -> list[str]:
    """Returns all operators, each after its upstreams."""
    return list(nx.topological_sort(graph(upstreams)))


def leaves(upstreams: Upstreams) -> list[str]:
    """Returns the operators that no other operator reads, by name."""
    return sorted(name for name, readers in graph(upstreams).out_degree if not readers)


def latest(names: Iterable[str], ewt_ms: Instants) -> tuple[str, int] | None:
    """Returns the last of *names* to finish, and when; None: none has."""
    last: tuple[str, int] | None = None
    for name in sorted(names):
        instant_ms = ewt_ms.get(name)
        if instant_ms is not None and (last is None or instant_ms > last[1]):
            last = name, instant_ms
    return last


def path_to(leaf: str, steps: Mapping[str, PathStep]) -> Path:
    """Returns the walk to *leaf* along the slowest upstreams."""
    upstream = steps[leaf].slowest_upstream
    before = () if upstream is None else path_to(upstream, steps).steps
    return Path((*before, steps[leaf]))


@dataclass(frozen=True, kw_only=True)
class Step(PathStep):
    """The measurement of an operator in one window.

    `unclamped_ms` is below 0 where `latency_ms` was clamped, and None where nothing was measured.
    """

    unclamped_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of an operator's latency, none negative; their sum is the latency."""

    waited_ms: int
    """Until the driver's batch began: for the trigger or the batch before.

    Operators within one driver do not wait for each other in this sense.
    """
    queued_ms: int
    """For sibling branches of the same batch."""
    worked_ms: int


def measure(
    upstreams: Upstreams,
    ewt_ms: Instants,
    *,
    behind_ms: Mapping[str, int] | None = None,
    now_ms: int = 0,
) -> dict[str, Step]:
    """Returns every operator's latency in one window, each after its upstreams.

    Args:
        upstreams: the topology.
        ewt_ms: the window's EWT per operator; left out or None where there is none.
        behind_ms: for operators that have not finished it: how far in record time their upstreams are ahead.
        now_ms: until when they have not.
    """
    steps = {}
    for operator in in_order(upstreams):
        names, behind = upstreams.get(operator, ()), (behind_ms or {}).get(operator, 0)
        if ewt_ms.get(operator) is None:
            steps[operator] = _waiting(operator, names, ewt_ms, steps, behind, now_ms)
        else:
            steps[operator] = _step(operator, names, ewt_ms)
    return steps


def parts(latency_ms: int, *, before_batch_ms: int, queued_ms: int) -> Parts:
    """Splits *latency_ms* of one operator in one window into its parts.

    Args:
        latency_ms: of one operator in one window.
        before_batch_ms: from its latest upstream's EWT to the beginning of its own batch; negative when the batch had
            begun by then, as within one driver.
        queued_ms: how long it waited in that batch for sibling branches. What exceeds the latency does not count; only
            a clock that went back causes that.

    >>> parts(450, before_batch_ms=300, queued_ms=50)
    Parts(waited_ms=300, queued_ms=50, worked_ms=100)
    """
    waited_ms = min(max(before_batch_ms, 0), latency_ms)
    queued_ms = min(queued_ms, latency_ms - waited_ms)
    return Parts(waited_ms=waited_ms, queued_ms=queued_ms, worked_ms=latency_ms - waited_ms - queued_ms)


def critical_path(upstreams: Upstreams, steps: Mapping[str, Step]) -> Path:
    """Returns the walk to a leaf whose latencies sum highest.

    Raises:
        InvalidArgument: there is no operator.
    """
    walks = [path_to(leaf, steps) for leaf in leaves(upstreams)]
    if not walks:
        msg = "a topology needs at least one operator that reads another, got none; add a sink"
        raise InvalidArgument(msg)
    # Of equal walks max keeps the first, and leaves are sorted by name.
    return max(walks, key=lambda walk: walk.latency_ms)


def _step(operator: str, names: Sequence[str], ewt_ms: Instants) -> Step:
    finished_ms, slowest = ewt_ms[operator], latest(names, ewt_ms)
    assert finished_ms is not None
    if not names:
        return Step(operator=operator, state=LatencyState.INPUT, latency_ms=0, unclamped_ms=0)
    if slowest is None:
        return Step(operator=operator, state=LatencyState.UPSTREAM_MISSING)
    own_ms = finished_ms - slowest[1]
    has_all = all(ewt_ms.get(name) is not None for name in names)
    state = LatencyState.MEASURED if has_all else LatencyState.UPSTREAM_MISSING
    return Step(
        operator=operator,
        state=LatencyState.CLAMPED_NEGATIVE if own_ms < 0 else state,
        latency_ms=max(0, own_ms),
        unclamped_ms=own_ms,
        slowest_upstream=slowest[0],
    )


def _waiting(
    operator: str, names: Sequence[str], ewt_ms: Instants, steps: Mapping[str, Step], behind_ms: int, now_ms: int
) -> Step:
    """Returns the step of an operator that has not finished the window.

    It waits for the one of *names* that has not finished either and is furthest behind, if there is one.
    """
    last = latest(names, ewt_ms)
    unfinished = sorted(name for name in names if ewt_ms.get(name) is None)
    upstream = last[0] if last else None
    if unfinished:
        upstream = max(unfinished, key=lambda name: path_to(name, steps).latency_ms)
    state, stands_ms = (LatencyState.STUCK, now_ms - last[1]) if last else (LatencyState.ESTIMATED, behind_ms)
    if behind_ms <= 0 or stands_ms <= HEARTBEAT_TIMEOUT_MS:
        return Step(operator=operator, state=LatencyState.NO_WINDOW_YET, slowest_upstream=upstream)
    return Step(operator=operator, state=state, latency_ms=stands_ms, slowest_upstream=upstream)
