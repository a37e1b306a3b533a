"""The facts about latency that a driver leaves of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tidemark.semantics.buckets import bucket_of


def listed(latencies: Iterable[int]) -> list[dict[str, int]]:
    """Returns the column `buckets` of *latencies*, in ms."""
    return [{"bucket": bucket, "n": n} for bucket, n in sorted(Counter(map(bucket_of, latencies)).items())]


def statistics(latencies: Sequence[int]) -> dict[str, int]:
    """Returns the columns with the statistics of *latencies*, in ms."""
    return {
        "n": len(latencies),
        "min_ms": min(latencies),
        "max_ms": max(latencies),
        "sum_ms": sum(latencies),
        "negative_n": sum(latency < 0 for latency in latencies),
    }


def minute_row(
    finished_at_ms: int, latencies: Sequence[int], *, batch_id: int = 0, operator: str = "o", task_id: str = "0_0"
) -> dict[str, Any]:
    """Returns the row of `latency_minutes` of one batch, *operator* and window."""
    return {
        "batch_id": batch_id,
        "operator": operator,
        "kind": "sink",
        "task_id": task_id,
        "finished_at": finished_at_ms,
        **statistics(latencies),
        "buckets": listed(latencies),
    }
