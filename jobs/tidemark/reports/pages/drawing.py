"""Places the operators of a topology in a drawing.

Sources are on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark.semantics.critical_path import Upstreams, in_order

BOX = (130, 54)
"""Width and height of an operator, px."""
GAP = (20, 26)
"""Between columns and between rows, px."""
MARGIN = 6


@dataclass(frozen=True)
class Box:
    """The box of an operator.

    `x` and `y` are its top left corner, px. `on_path`: the operator is on the critical path.
    """

    name: str
    x: int
    y: int
    on_path: bool


@dataclass(frozen=True)
class Edge:
    """A curve between two operators, in SVG's notation.

    It leads from the operator `reads` to `name`, which reads it. `on_path`: the critical path goes along it.
    """

    reads: str
    name: str
    curve: str
    on_path: bool


@dataclass(frozen=True)
class Drawing:
    """The drawing of a topology, px.

    Edges of the critical path come last, on top.
    """

    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def draw(upstreams: Upstreams, path: Sequence[str]) -> Drawing:
    """Draws *upstreams* with a column for each step from the sources.

    *path* is the critical one, source first. It runs along the top row. Below it an
    operator stands near the operators that it reads.
    """
    column: dict[str, int] = {}
    row: dict[str, int] = {}
    for name in in_order(upstreams):
        column[name] = 1 + max((column[read] for read in upstreams.get(name, ())), default=-1)
    for place in range(1 + max(column.values(), default=0)):
        occupied: set[int] = set()
        # Operators of the path come first, so the top row is free for them.
        of_column = (name for name in column if column[name] == place)
        for name in sorted(of_column, key=lambda n: (n not in path, _wish(n, upstreams, row), n)):
            first = _wish(name, upstreams, row) if name not in path else 0
            row[name] = next(r for r in range(first, len(column) + 1) if r not in occupied)
            occupied.add(row[name])
    boxes = tuple(
        Box(name, MARGIN + column[name] * (BOX[0] + GAP[0]), MARGIN + row[name] * (BOX[1] + GAP[1]), name in path)
        for name in column
    )
    corner = {box.name: (box.x, box.y) for box in boxes}
    steps = set(pairwise(path))
    edges = [
        Edge(read, name, _curve(corner[read], corner[name]), (read, name) in steps)
        for name in column
        for read in upstreams.get(name, ())
    ]
    return Drawing(
        width=max((box.x for box in boxes), default=0) + BOX[0] + MARGIN,
        height=max((box.y for box in boxes), default=0) + BOX[1] + MARGIN,
        boxes=boxes,
        edges=tuple(sorted(edges, key=lambda edge: edge.on_path)),
    )


def _wish(name: str, upstreams: Upstreams, row: dict[str, int]) -> int:
    """Returns the row of the lowest operator that *name* reads."""
    return max((row.get(read, 0) for read in upstreams.get(name, ())), default=0)


def _curve(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + BOX[0], start[1] + BOX[1] // 2
    to_x, to_y = end[0], end[1] + BOX[1] // 2
    # An edge that passes a column stays in its row until it is past it.
    turn_x = max(x, to_x - GAP[0])
    bend = (to_x - turn_x) // 2
    return f"M{x},{y} H{turn_x} C{turn_x + bend},{y} {to_x - bend},{to_y} {to_x - 7},{to_y}"
