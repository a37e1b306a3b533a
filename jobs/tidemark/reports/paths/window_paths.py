"""Makes rows of the critical paths of windows, a group at a time.

A window is open while a terminal operator has not finished it. A driver that stands
still does not keep it open: it is on the path with the time for which it has not finished it. Nor does a flow whose own
time stands still, such as an idle source: once others are HEARTBEAT_TIMEOUT_MS ahead, the path is that of the operators
that have finished. A later run replaces the rows of windows that were open. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from tidemark.graph import reached
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.arrays import NONE, Floats, Mask, Places, alike
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import CRITICAL_PATH_STEPS, CRITICAL_PATHS, Table
from tidemark.model.topology import Topology
from tidemark.reports.paths.solver import CODE, STATES, MeasuredLatencies, measure, same_clock, slack_ms, spent
from tidemark.reports.paths.windows import WINDOW, PassedWindows, WindowGroup, windows_finished
from tidemark.reports.promises import Promises
from tidemark.selection import omit
from tidemark.semantics.critical_path import (
    HEARTBEAT_TIMEOUT_MS,
    LATENCY_SAMPLES,
    STANDS_STILL,
    LatencyState,
    leaves,
    path_text,
    stuck_after_ms,
)

FINISHED = {
    **dict.fromkeys(WINDOW[1:], pl.Int64()),
    "operator": pl.String(),
    **dict.fromkeys(("ewt_ms", "began_ms", "skew_ms", "batch_id"), pl.Int64()),
}
"""The columns of Paths.finished."""


class Paths(NamedTuple):
    """Rows about critical paths.

    `tables` has the rows of `critical_paths` and `critical_path_steps`. `finished` has a row (FINISHED) for each
    operator and window that it finished, with instants in epoch ms on one clock for all hosts.
    """

    tables: dict[Table, pl.DataFrame]
    finished: pl.DataFrame


@dataclass(frozen=True)
class DriverFacts:
    """What is known of drivers besides their rows of `operator_windows`; instants are epoch ms.

    Attributes:
        passed: with which batches drivers passed windows.
        first_ms: the end of the first window that each operator has finished.
        newest_ms: the end of the newest window that each operator has finished.
        now_ms: the instant up to which all that was finished is known.
    """

    passed: PassedWindows = field(default_factory=PassedWindows)
    first_ms: Mapping[str, int] = field(default_factory=dict)
    newest_ms: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0


def looks_back_ms(topology: Topology) -> int:
    """Returns how far the moving averages of a window look back, ms."""
    return (LATENCY_SAMPLES - 1) * topology.window_ms


def together(paths: Sequence[Paths]) -> Paths:
    """Concatenates the rows of *paths*, at least one."""
    tables: dict[Table, pl.DataFrame] = {}
    for table in paths[0].tables:
        tables[table] = pl.concat(some.tables[table] for some in paths)
    return Paths(tables, pl.concat(some.finished for some in paths))


def window_paths(
    operator_windows: pl.DataFrame,
    topology: Topology,
    promises: Promises,
    interval: Interval,
    drivers: DriverFacts,
) -> Paths:
    """Finds the critical paths of windows that end in *interval*.

    Args:
        operator_windows: rows of the table. Windows that end up to `looks_back_ms` before the interval are needed, too,
            for the averages.
        topology: the topology as it is now.
        promises: the promises about its windows.
        interval: the interval of the report, record time.
        drivers: what else is known of the drivers.
    """
    windows, groups = windows_finished(operator_windows, topology, drivers.passed, drivers.first_ms)
    of_groups = [(group, _measured(group, drivers, topology)) for group in groups]
    average_ms = _averages(of_groups, windows["window_end"].to_numpy(), looks_back_ms(topology))
    parts: dict[Table, list[pl.DataFrame]] = {CRITICAL_PATH_STEPS: [], CRITICAL_PATHS: []}
    finished: list[pl.DataFrame] = []
    for group, measured in of_groups:
        in_interval = (interval.start_ms <= group.end_ms) & (group.end_ms < interval.end_ms)
        if in_interval.any():
            asked, of_asked = group.take(in_interval), measured.take(in_interval)
            finished.append(_finish_rows(asked))
            walks_end = _walks_end(asked, of_asked, drivers, topology)
            for alike_windows in alike([*walks_end.values()], asked.numbers.size):
                first = int(alike_windows.argmax())
                ends = [name for name, is_end in walks_end.items() if is_end[first]]
                paths = _GroupPaths(asked.take(alike_windows), of_asked.take(alike_windows), ends, promises)
                for table, rows in paths.tables(average_ms).items():
                    parts[table].append(rows)
    of_windows = windows.with_row_index("number").cast({"number": pl.Int64()})
    tables: dict[Table, pl.DataFrame] = {}
    for table, of_groups_rows in parts.items():
        tables[table] = _of_windows(of_groups_rows, of_windows, table)
    empty = pl.DataFrame(schema={"number": pl.Int64(), **omit(FINISHED, WINDOW)})
    in_windows = pl.concat([empty, *finished]).join(of_windows, on="number", maintain_order="left")
    return Paths(tables, in_windows.select(*FINISHED))


def _of_windows(parts: list[pl.DataFrame], windows: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Returns the rows in *parts* as rows of *table*, in the order of *windows*, to which their numbers refer.

    Columns that they lack are null; `report` fills them.
    """
    if not parts:
        return pl.DataFrame(rows_of(table, []))
    rows = pl.concat(parts, how="diagonal_relaxed").sort("number", maintain_order=True)
    return pl.DataFrame(rows_of(table, rows.join(windows, on="number", maintain_order="left").drop("number")))


def _finish_rows(group: WindowGroup) -> pl.DataFrame:
    """Returns a row for each operator and window of *group* that it finished, with the number of the window."""
    rows: list[pl.DataFrame] = []
    for name, finish in group.finishes.items():
        values = {column: getattr(finish, column) for column in ("ewt_ms", "began_ms", "skew_ms", "batch_id")}
        rows.append(pl.DataFrame({"number": group.numbers, "operator": name, **_whole(values)}))
    return pl.concat(rows)


def _whole(values: Mapping[str, Floats]) -> dict[str, pl.Series]:
    """Returns *values* as integers, null for NaN."""
    return {name: pl.Series(of.ravel(), nan_to_null=True).cast(pl.Int64()) for name, of in values.items()}


def _measured(group: WindowGroup, drivers: DriverFacts, topology: Topology) -> MeasuredLatencies:
    """Returns the latency of each operator on the windows of *group*."""
    newest_ms, behind_ms = drivers.newest_ms, dict[str, Floats]()
    for name, read in group.upstreams.items():
        if read and name not in group.finishes:
            ahead_ms = max(newest_ms.get(upstream, 0) for upstream in read)
            # An operator that never finished a window counts as one window behind this one.
            own_ms = (
                np.full_like(group.end_ms, newest_ms[name]) if name in newest_ms else group.end_ms - topology.window_ms
            )
            behind_ms[name] = ahead_ms - own_ms
    return measure(
        group.upstreams,
        group.ewt_ms,
        behind_ms,
        windows=group.numbers.size,
        now_ms=drivers.now_ms,
        stuck_after_ms=stuck_after_ms(topology.trigger_ms),
    )


def _averages(
    of_groups: Sequence[tuple[WindowGroup, MeasuredLatencies]], end_ms: Places, looks_back_ms: int
) -> dict[str, Floats]:
    """Returns for each operator the moving average of its latencies up to each window, in whole ms.

    As in Apex, the latency of an input is 0. The average is NaN if there is no latency.

    Args:
        of_groups: all groups of windows, with their latencies.
        end_ms: the ends of all windows, in order.
        looks_back_ms: windows that ended longer before a window are not in its average.
    """
    samples_ms: dict[str, Floats] = {}
    for group, measured in of_groups:
        counted_ms = np.where(measured.has_state(STANDS_STILL), np.nan, measured.latency_ms)
        for name, of_operator in zip(measured.names, counted_ms, strict=True):
            samples_ms.setdefault(name, np.full(end_ms.size, np.nan))[group.numbers] = of_operator
    first = np.searchsorted(end_ms, end_ms - looks_back_ms)
    last = np.arange(end_ms.size) + 1
    average_ms: dict[str, Floats] = {}
    for name, of_operator in samples_ms.items():
        sums, counts = (
            np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
            for values in (np.nan_to_num(of_operator).astype(np.int64), ~np.isnan(of_operator))
        )
        n = counts[last] - counts[first]
        average_ms[name] = np.where(n > 0, (sums[last] - sums[first]) // np.maximum(n, 1), np.nan)
    return average_ms


def _walks_end(
    group: WindowGroup, measured: MeasuredLatencies, drivers: DriverFacts, topology: Topology
) -> dict[str, Mask]:
    """Returns for each terminal operator in which windows the critical path may end there; none if a window is open.

    A walk is settled if all its operators are measured, or if a driver on it stands still. A window is open until each
    of its walks is settled, or has taken so long that it could be said to stand still.
    """
    unfinished = np.full(measured.windows, -np.inf)
    ewts_ms = np.stack([group.ewt_ms.get(name, unfinished) for name in measured.names])
    last_ms = measured.along(ewts_ms, np.maximum)
    has_begun = ~np.isinf(last_ms)
    stands_still = measured.along(measured.has_state(STANDS_STILL), np.logical_or)
    is_settled = has_begun & (measured.is_complete | stands_still)
    # A walk that has not begun, such as that of an idle source, is overdue when others are far ahead in record time.
    ahead_ms = max(drivers.newest_ms.values(), default=0) - group.end_ms
    is_overdue = np.where(
        has_begun, drivers.now_ms - last_ms > stuck_after_ms(topology.trigger_ms), ahead_ms > HEARTBEAT_TIMEOUT_MS
    )
    rows = {name: measured.place[name] for name in group.ends}
    if not rows:
        return {}
    is_closed = np.all([is_settled[row] | is_overdue[row] for row in rows.values()], axis=0)
    return {name: is_settled[row] & is_closed for name, row in rows.items()}


class _GroupPaths:
    """The paths of windows whose paths end at the same terminal operators.

    Args:
        group: the windows.
        measured: the latencies of operators on them.
        ends: the terminal operators at which paths may end; none if the windows are open.
        promises: the promises about windows of the topology.
    """

    def __init__(
        self, group: WindowGroup, measured: MeasuredLatencies, ends: Sequence[str], promises: Promises
    ) -> None:
        self._group, self._measured, self._ends, self._promises = group, measured, ends, promises
        finishes = group.finishes
        self._spent = spent(
            measured,
            group.ewt_ms,
            {name: finish.began_ms for name, finish in finishes.items()},
            {name: finish.queued_ms for name, finish in finishes.items()},
        )
        self._columns = np.arange(measured.windows)

    def tables(self, average_ms: Mapping[str, Floats]) -> dict[Table, pl.DataFrame]:
        """Returns the rows of each table, with the numbers of their windows.

        *average_ms* has for each operator the moving average of its latency at each window.
        """
        if not self._ends:
            # An open window has a row without a path, which a later run replaces.
            open_ = pl.DataFrame({"number": self._group.numbers, "state": LatencyState.NO_WINDOW_YET.value})
            shape = self._measured.latency_ms.shape
            return {
                CRITICAL_PATHS: open_,
                CRITICAL_PATH_STEPS: self._steps(np.zeros(shape, np.bool_), np.full(shape, np.nan), np.zeros(shape[1])),
            }
        # Operators that lead only to walks that are not settled are on no path.
        on_paths = reached(self._ends, self._group.upstreams)
        upstreams = {name: self._group.upstreams.get(name, ()) for name in on_paths}
        leaf = self._measured.longest(leaves(upstreams), self._measured.total_ms)
        critical_ms = self._measured.total_ms[leaf, self._columns]
        averages_ms = np.stack([np.nan_to_num(average_ms[name][self._group.numbers]) for name in self._measured.names])
        # Of equal averages the last leaf by name is taken; Apex takes the one that was added first.
        averaged = self._measured.longest(leaves(upstreams)[::-1], self._measured.along(averages_ms, np.add))
        return {
            CRITICAL_PATHS: self._paths(leaf, critical_ms, averages_ms, averaged).join(
                self._leaves(critical_ms), on="number", how="left", maintain_order="left"
            ),
            CRITICAL_PATH_STEPS: self._steps(
                self._measured.walk_to(leaf),
                slack_ms(upstreams, self._group.ewt_ms, self._measured, critical_ms),
                critical_ms,
            ),
        }

    def _before_source_ms(self, last: Places) -> Floats:
        """Returns how old each window was when the source of its path had finished it, ms.

        The path ends at the operator in the row *last*.
        """
        ewts_ms = np.stack([self._group.ewt_ms.get(name, np.full(last.size, np.nan)) for name in self._measured.names])
        return ewts_ms[self._measured.source[last, self._columns], self._columns] - self._group.end_ms

    def _steps(self, on_path: Mask, slack: Floats, critical_ms: Floats) -> pl.DataFrame:
        measured, n = self._measured, len(self._measured.names)
        own_share = np.divide(
            measured.latency_ms, critical_ms, out=np.full(on_path.shape, np.nan), where=on_path & (critical_ms != 0)
        )
        operators = pl.DataFrame(
            {
                "operator": measured.names,
                "sub_topology": [self._group.places[name].sub_topology for name in measured.names],
                "kind": [self._group.places[name].kind for name in measured.names],
                "promised_ms": pl.Series(
                    [self._promises.work_ms.get(name) for name in measured.names], dtype=pl.Int64()
                ),
            }
        )
        whole = {
            "step": np.where(on_path, measured.depth, np.nan),
            "latency_ms": measured.latency_ms,
            "slack_ms": slack,
            "waited_ms": self._spent.waited_ms,
            "queued_ms": self._spent.queued_ms,
            "worked_ms": self._spent.worked_ms,
        }
        return operators[np.repeat(np.arange(n), measured.windows)].with_columns(
            number=pl.Series(np.tile(self._group.numbers, n)),
            slowest_upstream=_named([*measured.names], measured.slowest),
            state=_named(_STATE_NAMES, measured.state),
            share=pl.Series(own_share.ravel(), nan_to_null=True),
            **_whole(whole),
        )

    def _leaves(self, critical_ms: Floats) -> pl.DataFrame:
        """Returns the paths to all leaves of each window, the critical one first."""
        names, rows = self._measured.names, []
        for name in self._ends:
            last = np.full(self._measured.windows, self._measured.place[name])
            total_ms = self._measured.total_ms[last[0]]
            whole = {
                "latency_ms": total_ms,
                "behind_ms": critical_ms - total_ms,
                "before_source_ms": self._before_source_ms(last),
            }
            source = _named([*names], self._measured.source[last[0]])
            rows.append(pl.DataFrame({"number": self._group.numbers, "leaf": name, "source": source, **_whole(whole)}))
        in_order = pl.concat(rows).sort("number", "behind_ms", "leaf", nulls_last=True)
        leaves_of_window = pl.struct(pl.exclude("number")).alias("leaves")
        return in_order.group_by("number", maintain_order=True).agg(leaves_of_window)

    def _paths(self, leaf: Places, critical_ms: Floats, averages_ms: Floats, averaged: Places) -> pl.DataFrame:
        measured, at = self._measured, (leaf, self._columns)
        state = _named(_STATE_NAMES, measured.path_state[at])
        # A driver that stands still may have no latency: nothing is known to estimate it from.
        has_latency = ~np.isnan(measured.latency_ms)
        waited_ms, queued_ms = (
            measured.along(np.where(has_latency, each, 0), np.add)[at]
            for each in (self._spent.waited_ms, self._spent.queued_ms)
        )
        unmarked = np.full_like(measured.state, CODE[LatencyState.INPUT])
        whole = {
            "latency_ms": critical_ms,
            "queued_ms": queued_ms,
            "before_source_ms": self._before_source_ms(leaf),
            "waited_ms": waited_ms,
            "skew_error_ms": self._skew_error_ms()[at],
            "moving_average_ms": measured.along(averages_ms, np.add)[averaged, self._columns],
        }
        return pl.DataFrame(
            {
                "number": self._group.numbers,
                "leaf": _named([*measured.names], leaf),
                "path": [*map(path_text, measured.walks(leaf, measured.latency_ms, measured.state))],
                "state": state,
                "moving_average_path": [*map(path_text, measured.walks(averaged, averages_ms, unmarked))],
                **_whole(whole),
            }
        )

    def _skew_error_ms(self) -> Floats:
        """Returns the largest error of the clocks of each walk."""
        measured, finishes = self._measured, self._group.finishes
        none = np.full(measured.windows, -np.inf)
        own_ms = np.stack([finishes[name].skew_error_ms if name in finishes else none for name in measured.names])
        # Instants of one clock have no error against each other.
        is_one = same_clock(measured, {name: finish.clock for name, finish in finishes.items()})
        return np.where(is_one, 0, measured.along(own_ms, np.maximum))


_STATE_NAMES = [state.value for state in STATES]


def _named(names: Sequence[str], places: Places) -> pl.Series:
    """Returns the name at each of *places*, null for NONE."""
    return pl.Series([*names, None], dtype=pl.String()).gather(np.where(places == NONE, len(names), places).ravel())
