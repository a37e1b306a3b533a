"""Lays the operators of a topology out in a drawing, with the sources on the left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from tidemark.graph import in_order
from tidemark.semantics.critical_path import Upstreams

BOX = (130, 54)
"""Width and height of an operator, px."""
GAP = (20, 26)
"""The distance between columns and between rows, px."""
MARGIN = 6


@dataclass(frozen=True)
class Box:
    """The box of an operator: its top left corner, px, and whether the operator is on the critical path."""

    name: str
    x: int
    y: int
    on_path: bool


@dataclass(frozen=True)
class Edge:
    """A curve from the operator `reads` to the operator `name`, which reads it, in SVG's notation.

    `on_path` is True if the critical path goes along the curve.
    """

    reads: str
    name: str
    curve: str
    on_path: bool


@dataclass(frozen=True)
class Drawing:
    """The drawing of a topology, in px; edges of the critical path come last, so that they lie on top."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def draw(upstreams: Upstreams, path: Sequence[str]) -> Drawing:
    """Draws *upstreams* with a column for each step from the sources.

    The critical *path*, from its source on, runs along the top row. Below it, each operator stands near those that it
    reads.
    """
    column: dict[str, int] = {}
    row: dict[str, int] = {}
    # An operator stands one column behind the furthest operator that it reads.
    for name in in_order(upstreams):
        column[name] = 1 + max((column[read] for read in upstreams.get(name, ())), default=-1)
    names_by_column: dict[int, list[str]] = defaultdict(list)
    for name, number in column.items():
        names_by_column[number].append(name)
    # Column by column, because the row that is wanted depends on the columns before.
    for number in sorted(names_by_column):
        occupied: set[int] = set()
        # Operators of the path come first, so the top row is free for them.
        for name in sorted(names_by_column[number], key=lambda n: (n not in path, _wanted_row(n, upstreams, row), n)):
            free = 0 if name in path else _wanted_row(name, upstreams, row)
            while free in occupied:
                free += 1
            row[name] = free
            occupied.add(free)
    corner: dict[str, tuple[int, int]] = {}
    for name, number in column.items():
        corner[name] = MARGIN + number * (BOX[0] + GAP[0]), MARGIN + row[name] * (BOX[1] + GAP[1])
    boxes = [Box(name, x, y, name in path) for name, (x, y) in corner.items()]
    steps = set(pairwise(path))
    edges: list[Edge] = []
    for name in column:
        for read in upstreams.get(name, ()):
            edges.append(Edge(read, name, _curve(corner[read], corner[name]), (read, name) in steps))
    # SVG draws later elements over earlier ones.
    edges.sort(key=attrgetter("on_path"))
    right, bottom = (max(ends) for ends in zip(*corner.values(), strict=True)) if corner else (0, 0)
    return Drawing(right + BOX[0] + MARGIN, bottom + BOX[1] + MARGIN, tuple(boxes), tuple(edges))


def _wanted_row(name: str, upstreams: Upstreams, row: dict[str, int]) -> int:
    """Returns the row of the lowest operator that *name* reads."""
    return max((row.get(read, 0) for read in upstreams.get(name, ())), default=0)


def _curve(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + BOX[0], start[1] + BOX[1] // 2
    to_x, to_y = end[0], end[1] + BOX[1] // 2
    # An edge that passes a column stays in its row until it is past it.
    turn_x = max(x, to_x - GAP[0])
    bend = (to_x - turn_x) // 2
    # The curve ends 7 px before the box, because the head of its arrow is there.
    return f"M{x},{y} H{turn_x} C{turn_x + bend},{y} {to_x - bend},{to_y} {to_x - 7},{to_y}"
