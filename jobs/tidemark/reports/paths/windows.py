"""Says which operators finished each streaming window, and which upstreams each of them waited for.

A driver writes a row of `operator_windows` for each window that it finished with records. A window without records for
it has no row: the driver passes it with a later batch. A row also tells what its operator read, and who read it. So a
window is measured by the topology of that time; for a driver without a row, that of its newest row before counts.

Windows that the same operators have finished in the same topology form a group, and are measured together. Instants are
epoch ms, lengths ms; NaN stands for a value that is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import polars as pl

from tidemark.graph import in_order, reached
from tidemark.kernels.columns.clocks import on_one_clock
from tidemark.kernels.reports.arrays import NONE, Floats, Mask, Places, alike
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.selection import names_in, omit, within
from tidemark.semantics.critical_path import Upstreams

WINDOW = ("topology", "window_start", "window_end")
STARTED_WITH_IT_MS = 30_000
"""A driver that begins its first batch later than this after the others had finished a window was absent then, ms."""
NO_WAIT = float("-inf")
"""The instant of arrival at an operator that was idle, and so did not wait."""


class OperatorPlace(NamedTuple):
    """Where an operator is in its topology.

    `waits_for` are the operators that must have finished a window before it can, and `read_by` all that read it.
    """

    sub_topology: str
    kind: str
    waits_for: tuple[str, ...]
    read_by: tuple[str, ...]


OperatorPlaces = Mapping[str, OperatorPlace]


class OperatorFinish(NamedTuple):
    """When and how an operator finished windows, with a value for each window.

    `ewt_ms` is when the operator had finished the window (its end-window time). `clock` is a number that stands for a
    host and its skew. If a driver has no row about a window, the clock of its row before counts.
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
    """Windows that the same operators have finished, while each was at the same place of the topology.

    Attributes:
        numbers: the numbers of the windows, in the order of their ends.
        end_ms: the ends of the windows.
        places: where each operator is in the topology.
        upstreams: the operators that each operator waited for. If an operator reads several flows, this is the one that
            arrived last.
        finishes: how each operator that has finished the windows did so.
    """

    numbers: Places
    end_ms: Floats
    places: OperatorPlaces
    upstreams: Upstreams
    finishes: Mapping[str, OperatorFinish]

    @property
    def ewt_ms(self) -> dict[str, Floats]:
        """When each operator had finished each window, epoch ms, by the name of the operator."""
        return {name: finish.ewt_ms for name, finish in self.finishes.items()}

    @property
    def ends(self) -> list[str]:
        """The terminal operators, which no other reads."""
        # A table that a join looks up behind a hop has a reader, although no window waits for it.
        return [name for name, place in sorted(self.places.items()) if not place.read_by]

    def take(self, windows: Mask) -> WindowGroup:
        """Returns the chosen *windows*."""
        finishes = {name: finish.take(windows) for name, finish in self.finishes.items()}
        return WindowGroup(self.numbers[windows], self.end_ms[windows], self.places, self.upstreams, finishes)


class PassedWindows:
    """Says with which batch each sub-topology passed a window; *batches* are rows of `batches`."""

    def __init__(self, batches: pl.DataFrame | None = None) -> None:
        self._by_sub: dict[str, tuple[Places, Floats]] = {}
        if batches is None:
            return
        ms = pl.col("watermark", "started_at", "finished_at").dt.epoch("ms")
        rows = batches.drop_nulls("watermark").with_columns(ms).sort("batch_id")
        # A window that was passed stays passed, even if a person has set time back since.
        rows = rows.with_columns(pl.col("watermark").cum_max().over("sub_topology"))
        for (sub,), of_sub in rows.group_by("sub_topology", maintain_order=True):
            passed = of_sub.select("batch_id", "started_at", "finished_at").cast(pl.Float64()).to_numpy()
            self._by_sub[str(sub)] = of_sub["watermark"].to_numpy(), passed

    def batches(self, sub_topology: str, end_ms: Floats) -> Floats:
        """Returns the first batch of *sub_topology* whose watermark passed each of *end_ms*.

        A row has the number of the batch, and its beginning and end by its driver's clock; NaN without such a batch.
        """
        watermarks, batches = self._by_sub.get(sub_topology, (np.empty(0, np.int64), np.empty((0, 3))))
        # A watermark passes a window when it reaches its last millisecond.
        return np.vstack([batches, np.full(3, np.nan)])[np.searchsorted(watermarks, end_ms - 1)]


def windows_finished(
    operator_windows: pl.DataFrame, topology: Topology, passed: PassedWindows, first_ms: Mapping[str, int]
) -> tuple[pl.DataFrame, list[WindowGroup]]:
    """Returns the windows of *operator_windows* in the order of their ends, and the groups that they form.

    Args:
        operator_windows: rows of the table. If an operator closed a window in several batches, the first one counts.
        topology: the topology as it is now.
        passed: with which batches sub-topologies have passed windows.
        first_ms: the end of the first window that each operator is known to have finished.
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
    """An operator that rows are about; `place` is None if the rows do not tell it."""

    name: str
    sub_topology: str
    place: OperatorPlace | None


def _rows(operator_windows: pl.DataFrame) -> tuple[pl.DataFrame, list[_RowOperator]]:
    """Returns the rows of *operator_windows* as numbers, and the operators that they are about.

    The rows are in the order of the windows' ends, with instants on one clock. They have WINDOW, the fields of
    OperatorFinish, and `operator_number`, the position of their operator in the list.
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
        # No operator waits for itself, whatever a row says.
        before = tuple(upstream for upstream in _names(waits_for) if upstream != name) if has_place else ()
        place = OperatorPlace(sub, kind, before, _names(read_by)) if has_place else None
        operators.append(_RowOperator(name, sub, place))
    numbered = rows.join(names.with_row_index("operator_number"), on=own, nulls_equal=True, maintain_order="left")
    clock = pl.when(pl.col("host").is_not_null()).then(pl.struct("host", "skew_ms").rank("dense"))
    numbers = [
        pl.col("ewt_adjusted_at").alias("ewt_ms"), pl.col("batch_started_at").alias("began_ms"), pl.col("queued_ms"),
        pl.col("skew_error_ms"), clock.alias("clock"), pl.col("skew_ms"), pl.col("batch_id"),
    ]  # fmt: skip
    values = numbered.select(*WINDOW, "operator_number", *(number.cast(pl.Float64()) for number in numbers))
    return values.with_row_index("row"), operators


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


@dataclass(frozen=True)
class _WindowRows:
    """What the rows of a window tell; windows with rows about the same operators share it.

    Rows are numbered within their window.

    Attributes:
        first: the first row of each operator whose place is known.
        places: the places of these operators.
        newest: the places that rows tell, by sub-topology.
        told: the sub-topologies whose rows tell what their operators did.
        last: the last row of each sub-topology.
    """

    first: Mapping[str, int]
    places: OperatorPlaces
    newest: Mapping[str, OperatorPlaces]
    told: frozenset[str]
    last: Mapping[str, int]

    @classmethod
    def of(cls, operators: Sequence[_RowOperator], current: OperatorPlaces) -> _WindowRows:
        """Reads rows about *operators*. If they do not tell the place of one, its place in the *current* topology
        counts.
        """
        first: dict[str, int] = {}
        places: dict[str, OperatorPlace] = {}
        newest: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        last: dict[str, int] = {}
        for row, (name, sub, told_place) in enumerate(operators):
            last[sub] = row
            if told_place:
                newest[sub][name] = told_place
            place = told_place or current.get(name)
            if place and name not in first:
                first[name], places[name] = row, place
        told = (place.sub_topology for name, place in places.items() if name in newest.get(place.sub_topology, ()))
        return cls(first, places, newest, frozenset(told), last)


class _Drivers:
    """What drivers did with windows: told by rows, or worked out where a driver has no row.

    Attributes:
        end_ms: the ends of the windows.
        kind: for each window, the number of its _WindowRows.
        version: for each sub-topology and window, the number of the places that its operators had then; NONE if they
            are not known.
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
        """Finds for each sub-topology and window its newest row up to then, and the places that it tells."""
        windows = np.arange(self.kind.size)
        for sub in dict.fromkeys(chain(self._subs, *(rows.last for rows in self._rows))):
            of_kinds = [self._number(rows.newest[sub]) if sub in rows.newest else NONE for rows in self._rows]
            told = np.array(of_kinds)[self.kind]
            # The newest rows of a driver replace all its places: it may run another version of the topology now.
            newest = np.maximum.accumulate(np.where(told == NONE, NONE, windows))
            current = {name: place for name, place in self._current.items() if place.sub_topology == sub}
            before = self._number(current) if sub in self._subs else NONE
            self.version[sub] = np.where(newest == NONE, before, told[newest])
            last = np.array([rows.last.get(sub, NONE) for rows in self._rows])[self.kind]
            self._last_row[sub] = np.maximum.accumulate(np.where(last == NONE, NONE, self._first_row + last))

    def _number(self, places: OperatorPlaces) -> int:
        """Returns the number of *places* in `_versions`; equal places have the same number."""
        key = tuple(places.items())
        if key not in self._numbers:
            self._numbers[key] = len(self._versions)
            self._versions.append(places)
        return self._numbers[key]

    def groups(self, numbers: Places, later: set[str]) -> Iterator[WindowGroup]:
        """Yields the groups of windows of one kind in which all operators had the same places.

        Args:
            numbers: the numbers of the windows.
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
        """Yields the groups of windows, after it has worked out what drivers without a row did.

        Such a driver was away, has not passed the window, or has passed it with a later batch.

        Args:
            numbers: the numbers of the windows.
            places: the places of the operators so far.
            finished: the fields of OperatorFinish of each operator that has finished the windows, a row per window.
            gaps: the drivers without a row, each with the places of its operators.
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

        The driver was removed before, or began its first batch long after the others had finished the window.

        Args:
            sub: the sub-topology.
            batch: the batch that passed each window, as PassedWindows returns it.
            others: what other drivers did, like `finished` in `_filled`.
        """
        was_removed = np.isnan(batch[:, 0]) & (sub not in self._subs)
        if not others:
            return was_removed
        others_ms = np.max([values[:, 0] for values in others.values()], axis=0)
        came_later: Mask = (batch[:, 0] == 0) & (batch[:, 1] > others_ms + STARTED_WITH_IT_MS)
        return was_removed | came_later

    def _pass(self, sub: str, name: str, numbers: Places, batch: Floats) -> Floats:
        """Returns how the operator *name* of *sub* finished windows that its driver passed with *batch*.

        The rows are like those of `finished` in `_filled`.
        """
        last = self._last_row[sub][numbers]
        finish = OperatorFinish(*np.where(last[:, None] == NONE, np.nan, self._values[last]).T)
        batch_id, began_ms, ended_ms = batch.T
        skew_ms = np.nan_to_num(finish.skew_ms)
        passed = finish._replace(
            ewt_ms=ended_ms + skew_ms, began_ms=began_ms + skew_ms, queued_ms=np.zeros(last.size), batch_id=batch_id
        )
        values = np.stack(passed, axis=1)
        if (sub, name) in self._of_batches:
            # If the operator closed another window in that batch, its row tells when it had finished.
            batches, rows = self._of_batches[sub, name]
            at = np.minimum(np.searchsorted(batches, batch_id), batches.size - 1)
            is_told = (batches[at] == batch_id) & (rows[at] < self._next_row[numbers])
            values = np.where(is_told[:, None], self._values[rows[at]], values)
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
    """Returns *places* without sub-topologies whose upstreams did not name them as readers when the window was read."""
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
    """Returns *places* in which each neighbour has a place, too.

    A neighbour without one is replaced by the nearest operators beyond it, by the *current* topology.
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
    """Divides the windows of *group* by which of several flows arrived last at each operator."""
    arrival_ms = _arrival_ms(group)
    was_last: dict[tuple[str, str], Mask] = {}
    for name, place in group.places.items():
        # If one arrival is not known, each flow may have been the last.
        if len(place.waits_for) > 1 and arrival_ms.keys() >= {*place.waits_for}:
            last_ms = np.max([arrival_ms[upstream] for upstream in place.waits_for], axis=0)
            for upstream in place.waits_for:
                was_last[name, upstream] = (arrival_ms[upstream] == last_ms) | (last_ms == NO_WAIT)
    for chosen in alike(list(was_last.values()), group.numbers.size):
        first = int(chosen.argmax())
        upstreams: dict[str, tuple[str, ...]] = {}
        for name, place in sorted(group.places.items()):
            waits_for = [
                upstream
                for upstream in place.waits_for
                if (name, upstream) not in was_last or was_last[name, upstream][first]
            ]
            upstreams[name] = tuple(waits_for)
        yield replace(group.take(chosen), upstreams=upstreams)


def _arrival_ms(group: WindowGroup) -> dict[str, Floats]:
    """Returns for each operator when the windows of *group* arrived at its driver over a hop, epoch ms.

    The instant is NO_WAIT for an operator that was idle, since nobody waited for it. Operators that read from outside,
    perhaps among other inputs, are left out, because no row of their driver tells when such a window arrived.
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
