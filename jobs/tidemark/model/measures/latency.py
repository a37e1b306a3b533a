"""Quantiles of the end-to-end latency of an operator's records."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS_OF_RECORDS
from tidemark.model.measures.registry import Count, ExplainedBy, Measure, every_operator, register
from tidemark.model.settings.lengths import exact_percent
from tidemark.semantics.moved import Moved

LATENCIES = Count(
    what="latency",
    rows=(
        "(SELECT operator, explode(buckets) AS counted FROM latency_minutes"
        " WHERE topology = $1 AND finished_at >= {start} AND finished_at < {end})"
    ),
    bucket="counted.bucket",
    n="sum(counted.n)",
)
"""The records of each operator by their end-to-end latency, at the instant at which they were finished."""


def _latency(name: str, quantile: float) -> Measure:
    return Measure(
        name=name,
        definition=f"end-to-end latency: at least {exact_percent(quantile)} of its records took no longer",
        of="operator; for a path its last one",
        subjects=every_operator,
        any_operator=True,
        limits=LENGTHS_OF_RECORDS,
        moves=frozenset({Moved.AGE}),
        explained=ExplainedBy.RECORDS,
        counts=(LATENCIES,),
        quantile=quantile,
        is_of_lateness=True,
        is_excusable=True,
        of_watched="tidemark.watch.measures:row_latencies",
    )


LATENCY_P50 = register(_latency("latency_p50", 0.5))
LATENCY_P90 = register(_latency("latency_p90", 0.9))
LATENCY_P99 = register(_latency("latency_p99", 0.99))
