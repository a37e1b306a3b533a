"""Reconstructs the operators that a streaming window went through.

It has the operator that each one waited for, and the instant at which each had finished the window. A window is
measured against the topology that its drivers ran: their rows of operator_windows have the upstreams and readers of
each operator. Rows of older versions lack them, and count as rows of the topology as it is now. A driver has no row
about a window if none of its flows had a record in it. It had finished such a window with the first batch whose
watermark passed it. Instants are epoch ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

import polars as pl

from tidemark.collecting import pick
from tidemark.kernels.columns.clocks import on_one_clock
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.semantics.critical_path import Upstreams, in_order

WINDOW = ("topology", "window_start", "window_end")
NOT = float("-inf")
STARTED_WITH_IT_MS = 30_000
"""Longest delay of a driver's first batch after a window, in ms.

The delay begins when the others had finished the window. A driver that began later was absent during it.
"""


class OperatorFinish(NamedTuple):
    """Describes how an operator finished a window.

    It has the instant, the beginning of the batch, and the clock. A driver without a row about the
    window is on the clock of its row before.
    """

    ewt_ms: int
    began_ms: int | None
    queued_ms: int | None
    skew_error_ms: int | None
    host: str | None
    skew_ms: int | None
    batch_id: int


class OperatorPlace(NamedTuple):
    """The place of an operator in its topology.

    `waits_for` are the operators whose EWT of a window it needs, `read_by` all operators that read it.
    """

    sub_topology: str
    kind: str
    waits_for: tuple[str, ...]
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class WindowFinishes:
    """A window and its operators.

    `finishes` has the operators that have finished it. `places` also has those that have not.
    """

    window: tuple[str, int, int]
    finishes: Mapping[str, OperatorFinish]
    places: Mapping[str, OperatorPlace]

    @property
    def ewt_ms(self) -> dict[str, int]:
        """The EWT of each operator that has finished it, epoch ms."""
        return {name: finish.ewt_ms for name, finish in self.finishes.items()}

    @cached_property
    def upstreams(self) -> Upstreams:
        """The operators that each operator waited for.

        Where flows of several hops come together in a driver it is the flow that arrived last.
        """
        arrival_ms = self._arrival_ms()
        return {name: _last_of(place.waits_for, arrival_ms) for name, place in sorted(self.places.items())}

    def _arrival_ms(self) -> dict[str, float]:
        """Returns when the window arrived over hops, by operator of the driver.

        It is NOT for an operator that did not wait for it because it was idle. Operators that read from outside,
        directly or among others, are left out, because no row of their driver has that arrival.
        """
        arrival_ms: dict[str, float] = {}
        for name in in_order({name: place.waits_for for name, place in self.places.items()}):
            place = self.places.get(name)
            if place is None or name not in self.finishes or not place.waits_for:
                continue
            if place.kind == Source.kind:
                # A source with upstreams is the reading end of hops.
                sent_ms = [self.finishes[up].ewt_ms for up in place.waits_for if up in self.finishes]
                own_ms = self.finishes[name].ewt_ms
                arrival_ms[name] = max((ewt for ewt in sent_ms if ewt <= own_ms), default=NOT)
            elif arrival_ms.keys() >= {*place.waits_for}:
                arrival_ms[name] = max(arrival_ms[up] for up in place.waits_for)
        return arrival_ms

    @property
    def ends(self) -> list[str]:
        """The terminal operators, which no other reads."""
        # Tables of joins downstream of a hop have a reader, and no window waits for them.
        return [name for name, place in sorted(self.places.items()) if not place.read_by]


def _last_of(names: tuple[str, ...], arrival_ms: Mapping[str, float]) -> tuple[str, ...]:
    """Returns the *names* with the latest arrival."""
    if not arrival_ms.keys() >= {*names}:
        # Where the arrival of one is not known, each may have been the last.
        return names
    last = max((arrival_ms[name] for name in names), default=NOT)
    return names if last == NOT else tuple(name for name in names if arrival_ms[name] == last)


@dataclass(frozen=True)
class PassedWindows:
    """Says when each sub-topology had passed a window.

    *batches* are rows of its batches.
    """

    batches: pl.DataFrame | None = None
    _by_sub: dict[str, pl.DataFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batches is not None:
            ms = pl.col("watermark", "started_at", "finished_at").dt.epoch("ms")
            rows = self.batches.drop_nulls("watermark").with_columns(ms).sort("batch_id")
            # A window that was passed stays passed, should time have been set back.
            rows = rows.with_columns(pl.col("watermark").cum_max().over("sub_topology"))
            self._by_sub.update((str(sub), part) for (sub,), part in rows.group_by("sub_topology", maintain_order=True))

    def batch(self, sub_topology: str, end_ms: int) -> tuple[int, int, int] | None:
        """Returns the first batch whose watermark passed *end_ms*.

        It is a batch of *sub_topology*: number, beginning and end, by its driver's clock. None: there is no such batch.
        """
        rows = self._by_sub.get(sub_topology)
        if rows is None:
            return None
        # A watermark passes a window when it reaches its last millisecond.
        at = rows["watermark"].search_sorted(end_ms - 1)
        return None if at == rows.height else rows.select("batch_id", "started_at", "finished_at").row(int(at))


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
) -> Iterator[WindowFinishes]:
    """Yields the windows of *operator_windows* in the order of their ends.

    Args:
        operator_windows: rows. The first batch of an operator that closed a window counts.
        topology: as it is now.
        passed: when sub-topologies had passed windows.
        first_ms: end of the first window that each operator is known to have finished, epoch ms.
    """
    rows = list(_rows(operator_windows))
    drivers = _Drivers(passed, places_of(topology))
    for window, of_window in groupby(rows, key=attrgetter("window")):
        # An operator may have been added to the topology since.
        later = {name for name, end_ms in first_ms.items() if end_ms > window[2]}
        yield drivers.finished(window, list(of_window), later)


class _Row(NamedTuple):
    """A row of operator_windows; `place` is None if the row lacks it."""

    window: tuple[str, int, int]
    operator: str
    sub_topology: str
    place: OperatorPlace | None
    finish: OperatorFinish


class _Drivers:
    """Follows drivers from window to window.

    That includes windows that they passed without a row. *current* are the places of the topology as it is now.
    """

    def __init__(self, passed: PassedWindows, current: Mapping[str, OperatorPlace]) -> None:
        self._passed, self._current = passed, current
        self._subs = {place.sub_topology for place in current.values()}
        self._batches: dict[tuple[str, int], dict[str, OperatorFinish]] = defaultdict(dict)
        self._clocks: dict[str, OperatorFinish] = {}
        self._places: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        for name, place in current.items():
            self._places[place.sub_topology][name] = place

    def finished(self, window: tuple[str, int, int], rows: list[_Row], later: Collection[str]) -> WindowFinishes:
        """Returns *window*, by its *rows*."""
        finishes: dict[str, OperatorFinish] = {}
        places: dict[str, OperatorPlace] = {}
        row_places: dict[str, dict[str, OperatorPlace]] = defaultdict(dict)
        for row in rows:
            self._batches[row.sub_topology, row.finish.batch_id].setdefault(row.operator, row.finish)
            self._clocks[row.sub_topology] = row.finish
            if row.place:
                row_places[row.sub_topology][row.operator] = row.place
            place = row.place or self._current.get(row.operator)
            if place and row.operator not in finishes:
                finishes[row.operator], places[row.operator] = row.finish, place
        # The newest rows of a driver replace all its places: it may run another version of the topology now.
        self._places |= row_places
        has_rows = {place.sub_topology for name, place in places.items() if name in row_places[place.sub_topology]}
        for sub, others in self._places.items():
            if sub in has_rows or self._was_away(sub, window, finishes):
                continue
            # An operator whose first row comes later did not exist yet.
            missing = {name: place for name, place in others.items() if name not in finishes and name not in later}
            places |= missing
            finishes |= self._passing(sub, missing, window)
        present = _joined_up(_without_unread(places), self._current)
        return WindowFinishes(window, {name: finishes[name] for name in finishes if name in present}, present)

    def _passing(self, sub: str, missing: Collection[str], window: tuple[str, int, int]) -> dict[str, OperatorFinish]:
        """Returns how operators without a row finished *window*.

        They are the operators *missing* of *sub*, in the batch that passed the window. There are none if no batch has.
        """
        batch = self._passed.batch(sub, window[2])
        if batch is None:
            return {}
        batch_id, began_ms, finished_ms = batch
        clock = self._clocks.get(sub, OperatorFinish(0, None, None, None, None, None, batch_id))
        skew_ms = clock.skew_ms or 0
        ewt_ms, began_ms = finished_ms + skew_ms, began_ms + skew_ms
        whole = clock._replace(ewt_ms=ewt_ms, began_ms=began_ms, queued_ms=0, batch_id=batch_id)
        # An operator that closed another window in that batch has its own EWT.
        return dict.fromkeys(missing, whole) | pick(self._batches.get((sub, batch_id), {}), missing)

    def _was_away(self, sub: str, window: tuple[str, int, int], others: Mapping[str, OperatorFinish]) -> bool:
        """Returns True if the driver of *sub* did not run during *window*.

        It was removed before, or began its first batch long after the *others* had finished the window.
        """
        batch = self._passed.batch(sub, window[2])
        if batch is None:
            return sub not in self._subs
        batch_id, began_ms, _ = batch
        if batch_id > 0 or not others:
            return False
        return began_ms > max(finish.ewt_ms for finish in others.values()) + STARTED_WITH_IT_MS


def _rows(operator_windows: pl.DataFrame) -> Iterator[_Row]:
    ms = pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at").dt.epoch("ms")
    finish = ("ewt_adjusted_at", "batch_started_at", "queued_ms", "skew_error_ms", "host", "skew_ms", "batch_id")
    own = ("operator", "sub_topology", "kind", "upstreams", "read_by")
    rows = on_one_clock(operator_windows.with_columns(ms))
    rows = rows.with_columns(pl.col("batch_started_at") + pl.col("skew_ms").fill_null(0))
    rows = rows.select(*WINDOW, *own, *finish).sort("window_end", "window_start", "operator", *finish)
    for row in rows.iter_rows():
        window, (name, sub, kind, waits_for, read_by), values = row[:3], row[3:8], row[8:]
        has_place = waits_for is not None and read_by is not None
        place = OperatorPlace(sub, kind, _names(waits_for), _names(read_by)) if has_place else None
        yield _Row(window, name, sub, place, OperatorFinish(*values))


# Few different lists of names occur in many rows.
@lru_cache(maxsize=1_000)
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
