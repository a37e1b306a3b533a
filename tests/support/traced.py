"""Reads the records of a play again, for a trace."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from support.play import Play, Row
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.trace.record import Tracer


class KeptRecords:
    """The topics of *play*: records stay until they are in *gone*.

    `asked` counts the records that were read again.
    """

    def __init__(self, play: Play) -> None:
        self._play = play
        self._rows: dict[tuple[str, int, int], Row] = {}
        self.gone: set[tuple[str, int, int]] = set()
        self.asked = 0

    def keep(self, *rows: Row) -> list[Row]:
        """Keeps *rows*, and returns them for a batch."""
        self._rows |= {(row["source"], row["partition"], row["offset"]): row for row in rows}
        return [*rows]

    def __call__(self, source: Source, partition: int, offsets: Collection[int]) -> pl.DataFrame | None:
        """Returns the rows at *offsets* that are not gone."""
        if source.topic is None:
            return None
        places = [(source.name, partition, offset) for offset in sorted(offsets)]
        rows = [self._rows[place] for place in places if place in self._rows and place not in self.gone]
        self.asked += len(rows)
        sub = self._play.topology.sub_topology_of(source.name)
        return pl.DataFrame(rows, schema=self._play._schema(sub.name))

    def tracer(self) -> Tracer:
        """Returns a tracer of the play."""
        return Tracer(self._play.topology, Layout(self._play.home), self)
