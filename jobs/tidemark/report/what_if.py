"""What stored windows would have been had operators worked less, and which of them splitting would help (ring 1).

Frames are polars': a few thousand windows need no Spark. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import polars as pl
import polars.selectors as cs

from tidemark.errors import InvalidArgument
from tidemark.kernels.clocks import on_one_clock
from tidemark.semantics.critical_path import Path, Step, Upstreams, critical_path, measure, parts
from tidemark.semantics.timetable import Batch, Timetable
from tidemark.semantics.what_if import sooner
from tidemark.spec.operators import Kind
from tidemark.spec.topology import Topology

LARGE_SHARE = 0.2
"""From this part of the paths' work on, splitting an operator is worth its trouble."""
SCALE_AT_MOST = 1_000_000
KEYED = frozenset({Kind.TABLE, Kind.AGGREGATE})
"""The kinds whose state is kept by key, so that tasks can share it out."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """That *operator* works *scale* times as long, and *less_ms* less than that; never less than nothing.

    Raises:
        InvalidArgument: *scale* is negative, larger than SCALE_AT_MOST or not a number.
    """

    operator: str
    scale: float = 1.0
    less_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= SCALE_AT_MOST:
            msg = (
                f"{self.operator}: a scale is from 0 to {SCALE_AT_MOST:,}, got {self.scale}; "
                "write 0.5 for half of the work"
            )
            raise InvalidArgument(msg)

    def saved_ms(self, worked_ms: int) -> int:
        """By how much that is less than *worked_ms*; negative when it is more."""
        return worked_ms - max(0, round(worked_ms * self.scale) - self.less_ms)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A closed streaming window: the critical path that it had, and the one that it would have had then."""

    start_ms: int
    end_ms: int
    was: Path
    then: Path


def what_if(
    operator_windows: pl.DataFrame,
    batches: pl.DataFrame,
    upstreams: Upstreams,
    changes: Iterable[Change],
    *,
    trigger_ms: int,
) -> list[Window]:
    """The closed windows among the rows *operator_windows* of one topology, oldest first, with and without *changes*.

    Only work changes. The *batches* of a driver take that much less time, and so may begin sooner: see `timetable`.
    When the batches of drivers without an upstream driver begin stays as it was. Windows that some operator has not
    finished, or of whose batches the beginning is not known, are left out.

    Raises:
        InvalidArgument: a change is for an operator that is not there.
    """
    changed = {change.operator: change for change in changes}
    if unknown := sorted(set(changed) - set(upstreams)):
        msg = f"there is no operator {', '.join(unknown)}; known: {', '.join(sorted(upstreams))}"
        raise InvalidArgument(msg)
    closed = [_Closed(rows, upstreams, changed) for rows in _closed(operator_windows, upstreams)]
    timetables = _timetables(batches, closed, trigger_ms)
    return [window.changed(timetables) for window in closed]


def _closed(operator_windows: pl.DataFrame, upstreams: Upstreams) -> Iterator[dict[str, dict[str, Any]]]:
    """Per closed window its rows by operator, instants as epoch ms."""
    rows = (
        on_one_clock(operator_windows.with_columns(cs.datetime().dt.epoch("ms")))
        .filter(pl.col("batch_started_at").is_not_null())
        .sort("window_end", "ewt_adjusted_at")
        .unique(["window_start", "window_end", "operator"], keep="first", maintain_order=True)
    )
    for _, of_window in rows.group_by("window_start", "window_end", maintain_order=True):
        found = {row["operator"]: row for row in of_window.iter_rows(named=True)}
        if set(upstreams) <= set(found):
            yield {name: found[name] for name in upstreams}


class _Closed:
    """A closed window as it was, by its *rows* per operator, and what *changes* would have saved of the work on it."""

    def __init__(
        self, rows: Mapping[str, Mapping[str, Any]], upstreams: Upstreams, changes: Mapping[str, Change]
    ) -> None:
        self._upstreams = upstreams
        self._ewt_ms = {name: row["ewt_adjusted_at"] for name, row in rows.items()}
        self._was = measure(upstreams, self._ewt_ms)
        self._drivers = {name: row["sub_topology"] for name, row in rows.items()}
        self._saved_ms = {name: change.saved_ms(_worked_ms(self._was, name, rows)) for name, change in changes.items()}
        self._rows = rows
        self.batches = {row["sub_topology"]: row for row in rows.values()}

    def saved_ms(self, driver: str) -> int:
        """What its operators in *driver* would have saved together."""
        return sum(ms for name, ms in self._saved_ms.items() if self._drivers[name] == driver)

    def changed(self, timetables: Mapping[str, Timetable]) -> Window:
        """The window as it was and as it would have been."""
        begins = {driver: partial(_begins_sooner, timetables[driver], row) for driver, row in self.batches.items()}
        then_ms = sooner(self._upstreams, self._ewt_ms, self._drivers, self._saved_ms, begins)
        any_row = next(iter(self.batches.values()))
        return Window(
            start_ms=any_row["window_start"],
            end_ms=any_row["window_end"],
            was=critical_path(self._upstreams, self._was),
            then=critical_path(self._upstreams, measure(self._upstreams, then_ms)),
        )


def _worked_ms(steps: Mapping[str, Step], name: str, rows: Mapping[str, Mapping[str, Any]]) -> int:
    """What *name* worked on a window; nothing at a source."""
    step, row = steps[name], rows[name]
    if step.slowest_upstream is None:
        return 0
    began_ms = row["batch_started_at"] + (row["skew_ms"] or 0)
    before_batch_ms = began_ms - rows[step.slowest_upstream]["ewt_adjusted_at"]
    return parts(step.latency_ms or 0, before_batch_ms=before_batch_ms, queued_ms=row["queued_ms"]).worked_ms


def _timetables(batches: pl.DataFrame, closed: Iterable[_Closed], trigger_ms: int) -> dict[str, Timetable]:
    """Per driver; a batch that closed no window is taken to save what those usually save that did."""
    saved: dict[str, dict[int, int]] = {}
    for window in closed:
        for driver, row in window.batches.items():
            saved.setdefault(driver, {})[row["batch_started_at"]] = window.saved_ms(driver)
    usual_ms = {driver: round(median(of.values())) for driver, of in saved.items()}
    known: dict[str, list[Batch]] = {driver: [] for driver in saved}
    instants = batches.with_columns(cs.datetime().dt.epoch("ms")).sort("started_at")
    for driver, started_ms, finished_ms in instants.select("sub_topology", "started_at", "finished_at").iter_rows():
        if driver in known:
            batch = Batch(started_ms, finished_ms, saved[driver].get(started_ms, usual_ms[driver]))
            known[driver].append(batch)
    return {driver: Timetable(of, trigger_ms) for driver, of in known.items()}


def _begins_sooner(timetable: Timetable, row: Mapping[str, Any], upstream_ms: int, upstream_sooner_ms: int) -> int:
    """By how much sooner the batch of *row* begins; the timetable goes by its driver's clock."""
    return timetable.sooner_ms(row["batch_started_at"], upstream_ms - (row["skew_ms"] or 0), upstream_sooner_ms)


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Whether splitting an operator of the critical paths over more tasks would help, and the reasons.

    `worked_share` is its part of what all operators on the paths worked, 0 to 1; `windows` on whose paths it is;
    `saves_ms` what a window would gain at most if its tasks shared the work evenly.
    """

    operator: str
    helps: bool
    worked_share: float
    windows: int
    saves_ms: int
    reasons: tuple[str, ...]


def hints(critical_path_steps: pl.DataFrame, topology: Topology, tasks: Mapping[str, int]) -> list[Hint]:
    """A hint for each operator on the critical paths among the rows *critical_path_steps*, the most work first.

    After these those off the paths that take a LARGE_SHARE of the work of a driver that is on them.

    *tasks* are the input partitions of each sub-topology, as `tasks_of` counts them.
    """
    on_path = critical_path_steps.filter(pl.col("step").is_not_null() & pl.col("worked_ms").is_not_null())
    whole_ms = on_path["worked_ms"].sum()
    worked = on_path.group_by("operator", "sub_topology").agg(
        ms=pl.col("worked_ms").sum(), median_ms=pl.col("worked_ms").median(), windows=pl.len()
    )
    return [
        _hint(topology, row, tasks.get(row["sub_topology"], 1), row["ms"] / whole_ms if whole_ms else 0.0)
        for row in worked.sort("ms", "operator", descending=[True, False]).iter_rows(named=True)
        if row["operator"] in topology.operators
    ] + _occupants(critical_path_steps, set(worked["sub_topology"]), set(worked["operator"]))


def _occupants(critical_path_steps: pl.DataFrame, drivers: set[str], on_path: set[str]) -> list[Hint]:
    """Operators never on a path that occupy one of *drivers*, in which others wait for them."""
    known = critical_path_steps.filter(pl.col("worked_ms").is_not_null() & pl.col("sub_topology").is_in(list(drivers)))
    worked = known.group_by("operator", "sub_topology").agg(ms=pl.col("worked_ms").sum(), windows=pl.len())
    shares = worked.with_columns(share=pl.col("ms") / pl.col("ms").sum().over("sub_topology"))
    beside = shares.filter((pl.col("share") >= LARGE_SHARE) & ~pl.col("operator").is_in(list(on_path)))
    return [
        Hint(
            operator=row["operator"],
            helps=False,
            worked_share=row["share"],
            windows=0,
            saves_ms=0,
            reasons=(
                f"off the path: {row['share']:.0%} of the work of the driver {row['sub_topology']}, for which its "
                "other operators wait; run it in a sub-topology of its own",
            ),
        )
        for row in beside.sort("ms", "operator", descending=[True, False]).iter_rows(named=True)
    ]


def _hint(topology: Topology, row: Mapping[str, Any], tasks: int, share: float) -> Hint:
    kind = topology.operators[row["operator"]].kind
    keyed, several, large = kind in KEYED, tasks > 1, share >= LARGE_SHARE
    reasons = (
        f"{kind}: its state is kept by key, which tasks can share out"
        if keyed
        else f"{kind}: it keeps no state by key",
        f"{tasks} tasks: its input has as many partitions" if several else "1 task: repartition its input first",
        f"{share:.0%} of the work on {row['windows']} paths" + ("" if large else f", less than {LARGE_SHARE:.0%}"),
    )
    helps = keyed and several and large
    return Hint(
        operator=row["operator"],
        helps=helps,
        worked_share=share,
        windows=row["windows"],
        saves_ms=round(row["median_ms"] * (1 - 1 / tasks)) if helps else 0,
        reasons=reasons,
    )


def tasks_of(operator_latency: pl.DataFrame) -> dict[str, int]:
    """The tasks of each sub-topology that the rows *operator_latency* tell of."""
    counted = operator_latency.group_by("sub_topology").agg(pl.col("task_id").n_unique())
    return dict(counted.iter_rows())
