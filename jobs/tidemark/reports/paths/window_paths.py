"""Finds the critical path of one window after the other.

The rules are those of `semantics`. A window is open while a terminal operator has not finished it. A driver that stands
still does not keep it open: it is on the path with the number of windows that it is behind. Nor does a flow whose own
time stands still, such as an idle source: once others are HEARTBEAT_TIMEOUT ahead, the path is that of the operators
that have finished. A later run replaces the rows of windows that were open. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from tidemark.collecting import present
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, Table
from tidemark.model.topology import Topology
from tidemark.reports.paths.path_facts import Row
from tidemark.reports.paths.window_graph import WINDOW, OperatorFinish, PassedWindows, WindowFinishes, windows_finished
from tidemark.reports.promises import Promises
from tidemark.semantics import stram
from tidemark.semantics.critical_path import (
    EstimateLimits,
    LatencyState,
    Path,
    PathStep,
    critical_path,
    leading_to,
    measure,
    parts,
    path_to,
)
from tidemark.semantics.what_if import slack_ms

FINISHED = {
    **dict.fromkeys(WINDOW[1:], pl.Int64()),
    "operator": pl.String(),
    **dict.fromkeys(("ewt_ms", "began_ms", "skew_ms", "batch_id"), pl.Int64()),
}
"""The columns of Paths.finished."""
STANDS_STILL = frozenset({LatencyState.STUCK, LatencyState.ESTIMATED})


class Paths(NamedTuple):
    """Rows about critical paths.

    `tables` has the rows of three tables. `finished` has a row for each operator that finished one of their windows.
    Its instants are epoch ms by the clock of all hosts.
    """

    tables: dict[Table, pl.DataFrame]
    finished: pl.DataFrame


@dataclass(frozen=True)
class DriverFacts:
    """Facts about drivers besides rows of windows.

    `passed` has the instants at which drivers passed windows. `first_ms` and `newest_ms` are the ends of the first and
    the newest window that each operator has finished, epoch ms.
    """

    passed: PassedWindows = field(default_factory=PassedWindows)
    first_ms: Mapping[str, int] = field(default_factory=dict)
    newest_ms: Mapping[str, int] = field(default_factory=dict)


def looks_back_ms(topology: Topology) -> int:
    """Returns how far the averages of a window look back, in ms."""
    return (stram.LATENCY_SAMPLES - 1) * topology.window_ms


def together(paths: Sequence[Paths]) -> Paths:
    """Concatenates the rows of *paths*, at least one."""
    tables: dict[Table, pl.DataFrame] = {}
    for table in paths[0].tables:
        tables[table] = pl.concat(part.tables[table] for part in paths)
    return Paths(tables, pl.concat(part.finished for part in paths))


def window_paths(
    operator_windows: pl.DataFrame,
    topology: Topology,
    promises: Promises,
    interval: Interval,
    drivers: DriverFacts,
) -> Paths:
    """Finds the critical paths of windows that end in *interval*.

    Args:
        operator_windows: rows. Windows that end up to `looks_back_ms` before the interval are in the averages.
        topology: as it is now.
        promises: about its windows.
        interval: of the report.
        drivers: facts about them.
    """
    rows_by_table: dict[Table, list[Row]] = {CRITICAL_PATH_STEPS: [], CRITICAL_PATH_LEAVES: [], CRITICAL_PATHS: []}
    finish_rows: list[tuple[object, ...]] = []
    paths = _PathFinder(topology, promises, drivers.newest_ms)
    recent: deque[tuple[int, Iterable[PathStep]]] = deque()
    for finished in windows_finished(operator_windows, topology, drivers.passed, drivers.first_ms):
        end_ms, steps = finished.window[2], paths.measured(finished)
        recent.append((end_ms, steps.values()))
        # Windows come in the order of their ends.
        while recent[0][0] < end_ms - looks_back_ms(topology):
            recent.popleft()
        if interval.start_ms <= end_ms < interval.end_ms:
            for table, rows in paths.of_window(finished, steps, _averages(steps for _, steps in recent)).items():
                rows_by_table[table] += (dict(zip(WINDOW, finished.window, strict=True)) | row for row in rows)
            finish_rows += _finish_rows(finished)
    tables = {table: pl.DataFrame(rows_of(table, rows)) for table, rows in rows_by_table.items()}
    return Paths(tables, pl.DataFrame(finish_rows, schema=FINISHED, orient="row"))


def _finish_rows(finished: WindowFinishes) -> Iterator[tuple[object, ...]]:
    """Yields a row with columns FINISHED for each operator of a window."""
    for name, finish in finished.finishes.items():
        yield (*finished.window[1:], name, finish.ewt_ms, finish.began_ms, finish.skew_ms, finish.batch_id)


class _PathFinder:
    """Finds the critical paths of single windows.

    *promises* are those about *topology*, *newest_ms* as in DriverFacts.
    """

    def __init__(self, topology: Topology, promises: Promises, newest_ms: Mapping[str, int]) -> None:
        self._promises, self._newest_ms = promises, newest_ms
        self._limits = EstimateLimits(
            window_ms=topology.window_ms, throughput_calculation_max_samples=topology.max_outstanding_windows
        )

    def measured(self, finished: WindowFinishes) -> dict[str, PathStep]:
        """Measures the latency of every operator in a window."""
        upstreams, ewt_ms = finished.upstreams, finished.ewt_ms
        behind: dict[str, int] = {}
        for name, read in upstreams.items():
            if read and name not in ewt_ms:
                behind[name] = self._behind(finished.window[2], name, read)
        return measure(upstreams, ewt_ms, windows_behind=behind, limits=self._limits)

    def _behind(self, end_ms: int, name: str, upstreams: Iterable[str]) -> int:
        """Returns by how many windows *name* is behind *upstreams*.

        It has not finished the window that ends at *end_ms*.
        """
        ahead_ms = max((self._newest_ms.get(each, 0) for each in upstreams), default=0)
        # An operator that never finished a window counts as one window behind this one.
        own_ms = self._newest_ms.get(name, end_ms - self._limits.window_ms)
        return max(0, ahead_ms - own_ms) // self._limits.window_ms

    def of_window(
        self, finished: WindowFinishes, steps: Mapping[str, PathStep], average_ms: Mapping[str, int]
    ) -> dict[Table, list[Row]]:
        """Returns the rows about one window, by table.

        They lack the columns of the window itself.

        Args:
            finished: the window.
            steps: its measured operators.
            average_ms: moving average of the latency of each operator.
        """
        spent = {name: self._spent(step, finished.finishes) for name, step in steps.items()}
        walks = self._walks(finished, steps)
        critical: Path | None = None
        slack: Mapping[str, int | None] = {}
        # A row without path marks an open window; a later run replaces it.
        path: Row = dict.fromkeys(CRITICAL_PATHS.names[len(WINDOW) :]) | {"state": LatencyState.NO_WINDOW_YET.value}
        leaves: list[Row] = []
        if walks:
            # Operators that lead only to flows that stand still are on no path.
            upstreams = leading_to((walk.steps[-1].operator for walk in walks), finished.upstreams)
            critical, slack = critical_path(upstreams, steps), slack_ms(upstreams, finished.ewt_ms, steps)
            slowest = {name: up for name in upstreams if (up := steps[name].slowest_upstream)}
            averaged = stram.critical_path(upstreams, slowest, average_ms)
            path = self._path(critical, averaged, spent, finished)
            leaves = [self._leaf(walk, critical, finished) for walk in walks]
        step_rows = []
        for name, step in steps.items():
            step_rows.append(self._step(step, critical, slack.get(name), finished) | spent[name])
        return {CRITICAL_PATH_STEPS: step_rows, CRITICAL_PATH_LEAVES: leaves, CRITICAL_PATHS: [path]}

    def _walks(self, finished: WindowFinishes, steps: Mapping[str, PathStep]) -> list[Path]:
        """Returns the walks to terminal operators; none: the window is open."""
        walks = [path_to(name, steps) for name in finished.ends]
        settled = [walk for walk in walks if walk.steps[0].operator in finished.finishes and _is_settled(walk)]
        ahead_ms = max(self._newest_ms.values(), default=0) - finished.window[2]
        # Beyond this timeout a flow whose time stands still is not waited for any more.
        waits = len(settled) < len(walks) and ahead_ms <= self._limits.heartbeat_timeout_ms
        return [] if waits else settled

    def _spent(self, step: PathStep, finishes: Mapping[str, OperatorFinish]) -> Row:
        """Returns `waited_ms`, `queued_ms` and `worked_ms` of a step."""
        if step.latency_ms is None:
            return dict.fromkeys(("waited_ms", "queued_ms", "worked_ms"))
        # A driver that stands still waits.
        if step.operator not in finishes:
            return {"waited_ms": step.latency_ms, "queued_ms": 0, "worked_ms": 0}
        own = finishes[step.operator]
        before_ms: int | None = 0
        if step.slowest_upstream is not None:
            before_ms = None if own.began_ms is None else own.began_ms - finishes[step.slowest_upstream].ewt_ms
        of = parts(step.latency_ms, before_batch_ms=before_ms or 0, queued_ms=own.queued_ms or 0)
        # The rows of older versions lack the beginning of a batch, or the length of its queue.
        waited_ms = None if before_ms is None else of.waited_ms
        queued_ms = None if own.queued_ms is None else of.queued_ms
        worked_ms = None if waited_ms is None or queued_ms is None else of.worked_ms
        return {"waited_ms": waited_ms, "queued_ms": queued_ms, "worked_ms": worked_ms}

    def _step(self, step: PathStep, critical: Path | None, slack: int | None, finished: WindowFinishes) -> Row:
        walk = critical.operators if critical else []
        place = walk.index(step.operator) if step.operator in walk else None
        at = finished.places[step.operator]
        return {
            "operator": step.operator,
            "step": place,
            "slowest_upstream": step.slowest_upstream,
            "latency_ms": step.latency_ms,
            "share": critical.share_of(step.operator) if critical else None,
            "slack_ms": slack,
            "state": step.state.value,
            "sub_topology": at.sub_topology,
            "kind": at.kind,
            "promised_ms": self._promises.work_ms.get(step.operator),
        }

    def _leaf(self, path: Path, critical: Path, finished: WindowFinishes) -> Row:
        return {
            "leaf": path.steps[-1].operator,
            "source": path.steps[0].operator,
            "latency_ms": path.latency_ms,
            "before_source_ms": _before_source_ms(path, finished),
            "behind_ms": critical.latency_ms - path.latency_ms,
        }

    def _path(self, critical: Path, averaged: Path, spent: Mapping[str, Row], finished: WindowFinishes) -> Row:
        waits_ms: list[int | None] = []
        queues_ms: list[int | None] = []
        finishes: list[OperatorFinish] = []
        for step in critical.steps:
            # A driver that stands still may have no latency: nothing is known to estimate it from.
            if step.latency_ms is not None:
                waits_ms.append(spent[step.operator]["waited_ms"])
                queues_ms.append(spent[step.operator]["queued_ms"])
            if step.operator in finished.finishes:
                finishes.append(finished.finishes[step.operator])
        leaf = critical.steps[-1].operator
        return {
            "latency_ms": critical.latency_ms,
            "queued_ms": _sum(queues_ms),
            "before_source_ms": _before_source_ms(critical, finished),
            "leaf": leaf,
            "path": str(critical),
            "state": critical.state.value,
            "waited_ms": _sum(waits_ms),
            "sla_ms": self._promises.end_to_end_ms.get(leaf),
            # `window_verdicts` judges windows later.
            "over_sla": None,
            "skew_error_ms": _skew_error_ms(finishes),
            "moving_average_ms": averaged.latency_ms,
            "moving_average_path": str(averaged),
        }


def _is_settled(walk: Path) -> bool:
    """Returns True if a *walk* will not change.

    It is measured as a whole, or a driver on it stands still.
    """
    return walk.is_complete or any(step.state in STANDS_STILL for step in walk.steps)


def _averages(windows: Iterable[Iterable[PathStep]]) -> dict[str, int]:
    """Returns the mean of each operator's latencies in *windows*, truncated.

    The rule is Apex's: that of an input is 0.
    """
    samples_ms: dict[str, list[int]] = {}
    for steps in windows:
        for step in steps:
            if step.latency_ms is not None and step.state not in STANDS_STILL:
                samples_ms.setdefault(step.operator, []).append(step.latency_ms)
    return {name: sum(of) // len(of) for name, of in samples_ms.items()}


def _before_source_ms(path: Path, finished: WindowFinishes) -> int:
    """Returns the age of a window when its source had finished it.

    The source is that of *path*; the age is ms.
    """
    return finished.finishes[path.steps[0].operator].ewt_ms - finished.window[2]


def _skew_error_ms(walk: list[OperatorFinish]) -> int | None:
    """Returns the largest error of the clocks of *walk*, in ms."""
    clocks = {(finish.host, finish.skew_ms) for finish in walk}
    errors_ms = [finish.skew_error_ms for finish in walk]
    # Instants of one clock have no error against each other.
    if len(clocks) == 1 and walk[0].host is not None:
        return 0
    known_ms = present(errors_ms)
    return max(known_ms) if len(known_ms) == len(errors_ms) else None


def _sum(values: Iterable[int | None]) -> int | None:
    """Adds *values*; None if any of them is None."""
    addends = list(values)
    return None if None in addends else sum(present(addends))
