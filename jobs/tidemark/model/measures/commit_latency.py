"""How old the records of a watched table were when they were committed."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import LONG_OVER_MS, ONLY_WATCHED, ExplainedBy, Measure, no_subject, register
from tidemark.semantics.moved import Moved

COMMIT_LATENCY = register(
    Measure(
        name="commit_latency",
        definition="greatest age of a record when an append brought it: commit − event time",
        of="[watched table](watch.md)",
        subjects=no_subject,
        without_subjects=ONLY_WATCHED,
        limits=LENGTHS,
        moves=frozenset({Moved.AGE}),
        explained=ExplainedBy.COMMITS,
        of_watched="tidemark.watch.measures:commit_latency",
        usual_over_ms=LONG_OVER_MS,
        is_of_lateness=True,
    )
)
