"""Finds the operators that made one streaming window late: the critical path.

An EWT is the clock at which an operator had finished a window, in epoch milliseconds, adjusted for its host's skew.
An operator's latency is its EWT less the latest EWT among its upstreams. The critical path is the walk from a leaf
along the latest upstreams whose latencies sum highest. For one window, without clamping, these sum to EWT(leaf) −
EWT(source). Of equal operators the first by name is taken. Source: Apache Apex, "Operator latency" and
StreamingContainerManager.findCriticalPath. `stram` has Apex's own form, which mixes windows; `what_if` computes
alternatives.

`upstreams` maps an operator to the operators whose output it reads. An operator that is only named as an upstream is an
input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from tidemark.errors import InvalidArgument

Upstreams = Mapping[str, Sequence[str]]
Instants = Mapping[str, int | None]


class LatencyState(StrEnum):
    """How an operator's latency came about, or why it has none."""

    INPUT = "input"
    """It reads from outside: its latency is 0 by definition."""
    MEASURED = "measured"
    NO_WINDOW_YET = "no_window_yet"
    """It has not finished the window, so it has no latency."""
    UPSTREAM_MISSING = "upstream_missing"
    """An upstream has no EWT: the latency is an upper bound.

    It is measured against the other upstreams; there is none when all are missing.
    """
    ESTIMATED = "estimated"
    """EWTs that far back are not kept: windows behind × window length."""
    STUCK = "stuck"
    """Behind for longer than a heartbeat: windows behind × window length."""
    CLAMPED_NEGATIVE = "clamped_negative"
    """It finished before an upstream: latency 0, and evidence of skew.

    The clocks of two hosts can say so.
    """


@dataclass(frozen=True, kw_only=True)
class PathStep:
    """The measurement of an operator in one window.

    `unclamped_ms` is below 0 where `latency_ms` was clamped, and None where nothing was measured.
    """

    operator: str
    state: LatencyState
    latency_ms: int | None = None
    unclamped_ms: int | None = None
    slowest_upstream: str | None = None


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


@dataclass(frozen=True)
class Path:
    """A walk from a source to a leaf, source first."""

    steps: tuple[PathStep, ...]

    @property
    def operators(self) -> list[str]:
        """The names of its operators, source first."""
        return [step.operator for step in self.steps]

    @property
    def latency_ms(self) -> int:
        """Sum of the known latencies; a lower bound unless `is_complete`."""
        return sum(step.latency_ms or 0 for step in self.steps)

    @property
    def is_complete(self) -> bool:
        """True if every step has a latency."""
        return all(step.latency_ms is not None for step in self.steps)

    @property
    def state(self) -> LatencyState:
        """Measured, or the state of the first step that is not exact."""
        exact = {LatencyState.INPUT, LatencyState.MEASURED}
        return next((step.state for step in self.steps if step.state not in exact), LatencyState.MEASURED)

    def share_of(self, operator: str) -> float | None:
        """Returns the share of the path's latency that *operator* took.

        It is between 0 and 1.

        None off the path, or when the path has no latency.
        """
        own_ms = next((step.latency_ms for step in self.steps if step.operator == operator), None)
        return None if own_ms is None or not self.latency_ms else own_ms / self.latency_ms

    def __str__(self) -> str:
        """Renders the path, such as `A (0 ms) → C (9 ms)`.

        The sum follows, behind `=`, or behind `≥` when the path is not complete.
        """
        return path_text([(step.operator, step.latency_ms, step.state) for step in self.steps])


@dataclass(frozen=True, kw_only=True)
class EstimateLimits:
    """Limits after which a missing EWT is estimated; the names are Apex's."""

    window_ms: int
    heartbeat_timeout_ms: int = 30_000
    throughput_calculation_max_samples: int = 1_000


def in_order(upstreams: Upstreams) -> tuple[str, ...]:
    """Returns all operators, each after its upstreams.

    Raises:
        InvalidArgument: there is a cycle.
    """
    return _in_order(tuple((name, tuple(of)) for name, of in upstreams.items()))


# Reports ask for the same few orders once per window.
@lru_cache(maxsize=256)
def _in_order(edges: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[str, ...]:
    try:
        return tuple(TopologicalSorter(dict(edges)).static_order())
    except CycleError as error:
        msg = f"a topology must not have a cycle, got {' → '.join(error.args[1])}; remove one of its edges"
        raise InvalidArgument(msg) from error


def leaves(upstreams: Upstreams) -> tuple[str, ...]:
    """Returns the operators that no other operator reads, by name."""
    read = set().union(*upstreams.values())
    return tuple(sorted(set(upstreams) - read))


def leading_to(names: Iterable[str], upstreams: Upstreams) -> Upstreams:
    """Returns the part of *upstreams* from which the operators *names* follow."""
    ancestors: dict[str, Sequence[str]] = {}
    unvisited = [*names]
    while unvisited:
        name = unvisited.pop()
        if name not in ancestors:
            ancestors[name] = upstreams.get(name, ())
            unvisited += ancestors[name]
    return ancestors


def latest(names: Iterable[str], ewt_ms: Instants) -> tuple[str, int] | None:
    """Returns the operator of *names* with the latest EWT, and that EWT.

    None when none of them has one.
    """
    # Negated instants: the minimum is the latest, and of equal ones the first by name.
    measured = [(-instant_ms, name) for name in names if (instant_ms := ewt_ms.get(name)) is not None]
    return (min(measured)[1], -min(measured)[0]) if measured else None


def measure(
    upstreams: Upstreams,
    ewt_ms: Instants,
    *,
    windows_behind: Mapping[str, int] | None = None,
    limits: EstimateLimits | None = None,
) -> dict[str, PathStep]:
    """Returns every operator's latency in one window, each after its upstreams.

    Args:
        upstreams: the topology.
        ewt_ms: the window's EWT per operator; left out or None where there is none.
        windows_behind: for operators that have not finished it: how many windows their upstreams are ahead.
        limits: when that number counts as a latency; None: never, such operators have no latency.

    Raises:
        InvalidArgument: there is a cycle.
    """
    steps = {}
    for operator in in_order(upstreams):
        behind = (windows_behind or {}).get(operator, 0)
        steps[operator] = _step(operator, upstreams.get(operator, ()), ewt_ms, _estimate(behind, limits))
        if ewt_ms.get(operator) is None:
            steps[operator] = _waiting(steps[operator], upstreams.get(operator, ()), ewt_ms, steps)
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


def path_to(leaf: str, steps: Mapping[str, PathStep]) -> Path:
    """Returns the walk to *leaf* along the slowest upstreams."""
    walk = [steps[leaf]]
    while (upstream := walk[-1].slowest_upstream) is not None:
        walk.append(steps[upstream])
    return Path(tuple(reversed(walk)))


def critical_path(upstreams: Upstreams, steps: Mapping[str, PathStep]) -> Path:
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


def _step(operator: str, names: Sequence[str], ewt_ms: Instants, estimate: tuple[LatencyState, int | None]) -> PathStep:
    finished_ms, slowest = ewt_ms.get(operator), latest(names, ewt_ms)
    if finished_ms is None:
        state, latency_ms = estimate
        return PathStep(
            operator=operator, state=state, latency_ms=latency_ms, slowest_upstream=slowest[0] if slowest else None
        )
    if not names:
        return PathStep(operator=operator, state=LatencyState.INPUT, latency_ms=0, unclamped_ms=0)
    if slowest is None:
        return PathStep(operator=operator, state=LatencyState.UPSTREAM_MISSING)
    own_ms = finished_ms - slowest[1]
    has_all = all(ewt_ms.get(name) is not None for name in names)
    state = LatencyState.MEASURED if has_all else LatencyState.UPSTREAM_MISSING
    return PathStep(
        operator=operator,
        state=LatencyState.CLAMPED_NEGATIVE if own_ms < 0 else state,
        latency_ms=max(0, own_ms),
        unclamped_ms=own_ms,
        slowest_upstream=slowest[0],
    )


def _waiting(step: PathStep, names: Sequence[str], ewt_ms: Instants, steps: Mapping[str, PathStep]) -> PathStep:
    """Names the upstream that an unfinished *step* waits for.

    It is the one of *names* that has not finished either and is furthest behind.
    """
    unfinished = sorted(name for name in names if ewt_ms.get(name) is None)
    if not unfinished:
        return step
    return replace(step, slowest_upstream=max(unfinished, key=lambda name: path_to(name, steps).latency_ms))


def _estimate(windows_behind: int, limits: EstimateLimits | None) -> tuple[LatencyState, int | None]:
    if limits is None:
        return LatencyState.NO_WINDOW_YET, None
    behind_ms = windows_behind * limits.window_ms
    if windows_behind > limits.throughput_calculation_max_samples:
        return LatencyState.ESTIMATED, behind_ms
    return (
        (LatencyState.STUCK, behind_ms)
        if behind_ms > limits.heartbeat_timeout_ms
        else (LatencyState.NO_WINDOW_YET, None)
    )


def path_text(steps: Sequence[tuple[str, int | None, LatencyState]]) -> str:
    """Renders operators with their latencies and states, as `str(Path)`."""
    shown: list[str] = []
    for operator, latency_ms, state in steps:
        why = () if state in _UNMARKED else (state.value,)
        length = () if latency_ms is None else (f"{latency_ms} ms",)
        shown.append(f"{operator} ({', '.join((*length, *why))})")
    latencies_ms = [latency_ms for _, latency_ms, _ in steps]
    sign = "≥" if None in latencies_ms else "="
    return f"{' → '.join(shown)} {sign} {sum(ms or 0 for ms in latencies_ms)} ms"


_UNMARKED = (LatencyState.INPUT, LatencyState.MEASURED)
