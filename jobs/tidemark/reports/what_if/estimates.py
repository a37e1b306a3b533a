"""Estimates the critical paths that windows would have had if operators had worked more or less.

The frames are of polars, because a few thousand windows need no Spark. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.clocks import on_one_clock
from tidemark.kernels.reports.arrays import Floats
from tidemark.model.topology import Topology
from tidemark.reports.paths.solver import MeasuredLatencies, measure, spent
from tidemark.selection import in_order_of
from tidemark.semantics.critical_path import Path, Upstreams
from tidemark.semantics.quantiles import MEDIAN, quantile_of
from tidemark.semantics.timetable import Timetable, TimetableBatch
from tidemark.semantics.what_if import drivers_read, sooner_ewts_ms

SCALE_AT_MOST = 1_000_000
_Rows = Mapping[str, Mapping[str, Any]]
"""The rows of `operator_windows` about one window, by operator."""


@dataclass(frozen=True, kw_only=True)
class WorkChange:
    """A change of how long *operator* works: the old time × *scale* − *less_ms*, and at least 0 ms.

    Raises:
        InvalidArgument: *scale* is negative, larger than SCALE_AT_MOST or not a number.
    """

    operator: str
    scale: float = 1.0
    less_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= SCALE_AT_MOST:
            msg = (
                f"{self.operator}: scale must be from 0 to {SCALE_AT_MOST:,}, got {self.scale}; "
                "write 0.5 for half of the work"
            )
            raise InvalidArgument(msg)

    def saved_ms(self, worked_ms: int) -> int:
        """Returns by how much the new time is shorter than *worked_ms*; negative if it is longer."""
        return worked_ms - max(0, round(worked_ms * self.scale) - self.less_ms)


@dataclass(frozen=True, kw_only=True)
class ComparedWindow:
    """A closed streaming window, with start and end in epoch ms.

    `was` is its actual critical path, `then` the estimated path with the changes.
    """

    start_ms: int
    end_ms: int
    was: Path
    then: Path


def what_if(
    operator_windows: pl.DataFrame,
    batches: pl.DataFrame,
    upstreams: Upstreams,
    changes: Iterable[WorkChange],
    *,
    distances_ms: Mapping[str, int],
) -> list[ComparedWindow]:
    """Returns closed windows with their actual paths and those after *changes*, oldest first.

    Only the time of work changes. The batches of a driver get shorter by that time, so that its next ones may begin
    sooner (`timetable`). If a driver reads no other driver, its batches begin at the same instants as before. Windows
    that an operator has not finished are left out, and so are windows of batches whose beginning is not known.

    Args:
        operator_windows: rows of one topology.
        batches: rows about its drivers.
        upstreams: the upstream operators of each operator.
        changes: changes of work. If an operator has several, the last one counts.
        distances_ms: the least distance between batches of each driver (`distances_of`).

    Raises:
        InvalidArgument: a change is for an unknown operator.
    """
    changed = {change.operator: change for change in changes}
    # A misspelled operator would change nothing without notice.
    if unknown := sorted(set(changed) - set(upstreams)):
        msg = f"there is no operator {', '.join(unknown)}; known: {', '.join(sorted(upstreams))}"
        raise InvalidArgument(msg)
    rows = _closed_windows(operator_windows, upstreams)
    if not rows:
        return []
    was, worked_ms = _measured(rows, upstreams)
    closed: list[_ClosedWindow] = []
    for number, of_window in enumerate(rows):
        saved_ms = {name: change.saved_ms(int(worked_ms[was.place[name], number])) for name, change in changed.items()}
        closed.append(_ClosedWindow(of_window, saved_ms))
    timetables = _timetables(batches, closed, upstreams, distances_ms)
    ewts_then_ms = [window.ewts_then_ms(upstreams, timetables) for window in closed]
    then = _all_finished(upstreams, {name: [of[name] for of in ewts_then_ms] for name in upstreams})
    compared: list[ComparedWindow] = []
    for window, path, path_then in zip(closed, was.paths(upstreams), then.paths(upstreams), strict=True):
        row = next(iter(window.rows.values()))
        compared.append(
            ComparedWindow(start_ms=row["window_start"], end_ms=row["window_end"], was=path, then=path_then)
        )
    return compared


def distances_of(topology: Topology) -> dict[str, int]:
    """Returns the least distance between two batches of each driver of *topology*, ms.

    That is the trigger, or 0 if the writers of all its hops run in the same process and wake it.
    """
    return {
        sub.name: 0 if topology.shares_processes and sub.reads_hops_alone else topology.trigger_ms
        for sub in topology.sub_topologies
    }


@dataclass(frozen=True)
class _ClosedWindow:
    """A closed window, with the row of each operator; `saved_ms` is how much work the changes save, by operator."""

    rows: _Rows
    saved_ms: Mapping[str, int]

    @cached_property
    def drivers(self) -> dict[str, str]:
        """The driver of each operator."""
        return {name: row["sub_topology"] for name, row in self.rows.items()}

    @cached_property
    def batches(self) -> dict[str, Mapping[str, Any]]:
        """For each driver one of its rows, which tells of the batch that finished the window."""
        return {row["sub_topology"]: row for row in self.rows.values()}

    def saved_by(self, driver: str) -> int:
        """Returns the ms that the operators of *driver* save."""
        return sum(ms for name, ms in self.saved_ms.items() if self.drivers[name] == driver)

    def ewts_then_ms(self, upstreams: Upstreams, timetables: Mapping[str, Timetable]) -> dict[str, int]:
        """Returns when each operator would have finished the window after the changes, epoch ms."""
        ewt_ms = {name: row["ewt_adjusted_at"] for name, row in self.rows.items()}
        begins = {driver: partial(_begins_sooner, timetables[driver], row) for driver, row in self.batches.items()}
        return sooner_ewts_ms(upstreams, ewt_ms, self.drivers, self.saved_ms, begins)


def _closed_windows(operator_windows: pl.DataFrame, upstreams: Upstreams) -> list[_Rows]:
    """Returns the rows of each closed window by operator; a window is closed if all operators have a row."""
    rows = (
        on_one_clock(operator_windows.with_columns(cs.datetime().dt.epoch("ms")))
        # A row may lack the beginning of its batch, or the time for which it was queued.
        .filter(pl.col("batch_started_at").is_not_null())
        .sort("window_end", "ewt_adjusted_at")
        .unique(["window_start", "window_end", "operator"], keep="first", maintain_order=True)
        .with_columns(pl.col("skew_ms", "queued_ms").fill_null(0))
    )
    closed: list[_Rows] = []
    for _, of_window in rows.group_by("window_start", "window_end", maintain_order=True):
        by_operator = {row["operator"]: row for row in of_window.iter_rows(named=True)}
        if set(upstreams) <= set(by_operator):
            closed.append(in_order_of(upstreams, by_operator))
    return closed


def _measured(closed: Sequence[_Rows], upstreams: Upstreams) -> tuple[MeasuredLatencies, Floats]:
    """Returns the measured latencies of operators on *closed* windows, and how long each worked on each window, ms."""

    def values(column: str) -> dict[str, Floats]:
        return {name: np.array([rows[name][column] for rows in closed], float) for name in upstreams}

    ewt_ms, skew_ms = values("ewt_adjusted_at"), values("skew_ms")
    began_ms = {name: of + skew_ms[name] for name, of in values("batch_started_at").items()}
    measured = _all_finished(upstreams, ewt_ms)
    return measured, spent(measured, ewt_ms, began_ms, values("queued_ms")).worked_ms


def _all_finished(upstreams: Upstreams, ewt_ms: Mapping[str, npt.ArrayLike]) -> MeasuredLatencies:
    """Returns the measured latencies of operators that have finished all windows, from when each did (*ewt_ms*)."""
    ewts_ms = {name: np.asarray(of, float) for name, of in ewt_ms.items()}
    (windows,) = {of.size for of in ewts_ms.values()}
    return measure(upstreams, ewts_ms, {}, windows=windows)


def _timetables(
    batches: pl.DataFrame,
    closed: Sequence[_ClosedWindow],
    upstreams: Upstreams,
    distances_ms: Mapping[str, int],
) -> dict[str, Timetable]:
    """Returns the timetable of each driver."""
    saved: dict[str, dict[int, int]] = {}
    read: dict[str, set[str]] = {}
    skew_ms: dict[str, int] = {}
    for window in closed:
        for driver, others in drivers_read(upstreams, window.drivers).items():
            row = window.batches[driver]
            saved.setdefault(driver, {})[row["batch_started_at"]] = window.saved_by(driver)
            read.setdefault(driver, set()).update(others)
            skew_ms[driver] = row["skew_ms"]
    # A batch that closed no window is assumed to save what the others usually save.
    usual_ms = {driver: quantile_of(of.values(), MEDIAN) for driver, of in saved.items()}
    by_driver: dict[str, list[TimetableBatch]] = {driver: [] for driver in saved}
    instants = batches.with_columns(cs.datetime().dt.epoch("ms")).sort("started_at")
    for driver, started_ms, finished_ms in instants.select("sub_topology", "started_at", "finished_at").iter_rows():
        if driver in by_driver:
            batch = TimetableBatch(started_ms, finished_ms, saved[driver].get(started_ms, usual_ms[driver]))
            by_driver[driver].append(batch)
    timetables: dict[str, Timetable] = {}
    for driver, own in by_driver.items():
        # A commit of an upstream driver adds records to read.
        ends_ms = [batch.finished_ms + skew_ms[other] for other in read[driver] for batch in by_driver[other]]
        commits_ms = sorted(end_ms - skew_ms[driver] for end_ms in ends_ms)
        # Operators may have been in a sub-topology that is no longer there.
        timetables[driver] = Timetable(own, distances_ms.get(driver, 0), commits_ms)
    return timetables


def _begins_sooner(timetable: Timetable, row: Mapping[str, Any], upstream_ms: int, upstream_sooner_ms: int) -> int:
    """Returns by how many ms the batch of *row* begins sooner.

    The commit of an upstream driver at *upstream_ms*, which the batch waits for, comes *upstream_sooner_ms* sooner.
    """
    # A timetable has instants of its driver's clock.
    return timetable.sooner_ms(row["batch_started_at"], upstream_ms - row["skew_ms"], upstream_sooner_ms)
