"""Which operator made one streaming window late: operator latencies and the critical path.

An EWT is the clock at which an operator had finished a window, in epoch milliseconds, adjusted for its host's skew.
An operator's latency is its EWT less the latest EWT among its upstreams; the critical path is the walk from a leaf
along the latest upstreams whose latencies sum highest. For one window, without clamping, these sum to EWT(leaf) −
EWT(source). Of equal operators the first by name is taken. Source: Apache Apex, "Operator latency" and
StreamingContainerManager.findCriticalPath; `stram` has Apex's own form, which mixes
windows; `what_if` asks what would have been.

`upstreams` maps an operator to those whose output it reads; one that is only named as an upstream is an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

from tidemark.errors import InvalidArgument

Upstreams = Mapping[str, Sequence[str]]
Instants = Mapping[str, int | None]


class State(StrEnum):
    """How an operator's latency came about, or why there is none."""

    INPUT = "input"
    """It reads from outside: 0 by definition."""
    MEASURED = "measured"
    NO_WINDOW_YET = "no_window_yet"
    """It has not finished the window: no latency."""
    UPSTREAM_MISSING = "upstream_missing"
    """An upstream has no EWT: against the others it is an upper bound, and there is none when all are missing."""
    ESTIMATED = "estimated"
    """It is so many windows behind that EWTs are not kept: that number times the window."""
    STUCK = "stuck"
    """It is behind for longer than a heartbeat may take: the number of windows times the window."""
    CLAMPED_NEGATIVE = "clamped_negative"
    """It finished before an upstream, which the clocks of two hosts can say: 0, and evidence of skew."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operator in one window; `unclamped_ms` is below 0 where `latency_ms` was clamped, None where not measured."""

    operator: str
    state: State
    latency_ms: int | None = None
    unclamped_ms: int | None = None
    slowest_upstream: str | None = None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an operator's latency was spent on: they add up to it, and none is negative."""

    waited_ms: int
    """Until its driver's batch began: for the trigger, or for the batch before. Nothing within one driver waits so."""
    queued_ms: int
    """For sibling branches of the same batch."""
    worked_ms: int


@dataclass(frozen=True)
class Path:
    """A walk from a source to a leaf, source first."""

    steps: tuple[Step, ...]

    @property
    def latency_ms(self) -> int:
        """The sum of the latencies that are known; a lower bound unless `is_complete`."""
        return sum(step.latency_ms or 0 for step in self.steps)

    @property
    def is_complete(self) -> bool:
        """Whether every step has a latency."""
        return all(step.latency_ms is not None for step in self.steps)

    @property
    def state(self) -> State:
        """Measured, or the state of the first step that kept it from being exact."""
        exact = {State.INPUT, State.MEASURED}
        return next((step.state for step in self.steps if step.state not in exact), State.MEASURED)

    def share_of(self, operator: str) -> float | None:
        """The part of the path's latency that *operator* took, 0 to 1; None off the path, or when there is none."""
        own_ms = next((step.latency_ms for step in self.steps if step.operator == operator), None)
        return None if own_ms is None or not self.latency_ms else own_ms / self.latency_ms

    def __str__(self) -> str:
        """For example `A (0 ms) → C (100 ms) → E (20 ms) = 120 ms`; `≥` instead of `=` when it is not complete."""
        sign = "=" if self.is_complete else "≥"
        return f"{' → '.join(map(_shown, self.steps))} {sign} {self.latency_ms} ms"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long EWTs are waited for; the names are Apex's."""

    window_ms: int
    heartbeat_timeout_ms: int = 30_000
    throughput_calculation_max_samples: int = 1_000


def in_order(upstreams: Upstreams) -> tuple[str, ...]:
    """All operators, each after its upstreams.

    Raises:
        InvalidArgument: there is a cycle.
    """
    try:
        return tuple(TopologicalSorter(upstreams).static_order())
    except CycleError as error:
        msg = f"a topology has no cycle, got {' → '.join(error.args[1])}; remove one of its edges"
        raise InvalidArgument(msg) from error


def leaves(upstreams: Upstreams) -> tuple[str, ...]:
    """The operators that no other reads, by name."""
    read = {name for names in upstreams.values() for name in names}
    return tuple(sorted(set(upstreams) - read))


def leading_to(names: Iterable[str], upstreams: Upstreams) -> Upstreams:
    """Of *upstreams* the operators *names*, and those that they come after."""
    found: dict[str, Sequence[str]] = {}
    open_ = [*names]
    while open_:
        name = open_.pop()
        if name not in found:
            found[name] = upstreams.get(name, ())
            open_ += found[name]
    return found


def latest(names: Iterable[str], ewt_ms: Instants) -> tuple[str, int] | None:
    """The one of *names* with the latest EWT, and that; None when none has one."""
    known = [(-instant_ms, name) for name in names if (instant_ms := ewt_ms.get(name)) is not None]
    return (min(known)[1], -min(known)[0]) if known else None


def measure(
    upstreams: Upstreams,
    ewt_ms: Instants,
    *,
    windows_behind: Mapping[str, int] | None = None,
    limits: Limits | None = None,
) -> dict[str, Step]:
    """Every operator's latency in one window, each after its upstreams.

    Args:
        upstreams: the topology.
        ewt_ms: the window's EWT per operator; left out or None where there is none.
        windows_behind: for operators that have not finished it: by how many windows their upstreams are ahead.
        limits: from when on that number is taken as the latency; without it such operators have none.

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
    """What *latency_ms* was spent on.

    Args:
        latency_ms: of one operator in one window.
        before_batch_ms: from its latest upstream's EWT to the beginning of its own batch; negative when the batch had
            begun by then, as within one driver.
        queued_ms: how long it waited in that batch for sibling branches; as much of it counts as fits into the latency,
            which is less than that only where a clock went back.

    >>> parts(450, before_batch_ms=300, queued_ms=50)
    Parts(waited_ms=300, queued_ms=50, worked_ms=100)
    """
    waited_ms = min(max(before_batch_ms, 0), latency_ms)
    queued_ms = min(queued_ms, latency_ms - waited_ms)
    return Parts(waited_ms=waited_ms, queued_ms=queued_ms, worked_ms=latency_ms - waited_ms - queued_ms)


def path_to(leaf: str, steps: Mapping[str, Step]) -> Path:
    """The walk to *leaf* along the slowest upstreams."""
    walk = [steps[leaf]]
    while (upstream := walk[-1].slowest_upstream) is not None:
        walk.append(steps[upstream])
    return Path(tuple(reversed(walk)))


def critical_path(upstreams: Upstreams, steps: Mapping[str, Step]) -> Path:
    """Of the walks to all leaves the one whose latencies sum highest.

    Raises:
        InvalidArgument: there is no operator.
    """
    walks = [path_to(leaf, steps) for leaf in leaves(upstreams)]
    if not walks:
        msg = "a topology has at least one operator that reads another, got none; add a sink"
        raise InvalidArgument(msg)
    return max(walks, key=lambda walk: walk.latency_ms)


def _step(operator: str, names: Sequence[str], ewt_ms: Instants, estimate: tuple[State, int | None]) -> Step:
    finished_ms, slowest = ewt_ms.get(operator), latest(names, ewt_ms)
    if finished_ms is None:
        state, latency_ms = estimate
        return Step(
            operator=operator, state=state, latency_ms=latency_ms, slowest_upstream=slowest[0] if slowest else None
        )
    if not names:
        return Step(operator=operator, state=State.INPUT, latency_ms=0, unclamped_ms=0)
    if slowest is None:
        return Step(operator=operator, state=State.UPSTREAM_MISSING)
    own_ms = finished_ms - slowest[1]
    state = State.MEASURED if all(ewt_ms.get(name) is not None for name in names) else State.UPSTREAM_MISSING
    return Step(
        operator=operator,
        state=State.CLAMPED_NEGATIVE if own_ms < 0 else state,
        latency_ms=max(0, own_ms),
        unclamped_ms=own_ms,
        slowest_upstream=slowest[0],
    )


def _waiting(step: Step, names: Sequence[str], ewt_ms: Instants, steps: Mapping[str, Step]) -> Step:
    """*step*, which has not finished: it waits for the one of *names* that has not either and is furthest behind."""
    unfinished = sorted(name for name in names if ewt_ms.get(name) is None)
    if not unfinished:
        return step
    return replace(step, slowest_upstream=max(unfinished, key=lambda name: path_to(name, steps).latency_ms))


def _estimate(windows_behind: int, limits: Limits | None) -> tuple[State, int | None]:
    if limits is None:
        return State.NO_WINDOW_YET, None
    behind_ms = windows_behind * limits.window_ms
    if windows_behind > limits.throughput_calculation_max_samples:
        return State.ESTIMATED, behind_ms
    return (State.STUCK, behind_ms) if behind_ms > limits.heartbeat_timeout_ms else (State.NO_WINDOW_YET, None)


def _shown(step: Step) -> str:
    length = "" if step.latency_ms is None else f"{step.latency_ms} ms"
    why = "" if step.state in {State.INPUT, State.MEASURED} else step.state.value
    return f"{step.operator} ({', '.join(part for part in (length, why) if part)})"
