"""The rows that break a contract of tables."""

from __future__ import annotations

from tidemark.model.measures.limits import KEPT_OR_BROKEN
from tidemark.model.measures.registry import Measure, register
from tidemark.model.tables.catalog import TABLES
from tidemark.model.topology import Topology
from tidemark.semantics.moved import Moved

ALL_TABLES = "tables"
"""The subject of a contract about every table of the topology."""
CONTRACTS_OVER_MS = 3_600_000
"""Shortest time over which contracts are judged, all of them at once."""


def _tables(topology: Topology) -> tuple[str, ...]:
    sinks = topology.result_tables
    # The other tables of operators are those of hops.
    others = (o.output_table for o in topology.operators.values() if o.output_table and o.output_table not in sinks)
    return (ALL_TABLES, *sinks, *others, *TABLES)


CONTRACT = register(
    Measure(
        name="contract",
        definition="number of rows that break the [contract](alerts.md#contracts); it has no limit",
        of=f"table, or `{ALL_TABLES}` for all",
        subjects=_tables,
        limits=KEPT_OR_BROKEN,
        moves=frozenset({Moved.ROWS}),
        fixed_over_ms=CONTRACTS_OVER_MS,
        counted="rows",
    )
)
