"""Walks graphs: of operators, streams, views, channels and processes.

A graph maps each name to the names that it reads, as `graphlib` takes it. A name that is only read needs no entry: it
reads nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from tidemark.errors import InvalidArgument

K = TypeVar("K", bound=Hashable)
Graph = Mapping[K, Iterable[K]]


def in_order(graph: Graph[K]) -> tuple[K, ...]:
    """Returns all names, each after those that it reads.

    Raises:
        InvalidArgument: there is a cycle.
    """
    return _in_order(tuple((name, tuple(read)) for name, read in graph.items()))


# Reports ask for the same few orders once per window.
@lru_cache(maxsize=256)
def _in_order(edges: tuple[tuple[K, tuple[K, ...]], ...]) -> tuple[K, ...]:
    graph = dict(edges)
    if cycle := cycle_in(graph):
        msg = f"a topology must not form a cycle, got {' → '.join(map(str, cycle))}; remove one of its edges"
        raise InvalidArgument(msg)
    return tuple(TopologicalSorter(graph).static_order())


def cycle_in(graph: Graph[K]) -> tuple[K, ...]:
    """Returns the names of a cycle, each read by the next one, and the first again at the end; empty: there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return ()


def reached(starts: Iterable[K], graph: Graph[K]) -> list[K]:
    """Returns *starts* and all that they read, also through others, each once.

    They come depth first: after a name the first that it reads, with all before that one, then the second.
    """
    found: dict[K, None] = {}
    # The next name is the last of the list.
    waiting = [*starts][::-1]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += [*graph.get(name, ())][::-1]
    return [*found]


def inverted(graph: Graph[K]) -> dict[K, tuple[K, ...]]:
    """Returns what reads each name, in the order of *graph*: with it, `reached` walks downstream."""
    readers: dict[K, list[K]] = {name: [] for name in graph}
    for name, read in graph.items():
        for each in read:
            readers.setdefault(each, []).append(name)
    return {name: tuple(by) for name, by in readers.items()}
