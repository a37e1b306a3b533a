"""The vocabulary of critical paths: operators, their upstreams, and how a latency came about.

An operator's end-window time (EWT) is the instant at which it had finished a streaming window. Its latency in the
window is its EWT minus the latest EWT among its upstreams.

The rules are those of Apache Apex ("Operator latency", and StreamingContainerManager.findCriticalPath);
`reports.paths.solver` has them, with Apex's example. `what_if` computes alternatives.

`upstreams` maps an operator to the operators whose output it reads. An operator that is only named as an upstream is an
input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Upstreams = Mapping[str, Sequence[str]]
Instants = Mapping[str, int | None]
HEARTBEAT_TIMEOUT_MS = 30_000
"""An operator that is behind its upstreams for longer may be stuck; the name and the length are Apex's."""
LATENCY_SAMPLES = 10
"""Latencies in an operator's moving average: Apex's THROUGHPUT_CALCULATION_INTERVAL / HEARTBEAT_INTERVAL_MILLIS.

Apex measures each operator in its own current window and sums these averages, so its path is no window's path.
"""


class LatencyState(StrEnum):
    """How an operator's latency came about, or why it has none."""

    INPUT = "input"
    """The operator reads from outside: its latency is 0 by definition."""
    MEASURED = "measured"
    NO_WINDOW_YET = "no_window_yet"
    """The operator has not finished the window, so it has no latency."""
    UPSTREAM_MISSING = "upstream_missing"
    """An upstream has no EWT: the latency is an upper bound.

    The latency is measured against the other upstreams. Without any upstream that has an EWT there is no latency.
    """
    ESTIMATED = "estimated"
    """Behind, and no upstream has an EWT: windows behind × window length."""
    STUCK = "stuck"
    """Behind for longer than `stuck_after_ms`: the time since the latest upstream finished the window.

    In Apex, whose windows take as long by the clock as they are, that is windows behind × window length.
    """
    CLAMPED_NEGATIVE = "clamped_negative"
    """The operator finished before an upstream, by the clocks of their hosts: latency 0, and evidence of skew."""


FINISHED_MS = "epoch_ms(window_end) + before_source_ms + latency_ms"
"""SQL: when a window came to the end of its path, epoch ms, by the columns of critical_paths."""
STANDS_STILL = frozenset({LatencyState.STUCK, LatencyState.ESTIMATED})
"""States of an operator that has not finished the window, and whose latency so far is known."""


@dataclass(frozen=True, kw_only=True)
class PathStep:
    """The measurement of an operator in one window."""

    operator: str
    state: LatencyState
    latency_ms: int | None = None
    slowest_upstream: str | None = None


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

    def __str__(self) -> str:
        """Renders the path, such as `A (0 ms) → C (9 ms)`.

        The sum follows, behind `=`, or behind `≥` when the path is not complete.
        """
        return path_text([(step.operator, step.latency_ms, step.state) for step in self.steps])


def stuck_after_ms(trigger_ms: int) -> int:
    """Returns how long an operator may be behind its upstreams before it counts as stuck.

    *trigger_ms* is the time between two batches of its driver. The driver may wait so long for the next trigger, and
    the batch itself may take as long again, so an operator is never stuck within two triggers.
    """
    return max(HEARTBEAT_TIMEOUT_MS, 2 * trigger_ms)


def leaves(upstreams: Upstreams) -> tuple[str, ...]:
    """Returns the operators that no other operator reads, by name."""
    read = set().union(*upstreams.values())
    return tuple(sorted(set(upstreams) - read))


def latest(names: Iterable[str], ewt_ms: Instants) -> tuple[str, int] | None:
    """Returns the operator among *names* with the latest EWT, and that EWT; None when none of them has an EWT."""
    # Negated instants: the minimum is the latest, and of equal ones the first by name.
    measured = [(-instant_ms, name) for name in names if (instant_ms := ewt_ms.get(name)) is not None]
    return (min(measured)[1], -min(measured)[0]) if measured else None


def path_to(leaf: str, steps: Mapping[str, PathStep]) -> Path:
    """Returns the walk to *leaf* along the slowest upstreams."""
    walk = [steps[leaf]]
    while (upstream := walk[-1].slowest_upstream) is not None:
        walk.append(steps[upstream])
    return Path(tuple(reversed(walk)))


def path_text(steps: Sequence[tuple[str, int | None, LatencyState]]) -> str:
    """Renders operators with their latencies and states, as `str(Path)`."""
    shown: list[str] = []
    for operator, latency_ms, state in steps:
        why = () if state in _UNMARKED else (state.value,)
        length = () if latency_ms is None else (f"{latency_ms:,} ms",)
        shown.append(f"{operator} ({', '.join((*length, *why))})")
    latencies_ms = [latency_ms for _, latency_ms, _ in steps]
    sign = "≥" if None in latencies_ms else "="
    return f"{' → '.join(shown)} {sign} {sum(ms or 0 for ms in latencies_ms):,} ms"


_UNMARKED = (LatencyState.INPUT, LatencyState.MEASURED)
