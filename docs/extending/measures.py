"""The number of updates that changed nothing."""

from tidemark.model.measures.limits import AT_MOST
from tidemark.model.measures.registry import OUTCOMES, Count, Measure, every_operator, register
from tidemark.semantics.moved import Moved

register(
    Measure(
        name="unchanged_updates",
        definition="number of updates that changed nothing",
        of="operator",
        subjects=every_operator,
        limits=AT_MOST,
        moves=frozenset({Moved.ROWS}),
        counts=(Count(what="unchanged", rows=OUTCOMES, at="batch_finished_at", n="sum(suppressed)"),),
        counted="unchanged updates",
    )
)
