"""The facts about latency that a driver leaves of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemark.model.tables.catalog import LATENCY_BUCKETS, OPERATOR_BATCHES, Table
from tidemark.semantics.buckets import bucket_of


def facts(
    finished_at_ms: int,
    latencies: Sequence[int],
    *,
    batch_id: int = 0,
    operator: str = "o",
    task_id: str | None = "0_0",
) -> dict[Table, list[dict[str, Any]]]:
    """Returns one batch's rows of *operator* by table, with single bucket counts."""
    common = {"batch_id": batch_id, "operator": operator, "kind": "sink", "finished_at": finished_at_ms}
    statistics = {
        "n": len(latencies),
        "min_ms": min(latencies),
        "max_ms": max(latencies),
        "sum_ms": sum(latencies),
        "negative_n": sum(latency < 0 for latency in latencies),
    }
    task = {"task_id": task_id, **statistics}
    buckets = [{**common, "task_id": task_id, "bucket": bucket_of(latency), "n": 1} for latency in latencies]
    return {OPERATOR_BATCHES: [{**common, **statistics, "tasks": [task]}], LATENCY_BUCKETS: buckets}
