"""The number of rows that commits wrote into a watched table."""

from __future__ import annotations

from tidemark.model.measures.limits import AT_LEAST
from tidemark.model.measures.registry import LONG_OVER_MS, ONLY_WATCHED, ExplainedBy, Measure, no_subject, register
from tidemark.semantics.moved import Moved

VOLUME = register(
    Measure(
        name="volume",
        definition="number of rows in the files that commits wrote that changed data",
        of="[watched table](watch.md)",
        subjects=no_subject,
        without_subjects=ONLY_WATCHED,
        limits=AT_LEAST,
        moves=frozenset({Moved.NUMBER}),
        explained=ExplainedBy.COMMITS,
        of_watched="tidemark.watch.measures:volume",
        usual_over_ms=LONG_OVER_MS,
        counted="rows",
    )
)
