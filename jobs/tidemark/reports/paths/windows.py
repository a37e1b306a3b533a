"""Says which operators finished each streaming window, and which upstreams each of them waited for.

A driver has a row of `operator_windows` for each window that it finished with records, and passes others with a later
batch. A row also says what its operator read and who read it, so a window is measured by the topology of that time; a
driver without a row has the topology of its newest row so far.

Windows that the same operators have finished in the same topology are a group, and are measured together. Instants are
epoch ms, lengths ms. NaN: not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import polars as pl

from tidemark.collecting import names_in, omit, within
from tidemark.graph import in_order, reached
from tidemark.kernels.columns.clocks import on_one_clock
from tidemark.kernels.reports.arrays import NONE, Floats, Mask, Places, alike
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.semantics.critical_path import Upstreams

WINDOW = ("topology", "window_start", "window_end")
STARTED_WITH_IT_MS = 30_000
"""Longest delay of a driver's first batch after the others had finished a window.

A driver that began later was absent during the window.
"""
NO_WAIT = float("-inf")
"""The arrival at an operator that was idle and did not wait."""


class OperatorPlace(NamedTuple):
    """The place of an operator in its topology.

    `waits_for` are the operators whose EWT of a window it needs, `read_by` all operators that read it.
    """

    sub_topology: str
    kind: str
    waits_for: tuple[str, ...]
    read_by: tuple[str, ...]


OperatorPlaces = Mapping[str, OperatorPlace]


class OperatorFinish(NamedTuple):
    """How an operator finished windows, a number for each.

    `clock` is a number of a host and its skew. A driver without a row about a window is on the clock of its row before.
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


@dataclass(frozen=True)
class WindowGroup:
    """Windows that the same operators at the same places have finished.

    Attributes:
        numbers: of the windows, in the order of their ends.
        end_ms: their ends.
        places: of all operators.
        upstreams: the operators that each operator waited for. Where flows of several hops come together in a driver it
            is the flow that arrived last.
        finishes: of the operators that have finished the windows.
    """

    numbers: Places
    end_ms: Floats
    places: OperatorPlaces
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


class PassedWindows:
    """Says when each sub-topology had passed a window, by *batches*, rows of its batches."""

    def __init__(self, batches: pl.DataFrame | None = None) -> None:
        self._by_sub: dict[str, tuple[Places, Floats]] = {}
        if batches is None:
            return
        ms = pl.col("watermark", "started_at", "finished_at").dt.epoch("ms")
        rows = batches.drop_nulls("watermark").with_columns(ms).sort("batch_id")
        # A window that was passed stays passed, should time have been set back.
        rows = rows.with_columns(pl.col("watermark").cum_max().over("sub_topology"))
        for (sub,), part in rows.group_by("sub_topology", maintain_order=True):
            passed = part.select("batch_id", "started_at", "finished_at").cast(pl.Float64()).to_numpy()
            self._by_sub[str(sub)] = part["watermark"].to_numpy(), passed

    def batches(self, sub_topology: str, end_ms: Floats) -> Floats:
        """Returns the first batch of *sub_topology* whose watermark passed each of *end_ms*.

        A row has its number, beginning and end, by its driver's clock; NaN: there is no such batch.
        """
        watermarks, batches = self._by_sub.get(sub_topology, (np.empty(0, np.int64), np.empty((0, 3))))
        # A watermark passes a window when it reaches its last millisecond.
        return np.vstack([batches, np.full(3, np.nan)])[np.searchsorted(watermarks, end_ms - 1)]


def windows_finished(
    operator_windows: pl.DataFrame, topology: Topology, passed: PassedWindows, first_ms: Mapping[str, int]
) -> tuple[pl.DataFrame, list[WindowGroup]]:
    """Returns the windows of *operator_windows* in the order of their ends, and their groups.

    Args:
        operator_windows: rows. The first batch of an operator that closed a window counts.
        topology: as it is now.
        passed: when sub-topologies had passed windows.
        first_ms: end of the first window that each operator is known to have finished.
    """
    rows, operators = _rows(operator_windows)
    windows = rows.group_by(WINDOW, maintain_order=True).agg("operator_number", first_row=pl.col("row").first())
    if windows.is_empty():
        return windows.select(WINDOW), []
    drivers = _Drivers(rows, operators, windows, topology, passed)
    names = sorted(first_ms, key=lambda name: first_ms[name])
    # An operator whose first row comes later did not exist yet.
    existing = np.searchsorted([first_ms[name] for name in names], drivers.end_ms, side="right")
    groups: list[WindowGroup] = []
    for chosen in alike([drivers.kind, existing, *drivers.version.values()], windows.height):
        numbers = np.flatnonzero(chosen)
        for group in drivers.groups(numbers, later={*names[existing[numbers[0]] :]}):
            groups += _by_last_flows(group)
    return windows.select(WINDOW), groups


class _RowOperator(NamedTuple):
    """An operator of rows; `place` is None if they lack it."""

    name: str
    sub_topology: str
    place: OperatorPlace | None


def _rows(operator_windows: pl.DataFrame) -> tuple[pl.DataFrame, list[_RowOperator]]:
    """Returns rows with WINDOW, the fields of OperatorFinish and `operator_number`, and the operators.

    The rows are those of *operator_windows*, in the order of the windows' ends, and their instants on one clock.
    """
    ms = pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at").dt.epoch("ms")
    finish = ("ewt_adjusted_at", "batch_started_at", "queued_ms", "skew_error_ms", "host", "skew_ms", "batch_id")
    own = ["operator", "sub_topology", "kind", "upstreams", "read_by"]
    rows = on_one_clock(operator_windows.with_columns(ms))
    rows = rows.with_columns(pl.col("batch_started_at") + pl.col("skew_ms").fill_null(0))
    rows = rows.select(*WINDOW, *own, *finish).sort("window_end", "window_start", "operator", *finish)
    names = rows.select(own).unique(maintain_order=True)
    operators: list[_RowOperator] = []
    for name, sub, kind, waits_for, read_by in names.iter_rows():
        has_place = waits_for is not None and read_by is not None
        # Nothing waits for itself, whatever a row says.
        before = tuple(each for each in _names(waits_for) if each != name) if has_place else ()
        place = OperatorPlace(sub, kind, before, _names(read_by)) if has_place else None
        operators.append(_RowOperator(name, sub, place))
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


@dataclass(frozen=True)
class _WindowRows:
    """What the rows of a window say; windows with rows of the same operators share it.

    A row is given by its place among those of its window.

    Attributes:
        first: the first row of each operator that has a place.
        places: of these operators.
        newest: the places that rows of a sub-topology have.
        told: sub-topologies of which rows about the window say what their operators did.
        last: the last row of each sub-topology.
    """

    first: Mapping[str, int]
    places: OperatorPlaces
    newest: Mapping[str, OperatorPlaces]
    told: frozenset[str]
    last: Mapping[str, int]

    @classmethod
    def of(cls, operators: Sequence[_RowOperator], current: OperatorPlaces) -> _WindowRows:
        """Reads rows of *operators*; one that lacks its place has that of the *current* topology."""
        first: dict[str, int] = {}
        places: dict[str, OperatorPlace] = {}
        newest: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        last: dict[str, int] = {}
        for row, (name, sub, own_place) in enumerate(operators):
            last[sub] = row
            if own_place:
                newest[sub][name] = own_place
            place = own_place or current.get(name)
            if place and name not in first:
                first[name], places[name] = row, place
        told = (place.sub_topology for name, place in places.items() if name in newest.get(place.sub_topology, ()))
        return cls(first, places, newest, frozenset(told), last)


class _Drivers:
    """What drivers said of windows with rows, and did without.

    Attributes:
        end_ms: the ends of the windows.
        kind: the number of the _WindowRows of each window.
        version: by sub-topology, the number of the places of its operators as of each window; NONE: none are known.
    """

    def __init__(
        self,
        rows: pl.DataFrame,
        operators: Sequence[_RowOperator],
        windows: pl.DataFrame,
        topology: Topology,
        passed: PassedWindows,
    ) -> None:
        self._passed, self._current = passed, places_of(topology)
        self._subs = names_in(topology.sub_topologies)
        self._values = rows.select(OperatorFinish._fields).to_numpy()
        self._first_row = windows["first_row"].to_numpy().astype(np.int64)
        self._next_row = np.append(self._first_row[1:], rows.height)
        self.end_ms = windows["window_end"].to_numpy().astype(np.float64)
        kinds: dict[tuple[int, ...], int] = {}
        self.kind = np.array([kinds.setdefault(tuple(each), len(kinds)) for each in windows["operator_number"]])
        self._rows = [_WindowRows.of([operators[number] for number in each], self._current) for each in kinds]
        self._numbers: dict[tuple[tuple[str, OperatorPlace], ...], int] = {}
        self._versions: list[OperatorPlaces] = []
        self.version: dict[str, Places] = {}
        self._last_row: dict[str, Places] = {}
        self._follow_drivers()
        # The first row of each operator in a batch, by sub-topology and name.
        names = pl.DataFrame([each[:2] for each in operators], schema=["operator", "sub"], orient="row")
        of_batches = rows.select("row", "operator_number", "batch_id").join(
            names.with_row_index("operator_number"), on="operator_number", maintain_order="left"
        )
        first_rows = of_batches.unique(["sub", "operator", "batch_id"], keep="first").sort("batch_id")
        self._of_batches = {
            key: (part["batch_id"].to_numpy(), part["row"].to_numpy().astype(np.int64))
            for key, part in first_rows.partition_by(["sub", "operator"], as_dict=True).items()
        }

    def _follow_drivers(self) -> None:
        """Finds the newest row, and the places in the newest rows, that each sub-topology has as of each window."""
        windows = np.arange(self.kind.size)
        for sub in dict.fromkeys(chain(self._subs, *(rows.last for rows in self._rows))):
            of_kinds = [self._number(rows.newest[sub]) if sub in rows.newest else NONE for rows in self._rows]
            own = np.array(of_kinds)[self.kind]
            # The newest rows of a driver replace all its places: it may run another version of the topology now.
            newest = np.maximum.accumulate(np.where(own == NONE, NONE, windows))
            current = {name: place for name, place in self._current.items() if place.sub_topology == sub}
            before = self._number(current) if sub in self._subs else NONE
            self.version[sub] = np.where(newest == NONE, before, own[newest])
            last = np.array([rows.last.get(sub, NONE) for rows in self._rows])[self.kind]
            self._last_row[sub] = np.maximum.accumulate(np.where(last == NONE, NONE, self._first_row + last))

    def _number(self, places: OperatorPlaces) -> int:
        """Returns the number of *places* in `_versions`; equal ones have one."""
        key = tuple(places.items())
        if key not in self._numbers:
            self._numbers[key] = len(self._versions)
            self._versions.append(places)
        return self._numbers[key]

    def groups(self, numbers: Places, later: set[str]) -> Iterator[WindowGroup]:
        """Groups windows of one kind whose drivers had the same places.

        Args:
            numbers: of the windows.
            later: the operators that did not exist yet.
        """
        rows = self._rows[self.kind[numbers[0]]]
        finished = {name: self._values[self._first_row[numbers] + row] for name, row in rows.first.items()}
        gaps: list[tuple[str, OperatorPlaces]] = []
        for sub, versions in self.version.items():
            version = versions[numbers[0]]
            if sub not in rows.told and version != NONE:
                of_sub = self._versions[version]
                missing = {name: place for name, place in of_sub.items() if name not in {*finished, *later}}
                if missing:
                    gaps.append((sub, missing))
        yield from self._filled(numbers, rows.places, finished, gaps)

    def _filled(
        self,
        numbers: Places,
        places: OperatorPlaces,
        finished: Mapping[str, Floats],
        gaps: Sequence[tuple[str, OperatorPlaces]],
    ) -> Iterator[WindowGroup]:
        """Yields the groups of windows, with what drivers without a row did.

        Args:
            numbers: of the windows.
            places: of operators.
            finished: the fields of OperatorFinish of each operator that has finished the windows, a row per window.
            gaps: drivers without a row, each with the places of its operators.
        """
        if not gaps:
            connected = _joined_up(_without_unread(places), self._current)
            present = dict(sorted(connected.items()))
            finishes = {name: OperatorFinish(*finished[name].T) for name in present if name in finished}
            yield WindowGroup(numbers, self.end_ms[numbers], present, {}, finishes)
            return
        (sub, all_missing), *rest = gaps
        missing = {name: place for name, place in all_missing.items() if name not in finished}
        batch = self._passed.batches(sub, self.end_ms[numbers])
        has_passed = ~np.isnan(batch[:, 0])
        was_away = self._was_away(sub, batch, finished)
        of_sub = {name: self._pass(sub, name, numbers, batch) for name in missing}
        for chosen, more_places, more in (
            (was_away, {}, {}),
            (~was_away & ~has_passed, missing, {}),
            (~was_away & has_passed, missing, of_sub),
        ):
            if chosen.any():
                some = {name: values[chosen] for name, values in {**finished, **more}.items()}
                yield from self._filled(numbers[chosen], {**places, **more_places}, some, rest)

    def _was_away(self, sub: str, batch: Floats, others: Mapping[str, Floats]) -> Mask:
        """Returns True for windows during which the driver of *sub* was away.

        It was removed before, or began its first batch long after the others had finished the window.

        Args:
            sub: the sub-topology.
            batch: that passed each window, as of PassedWindows.
            others: as in `_filled`.
        """
        was_removed = np.isnan(batch[:, 0]) & (sub not in self._subs)
        if not others:
            return was_removed
        others_ms = np.max([values[:, 0] for values in others.values()], axis=0)
        came_later: Mask = (batch[:, 0] == 0) & (batch[:, 1] > others_ms + STARTED_WITH_IT_MS)
        return was_removed | came_later

    def _pass(self, sub: str, name: str, numbers: Places, batch: Floats) -> Floats:
        """Returns how an operator finished windows that its driver passed in *batch*, as the rows of `_filled`."""
        last = self._last_row[sub][numbers]
        finish = OperatorFinish(*np.where(last[:, None] == NONE, np.nan, self._values[last]).T)
        batch_id, began_ms, ended_ms = batch.T
        skew_ms = np.nan_to_num(finish.skew_ms)
        passed = finish._replace(
            ewt_ms=ended_ms + skew_ms, began_ms=began_ms + skew_ms, queued_ms=np.zeros(last.size), batch_id=batch_id
        )
        values = np.stack(passed, axis=1)
        if (sub, name) in self._of_batches:
            # An operator that closed another window in that batch has its own EWT.
            batches, rows = self._of_batches[sub, name]
            at = np.minimum(np.searchsorted(batches, batch_id), batches.size - 1)
            is_own = (batches[at] == batch_id) & (rows[at] < self._next_row[numbers])
            values = np.where(is_own[:, None], self._values[rows[at]], values)
        return values


def places_of(topology: Topology) -> dict[str, OperatorPlace]:
    """Returns the place of each operator in *topology*."""
    waited_for, read_by = topology.waited_for, topology.read_by
    places: dict[str, OperatorPlace] = {}
    for sub in topology.sub_topologies:
        for operator in sub.operators:
            name = operator.name
            places[name] = OperatorPlace(sub.name, operator.kind, waited_for[name], read_by[name])
    return places


def _without_unread(places: OperatorPlaces) -> dict[str, OperatorPlace]:
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


def _is_read_by(places: OperatorPlaces, source: str) -> bool:
    """Returns True if one of its upstreams names *source* as a reader."""
    upstreams = [places[name] for name in places[source].waits_for if name in places]
    return any(source in upstream.read_by for upstream in upstreams)


def _joined_up(places: OperatorPlaces, current: OperatorPlaces) -> dict[str, OperatorPlace]:
    """Connects *places* with one another.

    An operator without a place is replaced by the nearest operators beyond it, by the *current* topology.
    """
    neighbours = chain.from_iterable((*place.waits_for, *place.read_by) for place in places.values())
    if places.keys() >= {*neighbours}:
        return dict(places)
    # A walk ends at operators with a place, and goes on through the others.
    without = omit(current, places)
    upstreams = {name: place.waits_for for name, place in without.items()}
    readers = {name: place.read_by for name, place in without.items()}
    connected: dict[str, OperatorPlace] = {}
    for name, place in places.items():
        waits_for = within(reached(place.waits_for, upstreams), places)
        read_by = within(reached(place.read_by, readers), places)
        connected[name] = place._replace(waits_for=tuple(waits_for), read_by=tuple(read_by))
    return connected


def _by_last_flows(group: WindowGroup) -> Iterator[WindowGroup]:
    """Divides the windows of *group* by the flows that arrived last."""
    arrival_ms = _arrival_ms(group)
    was_last: dict[tuple[str, str], Mask] = {}
    for name, place in group.places.items():
        # Where the arrival of one is not known, each may have been the last.
        if len(place.waits_for) > 1 and arrival_ms.keys() >= {*place.waits_for}:
            last_ms = np.max([arrival_ms[each] for each in place.waits_for], axis=0)
            for each in place.waits_for:
                was_last[name, each] = (arrival_ms[each] == last_ms) | (last_ms == NO_WAIT)
    for chosen in alike(list(was_last.values()), group.numbers.size):
        first = int(chosen.argmax())
        upstreams: dict[str, tuple[str, ...]] = {}
        for name, place in sorted(group.places.items()):
            waits_for = [
                each for each in place.waits_for if (name, each) not in was_last or was_last[name, each][first]
            ]
            upstreams[name] = tuple(waits_for)
        yield replace(group.take(chosen), upstreams=upstreams)


def _arrival_ms(group: WindowGroup) -> dict[str, Floats]:
    """Returns when the windows arrived over hops, by operator of the driver.

    It is NO_WAIT for an operator that did not wait for it because it was idle. Operators that read from outside,
    directly or among others, are left out, because no row of their driver has that arrival.
    """
    arrival_ms: dict[str, Floats] = {}
    none = np.full(group.numbers.size, NO_WAIT)
    for name in in_order({name: place.waits_for for name, place in group.places.items()}):
        place = group.places.get(name)
        if place is None or name not in group.finishes or not place.waits_for:
            continue
        if place.kind == Source.kind:
            # A source with upstreams is the reading end of hops.
            sent_ms = [group.finishes[up].ewt_ms for up in place.waits_for if up in group.finishes]
            own_ms = group.finishes[name].ewt_ms
            arrival_ms[name] = np.max([none, *(np.where(ewt <= own_ms, ewt, NO_WAIT) for ewt in sent_ms)], axis=0)
        elif arrival_ms.keys() >= {*place.waits_for}:
            arrival_ms[name] = np.max([arrival_ms[up] for up in place.waits_for], axis=0)
    return arrival_ms
