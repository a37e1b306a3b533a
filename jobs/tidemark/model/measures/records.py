"""The number of records that an operator read."""

from __future__ import annotations

from tidemark.model.measures.limits import AT_LEAST
from tidemark.model.measures.registry import OUTCOMES, Count, ExplainedBy, Measure, Need, every_operator, register
from tidemark.semantics.moved import Moved

READ = Count(what="records", rows=OUTCOMES, at="batch_finished_at", n="sum(records_in)")
"""The records that each operator read, at the instant at which their batch was finished."""
RECORDS = register(
    Measure(
        name="records",
        definition="number of records that it read",
        of="operator",
        subjects=every_operator,
        any_operator=True,
        limits=AT_LEAST,
        moves=frozenset({Moved.NUMBER}),
        explained=ExplainedBy.NUMBERS,
        needs=frozenset({Need.START}),
        counts=(READ,),
        passes_when_idle=True,
    )
)
