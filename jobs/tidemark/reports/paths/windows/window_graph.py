"""Groups streaming windows by the operators that have finished them.

A driver has a row for each window that it finished with records. One that passed a window without a row finished it in
the batch that passed it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from tidemark.kernels.reports.arrays import Floats
from tidemark.model.topology import Topology
from tidemark.reports.paths.windows.finish_rows import WINDOW, RowOperator, finish_rows
from tidemark.reports.paths.windows.operator_places import OperatorPlace, joined_up, places_of, without_unread
from tidemark.reports.paths.windows.passed_windows import PassedWindows
from tidemark.reports.paths.windows.passing_rows import PassingRows
from tidemark.reports.paths.windows.window_group import OperatorFinish, WindowGroup


def windows_finished(
    operator_windows: pl.DataFrame, topology: Topology, passed: PassedWindows, first_ms: Mapping[str, int]
) -> tuple[pl.DataFrame, list[WindowGroup]]:
    """Returns the windows of *operator_windows* and their groups.

    The windows are in the order of their ends.

    Args:
        operator_windows: rows. The first batch of an operator that closed a window counts.
        topology: as it is now.
        passed: when sub-topologies had passed windows.
        first_ms: end of the first window that each operator is known to have finished, epoch ms.
    """
    rows, operators = finish_rows(operator_windows)
    windows = rows.group_by(WINDOW, maintain_order=True).agg("operator_number", first_row=pl.col("row").first())
    drivers = _Drivers(passed, places_of(topology), operators, rows, first_ms)
    for number, of_window in enumerate(windows.select("window_end", "operator_number", "first_row").iter_rows()):
        drivers.add(number, *of_window)
    return windows.select(WINDOW), drivers.groups(windows["window_end"].to_numpy().astype(np.float64))


class _WindowRows(NamedTuple):
    """Operators and places in the rows of a window.

    A row is given by its place among them.

    Attributes:
        first: the first row of each operator.
        places: of these operators.
        newest: the places that rows of a sub-topology have.
        have_places: sub-topologies with an operator in `places` whose rows have places.
        last: the last row of each sub-topology.
    """

    first: Mapping[str, int]
    places: Mapping[str, OperatorPlace]
    newest: Mapping[str, Mapping[str, OperatorPlace]]
    have_places: Collection[str]
    last: Mapping[str, int]


@dataclass
class _Members:
    """The windows of a group.

    They have numbers, and the row of each operator that finished them.
    """

    places: Mapping[str, OperatorPlace]
    finished: tuple[str, ...]
    numbers: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)


class _Drivers:
    """Follows drivers from window to window.

    That includes windows that they passed without a row.

    Args:
        passed: when they passed windows.
        current: the places of the topology as it is now.
        operators: the operators of rows, by number.
        rows: the rows of all windows.
        first_ms: as in `windows_finished`.
    """

    def __init__(
        self,
        passed: PassedWindows,
        current: Mapping[str, OperatorPlace],
        operators: list[RowOperator],
        rows: pl.DataFrame,
        first_ms: Mapping[str, int],
    ) -> None:
        self._current, self._operators = current, operators
        self._names = sorted(first_ms, key=lambda name: first_ms[name])
        self._first_ms = [first_ms[name] for name in self._names]
        by_sub: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        for name, place in current.items():
            by_sub[place.sub_topology][name] = place
        self._passing = PassingRows(passed, by_sub, operators, rows)
        # Few different places and combinations of rows occur in many windows.
        self._kinds: dict[tuple[int, ...], _WindowRows] = {}
        self._same: dict[object, Mapping[str, OperatorPlace]] = {}
        self._places = {sub: self._interned(places) for sub, places in by_sub.items()}
        self._connected: dict[object, Mapping[str, OperatorPlace]] = {}
        self._members: dict[object, _Members] = {}
        self._without_gaps: dict[object, tuple[_Members, list[int]]] = {}

    def add(self, number: int, end_ms: int, operator_numbers: list[int], first_row: int) -> None:
        """Adds a window, after those that ended before it.

        Args:
            number: of the window.
            end_ms: its end.
            operator_numbers: the number of the operator of each of its rows.
            first_row: the first of these.
        """
        rows = self._kind_of(tuple(operator_numbers))
        for sub, last in rows.last.items():
            self._passing.last[sub] = first_row + last
        # The newest rows of a driver replace all its places: it may run another version of the topology now.
        self._places |= rows.newest
        # An operator whose first row comes later did not exist yet.
        existing = bisect_right(self._first_ms, end_ms)
        kind = (id(rows), existing, *map(id, self._places.values()))
        if kind not in self._without_gaps:
            places, finished = dict(rows.places), {name: first_row + row for name, row in rows.first.items()}
            gaps = self._gaps(rows, {*self._names[existing:]})
            for sub, missing in gaps.items():
                self._passing.fill(sub, missing, end_ms, places, finished, first_row + len(operator_numbers))
            members = self._members_of(places, finished)
            if gaps:
                members.numbers.append(number)
                members.rows.append([finished[name] for name in members.finished])
                return
            self._without_gaps[kind] = members, [rows.first[name] for name in members.finished]
        members, of_operators = self._without_gaps[kind]
        members.numbers.append(number)
        members.rows.append([first_row + row for row in of_operators])

    def groups(self, end_ms: Floats) -> list[WindowGroup]:
        """Returns the groups of all windows; *end_ms* are the ends of these."""
        groups: list[WindowGroup] = []
        values = self._passing.values()
        for members in self._members.values():
            numbers = np.array(members.numbers)
            of_windows = values[np.array(members.rows, np.int64).reshape(numbers.size, -1)]
            finishes = {name: OperatorFinish(*of_windows[:, at].T) for at, name in enumerate(members.finished)}
            groups += WindowGroup(numbers, end_ms[numbers], members.places, {}, finishes).by_last_flows()
        return groups

    def _kind_of(self, operator_numbers: tuple[int, ...]) -> _WindowRows:
        """Returns what rows of the operators with these numbers say."""
        if operator_numbers in self._kinds:
            return self._kinds[operator_numbers]
        first: dict[str, int] = {}
        places: dict[str, OperatorPlace] = {}
        last: dict[str, int] = {}
        newest: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        for row, (name, sub, own_place) in enumerate(self._operators[number] for number in operator_numbers):
            last[sub] = row
            if own_place:
                newest[sub][name] = own_place
            place = own_place or self._current.get(name)
            if place and name not in first:
                first[name], places[name] = row, place
        have_places = {
            place.sub_topology for name, place in places.items() if name in newest.get(place.sub_topology, ())
        }
        same = {sub: self._interned(of_sub) for sub, of_sub in newest.items()}
        self._kinds[operator_numbers] = _WindowRows(first, places, same, have_places, last)
        return self._kinds[operator_numbers]

    def _interned(self, places: Mapping[str, OperatorPlace]) -> Mapping[str, OperatorPlace]:
        """Returns one object for all *places* that are equal."""
        return self._same.setdefault(tuple(places.items()), places)

    def _gaps(self, rows: _WindowRows, later: Collection[str]) -> dict[str, dict[str, OperatorPlace]]:
        """Returns places of operators without a row, by sub-topology.

        Those that came *later* are left out.
        """
        gaps: dict[str, dict[str, OperatorPlace]] = {}
        for sub, of_sub in self._places.items():
            if sub not in rows.have_places:
                missing = {name: place for name, place in of_sub.items() if name not in {*rows.first, *later}}
                if missing:
                    gaps[sub] = missing
        return gaps

    def _members_of(self, places: Mapping[str, OperatorPlace], finished: Collection[str]) -> _Members:
        """Returns the group of windows with *places* that *finished* finished."""
        key = tuple(places.items())
        if key not in self._connected:
            connected = joined_up(without_unread(places), self._current)
            self._connected[key] = self._interned(dict(sorted(connected.items())))
        present = self._connected[key]
        names = tuple(name for name in present if name in finished)
        return self._members.setdefault((id(present), names), _Members(present, names))
