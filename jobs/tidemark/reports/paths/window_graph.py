"""Groups streaming windows by the operators that have finished them.

A driver has a row for each window that it finished with records. One that passed a window without a row finished it in
the batch that passed it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import polars as pl

from tidemark.collecting import pick
from tidemark.kernels.columns.clocks import on_one_clock
from tidemark.kernels.reports.paths import Floats, Mask, Places, alike
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.semantics.critical_path import Upstreams, in_order

WINDOW = ("topology", "window_start", "window_end")
NO_WAIT = float("-inf")
"""The arrival at an operator that was idle and did not wait."""
STARTED_WITH_IT_MS = 30_000
"""Longest delay of a driver's first batch after a window, in ms.

The delay begins when the others had finished the window. A driver that began later was absent during it.
"""


class OperatorFinish(NamedTuple):
    """Describes how an operator finished windows, a number for each.

    It has the instant, the beginning of the batch, and the clock. `clock` is a number of a host and its skew. A driver
    without a row about a window is on the clock of its row before. NaN: it is not known.
    """

    ewt_ms: Floats
    began_ms: Floats
    queued_ms: Floats
    skew_error_ms: Floats
    clock: Floats
    skew_ms: Floats
    batch_id: Floats

    def take(self, windows: Mask) -> OperatorFinish:
        """Returns those of the chosen *windows*."""
        return OperatorFinish(*(values[windows] for values in self))


class OperatorPlace(NamedTuple):
    """The place of an operator in its topology.

    `waits_for` are the operators whose EWT of a window it needs, `read_by` all operators that read it.
    """

    sub_topology: str
    kind: str
    waits_for: tuple[str, ...]
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class WindowGroup:
    """Windows that the same operators at the same places have finished.

    Attributes:
        numbers: of the windows, in their order.
        end_ms: their ends.
        places: of all operators.
        upstreams: the operators that each operator waited for. Where flows of several hops come together in a driver it
            is the flow that arrived last.
        finishes: of the operators that have finished the windows.
    """

    numbers: Places
    end_ms: Floats
    places: Mapping[str, OperatorPlace]
    upstreams: Upstreams
    finishes: Mapping[str, OperatorFinish]

    @property
    def ewt_ms(self) -> dict[str, Floats]:
        """The EWTs of each operator that has finished them, epoch ms."""
        return {name: finish.ewt_ms for name, finish in self.finishes.items()}

    @property
    def ends(self) -> list[str]:
        """The terminal operators, which no other reads."""
        # Tables of joins downstream of a hop have a reader, and no window waits for them.
        return [name for name, place in sorted(self.places.items()) if not place.read_by]

    def take(self, windows: Mask) -> WindowGroup:
        """Returns the chosen *windows*."""
        finishes = {name: finish.take(windows) for name, finish in self.finishes.items()}
        return WindowGroup(self.numbers[windows], self.end_ms[windows], self.places, self.upstreams, finishes)

    def by_last_flows(self) -> Iterator[WindowGroup]:
        """Divides the windows by the flows that arrived last."""
        arrival_ms = self._arrival_ms()
        was_last: dict[tuple[str, str], Mask] = {}
        for name, place in self.places.items():
            # Where the arrival of one is not known, each may have been the last.
            if len(place.waits_for) > 1 and arrival_ms.keys() >= {*place.waits_for}:
                last_ms = np.max([arrival_ms[each] for each in place.waits_for], axis=0)
                for each in place.waits_for:
                    was_last[name, each] = (arrival_ms[each] == last_ms) | (last_ms == NO_WAIT)
        for chosen in alike(list(was_last.values()), self.numbers.size):
            first = int(chosen.argmax())
            upstreams: dict[str, tuple[str, ...]] = {}
            for name, place in sorted(self.places.items()):
                waits_for = [
                    each for each in place.waits_for if (name, each) not in was_last or was_last[name, each][first]
                ]
                upstreams[name] = tuple(waits_for)
            group = self.take(chosen)
            yield WindowGroup(group.numbers, group.end_ms, group.places, upstreams, group.finishes)

    def _arrival_ms(self) -> dict[str, Floats]:
        """Returns when the windows arrived over hops, by operator of the driver.

        It is NO_WAIT for an operator that did not wait for it because it was idle. Operators that read from outside,
        directly or among others, are left out, because no row of their driver has that arrival.
        """
        arrival_ms: dict[str, Floats] = {}
        none = np.full(self.numbers.size, NO_WAIT)
        for name in in_order({name: place.waits_for for name, place in self.places.items()}):
            place = self.places.get(name)
            if place is None or name not in self.finishes or not place.waits_for:
                continue
            if place.kind == Source.kind:
                # A source with upstreams is the reading end of hops.
                sent_ms = [self.finishes[up].ewt_ms for up in place.waits_for if up in self.finishes]
                own_ms = self.finishes[name].ewt_ms
                arrival_ms[name] = np.max([none, *(np.where(ewt <= own_ms, ewt, NO_WAIT) for ewt in sent_ms)], axis=0)
            elif arrival_ms.keys() >= {*place.waits_for}:
                arrival_ms[name] = np.max([arrival_ms[up] for up in place.waits_for], axis=0)
        return arrival_ms


@dataclass(frozen=True)
class PassedWindows:
    """Says when each sub-topology had passed a window.

    *batches* are rows of its batches.
    """

    batches: pl.DataFrame | None = None
    _by_sub: dict[str, tuple[list[int], list[tuple[int, int, int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batches is not None:
            ms = pl.col("watermark", "started_at", "finished_at").dt.epoch("ms")
            rows = self.batches.drop_nulls("watermark").with_columns(ms).sort("batch_id")
            # A window that was passed stays passed, should time have been set back.
            rows = rows.with_columns(pl.col("watermark").cum_max().over("sub_topology"))
            for (sub,), part in rows.group_by("sub_topology", maintain_order=True):
                passed = part.select("batch_id", "started_at", "finished_at").rows()
                self._by_sub[str(sub)] = part["watermark"].to_list(), passed

    def batch(self, sub_topology: str, end_ms: int) -> tuple[int, int, int] | None:
        """Returns the first batch whose watermark passed *end_ms*.

        It is a batch of *sub_topology*: number, beginning and end, by its driver's clock. None: there is no such batch.
        """
        watermarks, batches = self._by_sub.get(sub_topology, ([], []))
        # A watermark passes a window when it reaches its last millisecond.
        at = bisect_left(watermarks, end_ms - 1)
        return batches[at] if at < len(batches) else None


def places_of(topology: Topology) -> dict[str, OperatorPlace]:
    """Returns the place of each operator in *topology*."""
    waited_for, read_by = topology.waited_for, topology.read_by
    places: dict[str, OperatorPlace] = {}
    for sub in topology.sub_topologies:
        for operator in sub.operators:
            name = operator.name
            places[name] = OperatorPlace(sub.name, operator.kind, waited_for[name], read_by[name])
    return places


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
    rows, operators = _rows(operator_windows)
    windows = rows.group_by(WINDOW, maintain_order=True).agg("operator_number", first_row=pl.col("row").first())
    drivers = _Drivers(passed, places_of(topology), operators, rows, first_ms)
    for number, of_window in enumerate(windows.select("window_end", "operator_number", "first_row").iter_rows()):
        drivers.add(number, *of_window)
    return windows.select(WINDOW), drivers.groups(windows["window_end"].to_numpy().astype(np.float64))


FINISH = OperatorFinish._fields


class _Operator(NamedTuple):
    """An operator of rows; `place` is None if they lack it."""

    name: str
    sub_topology: str
    place: OperatorPlace | None


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
        operators: list[_Operator],
        rows: pl.DataFrame,
        first_ms: Mapping[str, int],
    ) -> None:
        self._passed, self._current, self._operators, self._rows = passed, current, operators, rows
        self._values = rows.select(FINISH).to_numpy()
        self._subs = {place.sub_topology for place in current.values()}
        self._names = sorted(first_ms, key=lambda name: first_ms[name])
        self._first_ms = [first_ms[name] for name in self._names]
        by_sub: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        for name, place in current.items():
            by_sub[place.sub_topology][name] = place
        # Few different places and combinations of rows occur in many windows.
        self._kinds: dict[tuple[int, ...], _WindowRows] = {}
        self._same: dict[object, Mapping[str, OperatorPlace]] = {}
        self._places = {sub: self._interned(places) for sub, places in by_sub.items()}
        self._clocks: dict[str, int] = {}
        self._more: list[Floats] = []
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
            self._clocks[sub] = first_row + last
        # The newest rows of a driver replace all its places: it may run another version of the topology now.
        self._places |= rows.newest
        # An operator whose first row comes later did not exist yet.
        existing = bisect_right(self._first_ms, end_ms)
        kind = (id(rows), existing, *map(id, self._places.values()))
        if kind not in self._without_gaps:
            places, finished = dict(rows.places), {name: first_row + row for name, row in rows.first.items()}
            gaps = self._gaps(rows, {*self._names[existing:]})
            for sub, missing in gaps.items():
                self._fill(sub, missing, end_ms, places, finished, first_row + len(operator_numbers))
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
        values = np.vstack([self._values, *self._more])
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

    def _fill(
        self,
        sub: str,
        missing: Mapping[str, OperatorPlace],
        end_ms: int,
        places: dict[str, OperatorPlace],
        finished: dict[str, int],
        next_row: int,
    ) -> None:
        """Adds operators without a row to *places*.

        They are added to *finished*, too, if their driver passed the window.

        Args:
            sub: the sub-topology of the driver.
            missing: the places of its operators without a row.
            end_ms: end of the window.
            places: of the operators of the window.
            finished: the row of each operator that has finished it.
            next_row: the first row of the window after it.
        """
        missing = {name: place for name, place in missing.items() if name not in finished}
        batch = self._passed.batch(sub, end_ms)
        if self._was_away(sub, batch, finished.values()):
            return
        places |= missing
        if batch is not None:
            # An operator that closed another window in that batch has its own EWT.
            of_batch = {
                name: row for name, row in self._rows_of_batch.get((sub, batch[0]), {}).items() if row < next_row
            }
            rest = dict.fromkeys(missing, self._row_of_pass(sub, batch))
            finished |= rest | pick(of_batch, missing)

    def _row_of_pass(self, sub: str, batch: tuple[int, int, int]) -> int:
        """Adds a row for operators that passed a window in *batch*.

        Returns its number.
        """
        batch_id, began_ms, finished_ms = batch
        clock = self._values[self._clocks[sub]] if sub in self._clocks else np.full(len(FINISH), np.nan)
        row = dict(zip(FINISH, clock.tolist(), strict=True))
        skew_ms = float(np.nan_to_num(row["skew_ms"]))
        row |= {"ewt_ms": finished_ms + skew_ms, "began_ms": began_ms + skew_ms, "queued_ms": 0, "batch_id": batch_id}
        self._more.append(np.array([*row.values()], np.float64))
        return len(self._values) + len(self._more) - 1

    @cached_property
    def _rows_of_batch(self) -> dict[tuple[str, int], dict[str, int]]:
        """The first row of each operator, by sub-topology and batch."""
        by_batch: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        for row, number, batch_id in self._rows.select("row", "operator_number", "batch_id").iter_rows():
            by_batch[self._operators[number].sub_topology, batch_id].setdefault(self._operators[number].name, row)
        return by_batch

    def _was_away(self, sub: str, batch: tuple[int, int, int] | None, others: Collection[int]) -> bool:
        """Returns True if the driver of *sub* was away.

        It was removed before, or began its first batch long after the others had finished the window.

        Args:
            sub: the sub-topology.
            batch: that passed the window; None: no batch has passed it.
            others: the rows of the operators that have finished the window.
        """
        if batch is None:
            return sub not in self._subs
        batch_id, began_ms, _ = batch
        if batch_id > 0 or not others:
            return False
        own = len(self._values)
        ewts_ms = [self._values[row][0] if row < own else self._more[row - own][0] for row in others]
        return bool(began_ms > max(ewts_ms) + STARTED_WITH_IT_MS)

    def _members_of(self, places: Mapping[str, OperatorPlace], finished: Collection[str]) -> _Members:
        """Returns the group of windows with *places* that *finished* finished."""
        key = tuple(places.items())
        if key not in self._connected:
            connected = _joined_up(_without_unread(places), self._current)
            self._connected[key] = self._interned(dict(sorted(connected.items())))
        present = self._connected[key]
        names = tuple(name for name in present if name in finished)
        return self._members.setdefault((id(present), names), _Members(present, names))


def _rows(operator_windows: pl.DataFrame) -> tuple[pl.DataFrame, list[_Operator]]:
    """Returns rows with WINDOW, FINISH and `operator_number`, and the operators.

    The rows are those of *operator_windows*, in the order of the windows' ends.
    """
    ms = pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at").dt.epoch("ms")
    finish = ("ewt_adjusted_at", "batch_started_at", "queued_ms", "skew_error_ms", "host", "skew_ms", "batch_id")
    own = ["operator", "sub_topology", "kind", "upstreams", "read_by"]
    rows = on_one_clock(operator_windows.with_columns(ms))
    rows = rows.with_columns(pl.col("batch_started_at") + pl.col("skew_ms").fill_null(0))
    rows = rows.select(*WINDOW, *own, *finish).sort("window_end", "window_start", "operator", *finish)
    names = rows.select(own).unique(maintain_order=True)
    operators: list[_Operator] = []
    for name, sub, kind, waits_for, read_by in names.iter_rows():
        has_place = waits_for is not None and read_by is not None
        place = OperatorPlace(sub, kind, _names(waits_for), _names(read_by)) if has_place else None
        operators.append(_Operator(name, sub, place))
    numbered = rows.join(names.with_row_index("operator_number"), on=own, nulls_equal=True, maintain_order="left")
    clock = pl.when(pl.col("host").is_not_null()).then(pl.struct("host", "skew_ms").rank("dense"))
    numbers = [
        pl.col("ewt_adjusted_at").alias("ewt_ms"), pl.col("batch_started_at").alias("began_ms"), pl.col("queued_ms"),
        pl.col("skew_error_ms"), clock.alias("clock"), pl.col("skew_ms"), pl.col("batch_id"),
    ]  # fmt: skip
    values = numbered.select(*WINDOW, "operator_number", *(each.cast(pl.Float64()) for each in numbers))
    return values.with_row_index("row"), operators


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _without_unread(places: Mapping[str, OperatorPlace]) -> dict[str, OperatorPlace]:
    """Removes sub-topologies that were not read with the window."""
    read_places = dict(places)
    names_by_sub: dict[str, list[str]] = defaultdict(list)
    for name, place in places.items():
        names_by_sub[place.sub_topology].append(name)
    # In the order of `places`: a sub-topology that is removed is no upstream of those after it.
    for names in names_by_sub.values():
        sources = [name for name in names if places[name].kind == Source.kind]
        # A source that waits for nothing reads from outside, and needs no upstream to name it.
        reads_hops_alone = bool(sources) and all(places[name].waits_for for name in sources)
        # Such a sub-topology reads others whose places do not name it as a reader.
        if reads_hops_alone and not any(_is_read_by(read_places, name) for name in sources):
            for name in names:
                del read_places[name]
    return read_places


def _is_read_by(places: Mapping[str, OperatorPlace], source: str) -> bool:
    """Returns True if one of its upstreams names *source* as a reader."""
    upstreams = [places[name] for name in places[source].waits_for if name in places]
    return any(source in upstream.read_by for upstream in upstreams)


def _joined_up(places: Mapping[str, OperatorPlace], current: Mapping[str, OperatorPlace]) -> dict[str, OperatorPlace]:
    """Connects *places* with one another.

    An operator without a place is replaced by the nearest operators beyond it, by the *current* topology.
    """

    def nearest(names: tuple[str, ...], side: str) -> tuple[str, ...]:
        # A dict keeps the order of names and has each of them once.
        operators: dict[str, None] = {}
        for name in names:
            if name in places:
                operators[name] = None
            elif name in current:
                operators |= dict.fromkeys(nearest(getattr(current[name], side), side))
        return tuple(operators)

    neighbours = chain.from_iterable((*place.waits_for, *place.read_by) for place in places.values())
    if places.keys() >= {*neighbours}:
        return dict(places)
    connected: dict[str, OperatorPlace] = {}
    for name, place in places.items():
        waits_for, read_by = nearest(place.waits_for, "waits_for"), nearest(place.read_by, "read_by")
        connected[name] = place._replace(waits_for=waits_for, read_by=read_by)
    return connected
