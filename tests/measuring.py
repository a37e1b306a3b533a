"""The facts about latency that a driver leaves of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemark.semantics.buckets import bucket_of
from tidemark.spec.tables import LATENCY_BUCKETS, OPERATOR_LATENCY, Table


def facts(
    finished_at_ms: int, latencies: Sequence[int], *, batch_id: int = 0, operator: str = "o", task_id: str = "0_0"
) -> dict[Table, list[dict[str, Any]]]:
    """The rows that one batch has of *operator*, by table, with its buckets counted one by one."""
    common = {
        "batch_id": batch_id,
        "operator": operator,
        "kind": "sink",
        "task_id": task_id,
        "finished_at": finished_at_ms,
    }
    statistics = {
        "n": len(latencies),
        "min_ms": min(latencies),
        "max_ms": max(latencies),
        "sum_ms": sum(latencies),
        "negative_n": sum(latency < 0 for latency in latencies),
    }
    buckets = [{**common, "bucket": bucket_of(latency), "n": 1} for latency in latencies]
    return {OPERATOR_LATENCY: [{**common, **statistics}], LATENCY_BUCKETS: buckets}
