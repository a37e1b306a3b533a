"""The longest time in which no commit changed a watched table."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import LONG_OVER_MS, ONLY_WATCHED, ExplainedBy, Measure, no_subject, register
from tidemark.semantics.moved import Moved

CADENCE = register(
    Measure(
        name="cadence",
        definition="longest time between two commits that changed data, the later one in `over`, or since the last one",
        of="[watched table](watch.md)",
        subjects=no_subject,
        without_subjects=ONLY_WATCHED,
        limits=LENGTHS,
        moves=frozenset({Moved.AGE}),
        explained=ExplainedBy.COMMITS,
        of_watched="tidemark.watch.measures:cadence",
        usual_over_ms=LONG_OVER_MS,
        is_of_lateness=True,
    )
)
