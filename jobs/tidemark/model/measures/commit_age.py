"""The age of the last commit of a watched table that changed data."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import ONLY_WATCHED, ExplainedBy, Measure, no_subject, register
from tidemark.semantics.moved import Moved

COMMIT_AGE = register(
    Measure(
        name="commit_age",
        definition="age of its last commit that changed data",
        of="[watched table](watch.md)",
        subjects=no_subject,
        without_subjects=ONLY_WATCHED,
        limits=LENGTHS,
        moves=frozenset({Moved.AGE}),
        explained=ExplainedBy.COMMITS,
        of_watched="tidemark.watch.measures:commit_age",
        is_of_lateness=True,
    )
)
