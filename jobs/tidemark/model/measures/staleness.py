"""The age of a table."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import ExplainedBy, Measure, Need, register
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import Topology
from tidemark.semantics.moved import Moved


def _tables(topology: Topology) -> tuple[str, ...]:
    return (*topology.result_tables, CHANGES.name)


STALENESS = register(
    Measure(
        name="staleness",
        definition="age of its newest record, or of the newest record of its stalest group",
        of="table, also a [watched](watch.md) one; with `by` a keyed operator or a source",
        subjects=_tables,
        limits=LENGTHS,
        # Where no result is on its way, what did not come through explains why a table stands still.
        moves=frozenset({Moved.AGE, Moved.NUMBER}),
        explained=ExplainedBy.OPEN_RESULT,
        needs=frozenset({Need.NEWEST, Need.CLOCKS, Need.START}),
        is_of_lateness=True,
        is_excusable=True,
        passes_when_idle=True,
        of_watched="tidemark.watch.measures:staleness",
    )
)
