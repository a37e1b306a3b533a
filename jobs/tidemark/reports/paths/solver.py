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
the first by name is taken. An array of Measured has a row per operator, and a column per window. The tests have a
reference, which measures one window at a time.
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
"""The state of each code in Measured."""
CODE = {state: code for code, state in enumerate(STATES)}
Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True)
class Measured:
    """The measured operators of windows.

    Attributes:
        names: the operators, each after its upstreams.
        latency_ms: of each operator.
        state: code of the state of the latency.
        slowest: place of the slowest upstream in `names`; NONE: the walk begins here.
        total_ms: sum of the known latencies on the walk to the operator.
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
        """The row of each operator."""
        return {name: place for place, name in enumerate(self.names)}

    def take(self, windows: Mask) -> Measured:
        """Returns the chosen *windows*."""
        arrays = {each.name: getattr(self, each.name)[:, windows] for each in fields(self) if each.name != "names"}
        return replace(self, **arrays)

    def along(
        self, own: npt.NDArray[Value], join: Callable[[npt.NDArray[Value], npt.NDArray[Value]], npt.NDArray[Any]]
    ) -> npt.NDArray[Value]:
        """Joins the *own* values of operators on each walk.

        There is a walk to each operator, from its source.
        """
        values, columns = own.copy(), np.arange(self.windows)
        for place, slowest in enumerate(self.slowest):
            values[place] = np.where(slowest == NONE, own[place], join(values[slowest, columns], own[place]))
        return values

    @cached_property
    def source(self) -> Places:
        """The place of the first operator of each walk."""
        own = np.repeat(np.arange(len(self.names))[:, None], self.windows, axis=1)
        return self.along(own, lambda before, _: before)

    @cached_property
    def depth(self) -> Places:
        """The number of operators before each one on its walk."""
        return self.along(np.zeros_like(self.slowest), lambda before, _: before + 1)

    @cached_property
    def is_complete(self) -> Mask:
        """True where every operator of a walk has a latency."""
        return self.along(~np.isnan(self.latency_ms), np.logical_and)

    @cached_property
    def path_state(self) -> Places:
        """The state of each walk.

        It is measured, or the state of the first operator that is not exact.
        """
        exact = np.isin(self.state, (CODE[LatencyState.INPUT], CODE[LatencyState.MEASURED]))
        measured = CODE[LatencyState.MEASURED]
        own = np.where(exact, measured, self.state)
        return self.along(own, lambda before, own: np.where(before == measured, own, before))

    def has_state(self, states: Iterable[LatencyState]) -> Mask:
        """Returns True where an operator has one of *states*."""
        return np.isin(self.state, [CODE[state] for state in states])

    def longest(self, names: Sequence[str], total_ms: Floats) -> Places:
        """Returns the place of the operator of *names* with the highest total.

        It is the first of equal ones.
        """
        places = np.array([self.place[name] for name in names])
        chosen: Places = places[total_ms[places].argmax(axis=0)]
        return chosen

    def walks(
        self, last: Places, latency_ms: Floats, state: Places
    ) -> Iterator[list[tuple[str, int | None, LatencyState]]]:
        """Yields the walk to the place *last* in each window, source first, with latencies and states of its operators.

        *latency_ms* and *state* are arrays like those of the same name, for example of averages.
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
        """Returns the critical path of each window.

        It is the walk to a leaf whose latencies sum highest.
        """
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
        """Returns True for operators on the walk to the place *last*."""
        is_on, columns = np.zeros(self.slowest.shape, np.bool_), np.arange(self.windows)
        is_on[last, columns] = True
        # An operator comes after its upstreams.
        for place in reversed(range(len(self.names))):
            slowest = self.slowest[place]
            goes_on = is_on[place] & (slowest != NONE)
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
) -> Measured:
    """Returns every operator's latency.

    Args:
        upstreams: the topology.
        ewt_ms: the EWTs of the operators that finished the windows.
        behind_ms: for the other operators: how far in record time their upstreams are ahead.
        windows: number of windows.
        now_ms: until then an operator has not finished a window that is not in *ewt_ms*.
        stuck_after_ms: of an operator that is behind, as from `semantics.critical_path`.
    """
    names = in_order(upstreams)
    shape = (len(names), windows)
    measured = Measured(names, np.full(shape, np.nan), np.zeros(shape, np.int64), np.full(shape, NONE), np.zeros(shape))
    columns = np.arange(windows)
    for own, name in enumerate(names):
        read = upstreams.get(name, ())
        last = _latest(read, ewt_ms, measured.place)
        if name in ewt_ms:
            has_all = all(each in ewt_ms for each in read)
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
            # Where it is not known when an upstream finished the window, Apex estimates by the windows behind.
            stands_ms = behind_ms.get(name, np.zeros(windows)) if last is None else now_ms - last[1]
            stands_still = is_behind & (stands_ms > stuck_after_ms)
            state = CODE[LatencyState.ESTIMATED if last is None else LatencyState.STUCK]
            measured.state[own] = np.where(stands_still, state, CODE[LatencyState.NO_WINDOW_YET])
            measured.latency_ms[own] = np.where(stands_still, stands_ms, np.nan)
            unfinished = sorted({*read} - ewt_ms.keys())
            if unfinished:
                # It waits for the one that is furthest behind.
                measured.slowest[own] = measured.longest(unfinished, measured.total_ms)
            elif last is not None:
                measured.slowest[own] = last[0]
        before_ms = np.where(measured.slowest[own] == NONE, 0, measured.total_ms[measured.slowest[own], columns])
        measured.total_ms[own] = before_ms + np.nan_to_num(measured.latency_ms[own])
    return measured


def _latest(
    names: Iterable[str], ewt_ms: Mapping[str, Floats], place: Mapping[str, int]
) -> tuple[Places, Floats] | None:
    """Returns place and EWT of the last operator of *names*.

    None if none of them has one.
    """
    # Of equal ones argmax takes the first by name.
    finished = sorted(name for name in names if name in ewt_ms)
    if not finished:
        return None
    stacked = np.stack([ewt_ms[name] for name in finished])
    return np.array([place[name] for name in finished])[stacked.argmax(axis=0)], stacked.max(axis=0)


def slack_ms(upstreams: Upstreams, ewt_ms: Mapping[str, Floats], measured: Measured, critical_ms: Floats) -> Floats:
    """Returns by how much later each operator could have finished for free.

    Free means that the critical path is not longer. The slack is 0 on the critical path. Elsewhere it is the least,
    over the walks to the leaves, of what each step on the way would have waited for its slowest upstream anyway, plus
    what the leaf's own path lacks to the critical one. With one source that is the critical path's latency less that of
    the longest path through the operator. NaN where an EWT is missing on every way.

    Args:
        upstreams: the operators that lead to leaves that are waited for.
        ewt_ms: the EWTs of the operators that finished the windows.
        measured: all operators.
        critical_ms: latency of the critical path.
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
    """Parts of the latency of operators; NaN where one is not known.

    Attributes:
        waited_ms: until the driver's batch began. Operators within one driver do not wait for each other in this sense.
        queued_ms: for sibling branches of the same batch.
        worked_ms: the rest.
    """

    waited_ms: Floats
    queued_ms: Floats
    worked_ms: Floats


def spent(
    measured: Measured, ewt_ms: Mapping[str, Floats], began_ms: Mapping[str, Floats], queued_ms: Mapping[str, Floats]
) -> SpentOnWindows:
    """Splits the latency of every operator into parts, none negative.

    What exceeds the latency does not count: only a clock that went back causes that.

    Args:
        measured: the operators.
        ewt_ms: the EWTs of those that finished the windows.
        began_ms: when the batches began in which they did.
        queued_ms: how long they waited in these batches for sibling branches.
    """
    none, columns = np.full(measured.windows, np.nan), np.arange(measured.windows)
    ewts_ms = np.stack([ewt_ms.get(name, none) for name in measured.names])
    lengths = SpentOnWindows(*(np.full(measured.latency_ms.shape, np.nan) for _ in range(3)))
    for own, name in enumerate(measured.names):
        latency_ms, slowest = measured.latency_ms[own], measured.slowest[own]
        if name not in ewt_ms:
            # A driver that stands still waits.
            rest_ms = np.where(np.isnan(latency_ms), np.nan, 0)
            lengths.waited_ms[own], lengths.queued_ms[own], lengths.worked_ms[own] = latency_ms, rest_ms, rest_ms
            continue
        before_ms = np.where(slowest == NONE, 0, began_ms[name] - ewts_ms[slowest, columns])
        waited_ms = np.minimum(np.maximum(before_ms, 0), latency_ms)
        # A facts row may lack the beginning of its batch: then the wait is unknown, and the queue is not.
        queue_ms = np.minimum(queued_ms[name], latency_ms - np.nan_to_num(waited_ms))
        lengths.waited_ms[own], lengths.queued_ms[own] = waited_ms, queue_ms
        lengths.worked_ms[own] = latency_ms - waited_ms - queue_ms
    return lengths


def same_clock(measured: Measured, clocks: Mapping[str, Floats]) -> Mask:
    """Returns True where a walk has one known clock.

    It is the clock of all its operators that finished the window.
    *clocks* has the number of the clock by which each of them finished it.
    """
    unfinished = np.full(measured.windows, float(UNFINISHED))
    own = np.stack([np.nan_to_num(clocks.get(name, unfinished), nan=NONE) for name in measured.names])

    def joined(before: Floats, own: Floats) -> Floats:
        return np.where(own == UNFINISHED, before, np.where(before == own, own, NONE))

    return measured.along(own, joined) >= 0
