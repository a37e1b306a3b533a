"""Places operators in their topology, and connects them with one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology


class OperatorPlace(NamedTuple):
    """The place of an operator in its topology.

    `waits_for` are the operators whose EWT of a window it needs, `read_by` all operators that read it.
    """

    sub_topology: str
    kind: str
    waits_for: tuple[str, ...]
    read_by: tuple[str, ...]


def places_of(topology: Topology) -> dict[str, OperatorPlace]:
    """Returns the place of each operator in *topology*."""
    waited_for, read_by = topology.waited_for, topology.read_by
    places: dict[str, OperatorPlace] = {}
    for sub in topology.sub_topologies:
        for operator in sub.operators:
            name = operator.name
            places[name] = OperatorPlace(sub.name, operator.kind, waited_for[name], read_by[name])
    return places


def without_unread(places: Mapping[str, OperatorPlace]) -> dict[str, OperatorPlace]:
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


def joined_up(places: Mapping[str, OperatorPlace], current: Mapping[str, OperatorPlace]) -> dict[str, OperatorPlace]:
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
