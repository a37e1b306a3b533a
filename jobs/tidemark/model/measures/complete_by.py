"""How long after its end an interval is complete."""

from __future__ import annotations

from tidemark.model.measures.limits import DEADLINE, DUE
from tidemark.model.measures.registry import ExplainedBy, Measure, Need, register
from tidemark.model.topology import Topology
from tidemark.semantics.moved import Moved


def _with_intervals(topology: Topology) -> tuple[str, ...]:
    return tuple(operator.name for operator in topology.operators.values() if operator.complete)


COMPLETE_BY = register(
    Measure(
        name="complete_by",
        definition="how long after its end an interval was complete, or has not been",
        of="operator with the key [`complete`](complete.md)",
        subjects=_with_intervals,
        without_subjects=(
            "no operator has the key complete",
            'write complete = { every = "1 h" } at the operator of a table',
        ),
        limits=DEADLINE,
        implied_by=DUE,
        # As of a table that stands still.
        moves=frozenset({Moved.AGE, Moved.NUMBER}),
        explained=ExplainedBy.INTERVALS,
        needs=frozenset({Need.COMPLETIONS, Need.CLOCKS, Need.START}),
        is_of_lateness=True,
        passes_when_idle=True,
    )
)
