"""The number of fields that were found new, vanished or retyped."""

from __future__ import annotations

from tidemark.model.measures.limits import AT_MOST
from tidemark.model.measures.registry import LONG_OVER_MS, Count, Measure, Need, register
from tidemark.model.topology import Topology
from tidemark.semantics.moved import Moved
from tidemark.semantics.schema_watch import OF_RECORDS

_CHANGES = ", ".join(f"'{change}'" for change in OF_RECORDS)


def _watched(topology: Topology) -> tuple[str, ...]:
    return tuple(operator.name for operator in topology.operators.values() if operator.is_watched)


SCHEMA_CHANGES = register(
    Measure(
        name="schema_changes",
        definition="number of fields that were found new, vanished or retyped ([Schema watch](schema-watch.md))",
        of="source of a topic in JSON or with a registry",
        subjects=_watched,
        without_subjects=(
            "no source has such records",
            "watch a source of a topic whose records are in JSON, or name the schemas of a registry",
        ),
        limits=AT_MOST,
        moves=frozenset({Moved.FIELDS}),
        needs=frozenset({Need.WATERMARKS}),
        counts=(
            Count(
                what="schema_changes",
                rows=f"(SELECT * FROM schema_changes WHERE topology = $1 AND change IN ({_CHANGES}))",
                at="found_at",
                subject="source",
                # A batch that is repeated finds the same change again.
                n="count(DISTINCT (field, change, found_at))",
            ),
        ),
        usual_over_ms=LONG_OVER_MS,
        counted="changes of fields",
    )
)
