"""The work of an operator on a streaming window."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import Count, ExplainedBy, Measure, Need, every_operator, register
from tidemark.semantics.buckets import bucket_sql
from tidemark.semantics.critical_path import FINISHED_MS, LatencyState
from tidemark.semantics.moved import Moved

_MEASURED = ", ".join(
    f"'{state}'" for state in (LatencyState.INPUT, LatencyState.MEASURED, LatencyState.CLAMPED_NEGATIVE)
)
WORK = Count(
    what="work",
    rows=f"""(
        SELECT operator, worked_ms FROM critical_path_steps
        WHERE topology = $1 AND state IN ({_MEASURED}) AND worked_ms IS NOT NULL AND (window_start, window_end) IN (
            SELECT window_start, window_end FROM critical_paths
            WHERE topology = $1 AND {FINISHED_MS} >= {{start_ms}} AND {FINISHED_MS} < {{end_ms}}
        )
    )""",
    bucket=bucket_sql("worked_ms"),
)
"""The windows of each operator by its work on them, at the instant at which their path was finished."""
OPERATOR_LATENCY_P50 = register(
    Measure(
        name="operator_latency_p50",
        definition="its own work per streaming window, without the time that it waited or was queued",
        of="operator",
        subjects=every_operator,
        any_operator=True,
        limits=LENGTHS,
        moves=frozenset({Moved.WORK}),
        explained=ExplainedBy.WORK,
        needs=frozenset({Need.PATHS}),
        counts=(WORK,),
        quantile=0.5,
    )
)
