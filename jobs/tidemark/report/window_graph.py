"""Which operators a streaming window went through, who waited for whom, and when each had finished it (ring 1).

A window is measured against the topology that its drivers ran: their rows of operator_windows say what each operator
waited for and who read it. Rows written before that was kept are those of the topology as it is now. A driver that has
no row about a window, because none of its flows had a record in it, had finished it with the first batch whose
watermark passed it. Instants are epoch ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import polars as pl

from tidemark.kernels.clocks import on_one_clock
from tidemark.semantics.critical_path import Upstreams, in_order
from tidemark.spec.operators import Kind
from tidemark.spec.topology import Topology

WINDOW = ("topology", "window_start", "window_end")
NOT = float("-inf")
STARTED_WITH_IT_MS = 30_000
"""A driver whose first batch began so long after the others had finished a window was not there for it."""


class Did(NamedTuple):
    """How an operator finished a window: when, in a batch that began when, and by whose clock.

    A driver without a row about the window is on the clock of its row before.
    """

    ewt_ms: int
    began_ms: int | None
    queued_ms: int | None
    skew_error_ms: int | None
    host: str | None
    skew_ms: int | None
    batch_id: int


class Place(NamedTuple):
    """Where an operator was: `waits_for` are those whose EWT of a window it needs, `read_by` all that read it."""

    sub_topology: str
    kind: str
    waits_for: tuple[str, ...]
    read_by: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """A window, what its operators did, and the places of these and of those that have not finished it."""

    window: tuple[str, int, int]
    did: Mapping[str, Did]
    places: Mapping[str, Place]

    @property
    def ewt_ms(self) -> dict[str, int]:
        """When each operator had finished it."""
        return {name: did.ewt_ms for name, did in self.did.items()}

    @cached_property
    def upstreams(self) -> Upstreams:
        """Who waited for whom: where flows of several hops come together in a driver, for the one that came last."""
        came = self._came_ms()
        return {name: _last_of(place.waits_for, came) for name, place in sorted(self.places.items())}

    def _came_ms(self) -> dict[str, float]:
        """When the window came into its driver over hops, by operator; NOT for what did not wait for it, being idle.

        What reads from outside, directly or among others, is left out: in its driver nothing says when that came.
        """
        came: dict[str, float] = {}
        for name in in_order({name: place.waits_for for name, place in self.places.items()}):
            place = self.places.get(name)
            if place is None or name not in self.did or not place.waits_for:
                continue
            if place.kind == Kind.SOURCE:
                before = [self.did[up].ewt_ms for up in place.waits_for if up in self.did]
                came[name] = max((ewt for ewt in before if ewt <= self.did[name].ewt_ms), default=NOT)
            elif came.keys() >= {*place.waits_for}:
                came[name] = max(came[up] for up in place.waits_for)
        return came

    @property
    def ends(self) -> list[str]:
        """The terminal operators, for which no other waits; tables of joins downstream of a hop are not among them."""
        return [name for name, place in sorted(self.places.items()) if not place.read_by]


def _last_of(names: tuple[str, ...], came: Mapping[str, float]) -> tuple[str, ...]:
    """Those of *names* that *came* last, if that is known of all of them."""
    if not came.keys() >= {*names}:
        return names
    last = max((came[name] for name in names), default=NOT)
    return names if last == NOT else tuple(name for name in names if came[name] == last)


@dataclass(frozen=True)
class Passed:
    """When each sub-topology had passed a window, by the *batches* that there are of it."""

    batches: pl.DataFrame | None = None
    _by_sub: dict[str, pl.DataFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batches is not None:
            ms = pl.col("watermark", "started_at", "finished_at").dt.epoch("ms")
            rows = self.batches.drop_nulls("watermark").with_columns(ms).sort("batch_id")
            # What was passed once stays passed, should time have been set back.
            rows = rows.with_columns(pl.col("watermark").cum_max().over("sub_topology"))
            self._by_sub.update((str(sub), part) for (sub,), part in rows.group_by("sub_topology", maintain_order=True))

    def batch(self, sub_topology: str, end_ms: int) -> tuple[int, int, int] | None:
        """Number, beginning and end of the first batch of *sub_topology* whose watermark passed *end_ms*."""
        rows = self._by_sub.get(sub_topology)
        if rows is None:
            return None
        at = rows["watermark"].search_sorted(end_ms - 1)
        return None if at == rows.height else rows.select("batch_id", "started_at", "finished_at").row(int(at))


def places_of(topology: Topology) -> dict[str, Place]:
    """Every operator's place in *topology*."""
    waited_for, read_by = topology.waited_for, topology.read_by
    return {
        o.name: Place(sub.name, o.kind.value, waited_for[o.name], read_by[o.name])
        for sub in topology.sub_topologies
        for o in sub.operators
    }


def windows_finished(operator_windows: pl.DataFrame, topology: Topology, passed: Passed) -> Iterator[Finished]:
    """Each window of *operator_windows*, by their ends, with the first batch of every operator that closed it."""
    rows = list(_rows(operator_windows))
    first_ms: dict[str, int] = {}
    for row in rows:
        first_ms.setdefault(row.operator, row.window[2])
    drivers = _Drivers(passed, places_of(topology))
    for window, of_window in groupby(rows, key=attrgetter("window")):
        later = {name for name, end_ms in first_ms.items() if end_ms > window[2]}
        yield drivers.finished(window, list(of_window), later)


class _Row(NamedTuple):
    """A row of operator_windows; `place` is None where it does not say."""

    window: tuple[str, int, int]
    operator: str
    sub_topology: str
    place: Place | None
    did: Did


class _Drivers:
    """What drivers did, with the windows that they passed without a row; *known* are the places of today."""

    def __init__(self, passed: Passed, known: Mapping[str, Place]) -> None:
        self._passed, self._known = passed, known
        self._subs = {place.sub_topology for place in known.values()}
        self._batches: dict[tuple[str, int], dict[str, Did]] = defaultdict(dict)
        self._clocks: dict[str, Did] = {}
        self._places: dict[str, dict[str, Place]] = defaultdict(dict)
        for name, place in known.items():
            self._places[place.sub_topology][name] = place

    def finished(self, window: tuple[str, int, int], rows: list[_Row], later: Collection[str]) -> Finished:
        """*window* by its *rows*; operators without one whose first row comes *later* were not there yet."""
        did: dict[str, Did] = {}
        places: dict[str, Place] = {}
        told: dict[str, dict[str, Place]] = defaultdict(dict)
        for row in rows:
            self._batches[row.sub_topology, row.did.batch_id].setdefault(row.operator, row.did)
            self._clocks[row.sub_topology] = row.did
            if row.place:
                told[row.sub_topology][row.operator] = row.place
            place = row.place or self._known.get(row.operator)
            if place and row.operator not in did:
                did[row.operator], places[row.operator] = row.did, place
        self._places |= told
        has_rows = {place.sub_topology for name, place in places.items() if name in told[place.sub_topology]}
        for sub, others in self._places.items():
            if sub in has_rows or self._was_away(sub, window, did):
                continue
            missing = {name: place for name, place in others.items() if name not in did and name not in later}
            places |= missing
            did |= self._passing(sub, missing, window)
        there = _joined_up(_read_then(places), self._known)
        return Finished(window, {name: did[name] for name in did if name in there}, there)

    def _passing(self, sub: str, missing: Collection[str], window: tuple[str, int, int]) -> dict[str, Did]:
        """What the operators *missing* in *window* did in the batch that passed it; nothing when none has."""
        found = self._passed.batch(sub, window[2])
        if found is None:
            return {}
        batch_id, began_ms, finished_ms = found
        clock = self._clocks.get(sub, Did(0, None, None, None, None, None, batch_id))
        skew_ms = clock.skew_ms or 0
        ewt_ms, began_ms = finished_ms + skew_ms, began_ms + skew_ms
        whole = clock._replace(ewt_ms=ewt_ms, began_ms=began_ms, queued_ms=0, batch_id=batch_id)
        return dict.fromkeys(missing, whole) | {
            name: did for name, did in self._batches.get((sub, batch_id), {}).items() if name in missing
        }

    def _was_away(self, sub: str, window: tuple[str, int, int], others: Mapping[str, Did]) -> bool:
        """Whether the driver was removed before *window*, or began its first batch long after the *others* ended it."""
        found = self._passed.batch(sub, window[2])
        if found is None:
            return sub not in self._subs
        if found[0] > 0 or not others:
            return False
        return found[1] > max(did.ewt_ms for did in others.values()) + STARTED_WITH_IT_MS


def _rows(operator_windows: pl.DataFrame) -> Iterator[_Row]:
    ms = pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at").dt.epoch("ms")
    did = ("ewt_adjusted_at", "batch_started_at", "queued_ms", "skew_error_ms", "host", "skew_ms", "batch_id")
    own = ("operator", "sub_topology", "kind", "upstreams", "read_by")
    rows = on_one_clock(operator_windows.with_columns(ms))
    rows = rows.with_columns(pl.col("batch_started_at") + pl.col("skew_ms").fill_null(0))
    rows = rows.select(*WINDOW, *own, *did).sort("window_end", "window_start", "operator", *did)
    for row in rows.iter_rows():
        window, (name, sub, kind, waits_for, read_by), values = row[:3], row[3:8], row[8:]
        told = waits_for is not None and read_by is not None
        place = Place(sub, kind, _names(waits_for), _names(read_by)) if told else None
        yield _Row(window, name, sub, place, Did(*values))


@lru_cache(maxsize=1_000)
def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _read_then(places: Mapping[str, Place]) -> dict[str, Place]:
    """*places* without sub-topologies that read others which did not know of them when the window went by."""
    found = dict(places)
    for sub in dict.fromkeys(place.sub_topology for place in places.values()):
        own = {name: place for name, place in found.items() if place.sub_topology == sub}
        sources = {name: place.waits_for for name, place in own.items() if place.kind == Kind.SOURCE}
        read = [name in found[up].read_by for name, ups in sources.items() for up in ups if up in found]
        if sources and all(sources.values()) and not any(read):
            found = {name: place for name, place in found.items() if name not in own}
    return found


def _joined_up(places: Mapping[str, Place], known: Mapping[str, Place]) -> dict[str, Place]:
    """*places* among one another: an operator that was not there is stepped over."""

    def there(names: tuple[str, ...], side: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in names:
            nearest = (name,) if name in places else there(getattr(known[name], side), side) if name in known else ()
            found |= dict.fromkeys(nearest)
        return tuple(found)

    if all(name in places for place in places.values() for name in (*place.waits_for, *place.read_by)):
        return dict(places)
    return {
        name: place._replace(waits_for=there(place.waits_for, "waits_for"), read_by=there(place.read_by, "read_by"))
        for name, place in places.items()
    }
