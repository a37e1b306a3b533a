"""Whether the outcomes of all batches add up."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import Measure, Need, register
from tidemark.semantics.moved import Moved

OUTCOMES = "outcomes"
"""The subject: the updates of all operators by outcome."""
COMPLETENESS = register(
    Measure(
        name="completeness",
        definition="how long the outcomes of a batch have not added up to its records; 0 while all do",
        of=f"`{OUTCOMES}`",
        subjects=lambda _: (OUTCOMES,),
        limits=LENGTHS,
        moves=frozenset({Moved.ROWS}),
        needs=frozenset({Need.ACCOUNTS, Need.WATERMARKS, Need.CLOCKS, Need.START}),
    )
)
