"""Solves the critical paths of many streaming windows at once, in the terms of Apache Apex.

An EWT (end-window time) is when an operator had finished a window, by one clock of all hosts. An operator's latency is
its EWT less the latest EWT of its upstreams, and that of an input is 0. The critical path is the walk from a leaf to
its source along the latest upstreams, of the leaf whose latencies sum highest. This is Apex's own example:

>>> upstreams = {"A": (), "B": ("A",), "C": ("A",), "D": ("B",), "E": ("C",), "F": ("C",)}
>>> finished_ms = {"A": 1_000, "B": 1_005, "C": 1_100, "D": 1_035, "E": 1_120, "F": 1_102}
>>> ewt_ms = {name: np.array([at_ms], float) for name, at_ms in finished_ms.items()}
>>> measured = measure(upstreams, ewt_ms, {}, windows=1)
>>> {leaf: int(measured.total_ms[measured.place[leaf], 0]) for leaf in leaves(upstreams)}
{'D': 35, 'E': 120, 'F': 102}
>>> str(measured.paths(upstreams)[0])
'A (0 ms) → C (100 ms) → E (20 ms) = 120 ms'

The windows have the same operators and upstreams, and the same operators finished them (`windows`). Of equal operators
the first by name is taken. An array of MeasuredLatencies has a row per operator, and a column per window. The tests
have a reference, which measures one window at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tidemark.graph import in_order
from tidemark.kernels.reports.arrays import NONE, UNFINISHED, Floats, Mask, Places
from tidemark.semantics.critical_path import (
    HEARTBEAT_TIMEOUT_MS,
    LatencyState,
    Path,
    PathStep,
    Upstreams,
    leaves,
)

STATES = tuple(LatencyState)
"""The states of latencies; the code of a state in MeasuredLatencies is its position here."""
CODE = {state: code for code, state in enumerate(STATES)}
Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True)
class MeasuredLatencies:
    """The latencies of operators on windows, as arrays with a row for each operator and a column for each window.

    A walk goes from an operator to its slowest upstream, and on to a source. Told from the source on, it is the walk to
    that operator.

    Attributes:
        names: the operators in the order of the rows, each after its upstreams.
        latency_ms: the latency of the operator, NaN if it is not known.
        state: the code of the state of that latency.
        slowest: the row of the slowest upstream; NONE if the walk begins at this operator.
        total_ms: the sum of the known latencies on the walk to the operator.
    """

    names: tuple[str, ...]
    latency_ms: Floats
    state: Places
    slowest: Places
    total_ms: Floats

    @property
    def windows(self) -> int:
        """The number of windows."""
        return int(self.latency_ms.shape[1])

    @cached_property
    def place(self) -> dict[str, int]:
        """The row of each operator, by name."""
        return {name: row for row, name in enumerate(self.names)}

    def take(self, windows: Mask) -> MeasuredLatencies:
        """Returns the latencies on the chosen *windows*."""
        arrays = {field.name: getattr(self, field.name)[:, windows] for field in fields(self) if field.name != "names"}
        return replace(self, **arrays)

    def along(
        self, own: npt.NDArray[Value], join: Callable[[npt.NDArray[Value], npt.NDArray[Value]], npt.NDArray[Any]]
    ) -> npt.NDArray[Value]:
        """Accumulates a value along the critical path: returns it up to and including each operator.

        *own* are the values of the operators themselves. *join* gets the value that the slowest upstream has
        accumulated, and the operator's own.
        """
        values, columns = own.copy(), np.arange(self.windows)
        for row, slowest in enumerate(self.slowest):
            values[row] = np.where(slowest == NONE, own[row], join(values[slowest, columns], own[row]))
        return values

    @cached_property
    def source(self) -> Places:
        """The row of the source at which the walk to each operator begins."""
        own = np.repeat(np.arange(len(self.names))[:, None], self.windows, axis=1)
        return self.along(own, lambda before, _: before)

    @cached_property
    def depth(self) -> Places:
        """How many operators come before each operator on the walk to it."""
        return self.along(np.zeros_like(self.slowest), lambda before, _: before + 1)

    @cached_property
    def is_complete(self) -> Mask:
        """True if all operators on the walk have a latency."""
        return self.along(~np.isnan(self.latency_ms), np.logical_and)

    @cached_property
    def path_state(self) -> Places:
        """The state of the walk: MEASURED, or that of its first operator whose latency is not exact."""
        exact = np.isin(self.state, (CODE[LatencyState.INPUT], CODE[LatencyState.MEASURED]))
        measured = CODE[LatencyState.MEASURED]
        own = np.where(exact, measured, self.state)
        return self.along(own, lambda before, own: np.where(before == measured, own, before))

    def has_state(self, states: Iterable[LatencyState]) -> Mask:
        """Returns True for operators and windows whose latency has one of *states*."""
        return np.isin(self.state, [CODE[state] for state in states])

    def longest(self, names: Sequence[str], total_ms: Floats) -> Places:
        """Returns for each window the row of the operator of *names* with the highest total; of equal ones the
        first.
        """
        rows = np.array([self.place[name] for name in names])
        chosen: Places = rows[total_ms[rows].argmax(axis=0)]
        return chosen

    def walks(
        self, last: Places, latency_ms: Floats, state: Places
    ) -> Iterator[list[tuple[str, int | None, LatencyState]]]:
        """Yields for each window the walk to one operator: names, latencies (ms) and states, from the source on.

        Args:
            last: the row of that operator, for each window.
            latency_ms: latencies to tell, which may be averages.
            state: the codes of their states.
        """
        lengths = np.where(np.isnan(latency_ms), NONE, latency_ms).astype(np.int64)
        of_windows = (array.T.tolist() for array in (self.slowest, lengths, state))
        for at, before, ms, code in zip(last.tolist(), *of_windows, strict=True):
            walk: list[tuple[str, int | None, LatencyState]] = []
            while at != NONE:
                walk.append((self.names[at], None if ms[at] == NONE else ms[at], STATES[code[at]]))
                at = before[at]
            yield walk[::-1]

    def paths(self, upstreams: Upstreams) -> list[Path]:
        """Returns the critical path of each window: the walk to a leaf with the highest sum of latencies."""
        paths: list[Path] = []
        for walk in self.walks(self.longest(leaves(upstreams), self.total_ms), self.latency_ms, self.state):
            before = [None, *(operator for operator, _, _ in walk)]
            steps = (
                PathStep(operator=operator, state=state, latency_ms=latency_ms, slowest_upstream=upstream)
                for (operator, latency_ms, state), upstream in zip(walk, before, strict=False)
            )
            paths.append(Path(tuple(steps)))
        return paths

    def walk_to(self, last: Places) -> Mask:
        """Returns True for operators on the walk to the operator in the row *last*, which is given for each window."""
        is_on, columns = np.zeros(self.slowest.shape, np.bool_), np.arange(self.windows)
        is_on[last, columns] = True
        # An operator comes after its upstreams, so each is reached before its slowest upstream.
        for row in reversed(range(len(self.names))):
            slowest = self.slowest[row]
            goes_on = is_on[row] & (slowest != NONE)
            is_on[slowest[goes_on], columns[goes_on]] = True
        return is_on


def measure(
    upstreams: Upstreams,
    ewt_ms: Mapping[str, Floats],
    behind_ms: Mapping[str, Floats],
    *,
    windows: int,
    now_ms: float = 0,
    stuck_after_ms: int = HEARTBEAT_TIMEOUT_MS,
) -> MeasuredLatencies:
    """Measures the latency of each operator on each window, as `semantics.critical_path` does on one window.

    Args:
        upstreams: the upstream operators of each operator.
        ewt_ms: when each operator had finished each window (its end-window time, EWT), epoch ms. Operators that have
            not finished the windows are left out.
        behind_ms: how far each of these is behind its upstreams in record time.
        windows: the number of windows.
        now_ms: operators without an EWT had not finished the windows at this instant, epoch ms.
        stuck_after_ms: an operator that has been behind for longer than this is stuck.
    """
    names = in_order(upstreams)
    shape = (len(names), windows)
    measured = MeasuredLatencies(
        names, np.full(shape, np.nan), np.zeros(shape, np.int64), np.full(shape, NONE), np.zeros(shape)
    )
    columns = np.arange(windows)
    for own, name in enumerate(names):
        read = upstreams.get(name, ())
        last = _latest(read, ewt_ms, measured.place)
        if name in ewt_ms:
            has_all = all(upstream in ewt_ms for upstream in read)
            if not read:
                measured.state[own], measured.latency_ms[own] = CODE[LatencyState.INPUT], 0
            elif last is None:
                measured.state[own] = CODE[LatencyState.UPSTREAM_MISSING]
            else:
                own_ms = ewt_ms[name] - last[1]
                exact = CODE[LatencyState.MEASURED if has_all else LatencyState.UPSTREAM_MISSING]
                measured.state[own] = np.where(own_ms < 0, CODE[LatencyState.CLAMPED_NEGATIVE], exact)
                measured.latency_ms[own], measured.slowest[own] = np.maximum(own_ms, 0), last[0]
        else:
            is_behind = behind_ms.get(name, np.zeros(windows)) > 0
            # If no upstream is known to have finished the window, Apex estimates by how many windows it is behind.
            stands_ms = behind_ms.get(name, np.zeros(windows)) if last is None else now_ms - last[1]
            stands_still = is_behind & (stands_ms > stuck_after_ms)
            state = CODE[LatencyState.ESTIMATED if last is None else LatencyState.STUCK]
            measured.state[own] = np.where(stands_still, state, CODE[LatencyState.NO_WINDOW_YET])
            measured.latency_ms[own] = np.where(stands_still, stands_ms, np.nan)
            unfinished = sorted({*read} - ewt_ms.keys())
            if unfinished:
                # The operator waits for the upstream that is furthest behind.
                measured.slowest[own] = measured.longest(unfinished, measured.total_ms)
            elif last is not None:
                measured.slowest[own] = last[0]
        before_ms = np.where(measured.slowest[own] == NONE, 0, measured.total_ms[measured.slowest[own], columns])
        measured.total_ms[own] = before_ms + np.nan_to_num(measured.latency_ms[own])
    return measured


def _latest(
    names: Iterable[str], ewt_ms: Mapping[str, Floats], place: Mapping[str, int]
) -> tuple[Places, Floats] | None:
    """Returns for each window the row (by *place*) and the EWT of the operator of *names* that finished it last.

    None if none of them has an EWT.
    """
    # If several finished at the same instant, argmax takes the first by name.
    finished = sorted(name for name in names if name in ewt_ms)
    if not finished:
        return None
    stacked = np.stack([ewt_ms[name] for name in finished])
    return np.array([place[name] for name in finished])[stacked.argmax(axis=0)], stacked.max(axis=0)


def slack_ms(
    upstreams: Upstreams, ewt_ms: Mapping[str, Floats], measured: MeasuredLatencies, critical_ms: Floats
) -> Floats:
    """Returns by how much later each operator could have finished without a longer critical path, ms.

    On the critical path the slack is 0. An operator off it may use up two things. One is the time that each reader on
    the way to a leaf would have waited for its slowest upstream anyway. The other is the difference between the path of
    that leaf and the critical path. The slack is their sum, and the least sum over all ways to leaves. With one source
    it equals the latency of the critical path less that of the longest path through the operator. It is NaN if an EWT
    is missing on every way.

    Args:
        upstreams: the upstream operators of each operator that leads to a leaf.
        ewt_ms: the EWTs of the operators that have finished the windows, epoch ms.
        measured: the latencies of all operators.
        critical_ms: the latency of the critical path of each window.
    """
    slack: dict[str, Floats] = {}
    for leaf in leaves(upstreams):
        slack[leaf] = critical_ms - measured.total_ms[measured.place[leaf]]
    for reader in reversed(in_order(upstreams)):
        last = _latest(upstreams.get(reader, ()), ewt_ms, measured.place)
        if last is None or reader not in slack:
            continue
        for name in upstreams[reader]:
            if name in ewt_ms:
                through_ms = last[1] - ewt_ms[name] + slack[reader]
                slack[name] = np.minimum(slack.get(name, through_ms), through_ms)
    none = np.full(measured.windows, np.nan)
    return np.stack([slack.get(name, none) for name in measured.names])


@dataclass(frozen=True)
class SpentOnWindows:
    """Parts of the latency of operators on windows; NaN for a part that is not known.

    Attributes:
        waited_ms: from the end of the slowest upstream until the batch began. Operators of one driver share a batch, so
            they do not wait for each other in this sense.
        queued_ms: the wait for sibling branches of the same batch.
        worked_ms: the rest of the latency.
    """

    waited_ms: Floats
    queued_ms: Floats
    worked_ms: Floats


def spent(
    measured: MeasuredLatencies,
    ewt_ms: Mapping[str, Floats],
    began_ms: Mapping[str, Floats],
    queued_ms: Mapping[str, Floats],
) -> SpentOnWindows:
    """Splits the latency of each operator into parts, of which none is negative.

    The parts never add up to more than the latency. Only a clock that went back could make them.

    Args:
        measured: the latencies of operators.
        ewt_ms: the EWTs of the operators that have finished the windows, epoch ms.
        began_ms: when the batches began in which they finished them, epoch ms.
        queued_ms: how long they waited in these batches for sibling branches.
    """
    none, columns = np.full(measured.windows, np.nan), np.arange(measured.windows)
    ewts_ms = np.stack([ewt_ms.get(name, none) for name in measured.names])
    lengths = SpentOnWindows(*(np.full(measured.latency_ms.shape, np.nan) for _ in range(3)))
    for own, name in enumerate(measured.names):
        latency_ms, slowest = measured.latency_ms[own], measured.slowest[own]
        if name not in ewt_ms:
            # All the time of a driver that stands still is a wait.
            rest_ms = np.where(np.isnan(latency_ms), np.nan, 0)
            lengths.waited_ms[own], lengths.queued_ms[own], lengths.worked_ms[own] = latency_ms, rest_ms, rest_ms
            continue
        before_ms = np.where(slowest == NONE, 0, began_ms[name] - ewts_ms[slowest, columns])
        waited_ms = np.minimum(np.maximum(before_ms, 0), latency_ms)
        # A row may lack the beginning of its batch: then the wait is unknown, but not the time in the queue.
        queue_ms = np.minimum(queued_ms[name], latency_ms - np.nan_to_num(waited_ms))
        lengths.waited_ms[own], lengths.queued_ms[own] = waited_ms, queue_ms
        lengths.worked_ms[own] = latency_ms - waited_ms - queue_ms
    return lengths


def same_clock(measured: MeasuredLatencies, clocks: Mapping[str, Floats]) -> Mask:
    """Returns True if all operators on a walk that finished the window did so by the same known clock.

    *clocks* has the number of the clock by which each operator finished each window.
    """
    unfinished = np.full(measured.windows, float(UNFINISHED))
    own = np.stack([np.nan_to_num(clocks.get(name, unfinished), nan=NONE) for name in measured.names])

    def joined(before: Floats, own: Floats) -> Floats:
        return np.where(own == UNFINISHED, before, np.where(before == own, own, NONE))

    return measured.along(own, joined) >= 0
