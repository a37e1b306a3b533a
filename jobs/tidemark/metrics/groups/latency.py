"""Latencies of operators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import polars as pl

from tidemark.metrics.catalog import PERCENTILES, Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.model.settings.intervals import Grain, epoch_ms
from tidemark.model.tables.catalog import LATENCY_MINUTES
from tidemark.semantics.buckets import GAMMA, quantile, value_of
from tidemark.why.evidence.snapshot import Scene

RECENT_MS = 300_000
"""Quantiles are those of the records that finished in so many ms."""
EDGES = (0, *range(1, 842, 35))
"""Our buckets at the upper edges of the histogram: 0 ms, 1 ms, 2 ms, 4 ms and so on, to 4.6 hours.

Counts are exact, because edges of the histogram are edges of our buckets. 1.02^35 is 2.0.
"""
HOUR_MS = Grain.HOUR.length_ms


def _of_latency(scene: Scene, rows: Rows) -> Iterator[Sample]:
    """Yields quantiles and histograms by operator."""
    buckets = rows(LATENCY_MINUTES)
    if buckets.is_empty():
        return
    newest_ms = epoch_ms(buckets["finished_at"].max())  # type: ignore[arg-type]
    at_ms = pl.col("finished_at").dt.epoch("ms")
    # Each collected frame takes 0.3 ms, however few its rows are.
    counts = buckets.lazy().group_by("operator", "bucket").agg(
        hour=pl.col("n").filter(at_ms >= newest_ms // HOUR_MS * HOUR_MS).sum(),
        recent=pl.col("n").filter(at_ms > newest_ms - RECENT_MS).sum(),
    ).sort("operator", "bucket").select("operator", "bucket", "hour", "recent").collect()  # fmt: skip
    for operator, group in groupby(counts.rows(), itemgetter(0)):
        labels, of_operator = (scene.topology.name, str(operator)), [*group]
        recent = [(bucket, n) for _, bucket, _, n in of_operator]
        for name, q in PERCENTILES.items():
            if (latency_ms := quantile(recent, q)) is not None:
                value, until_ms = latency_ms / 1000, newest_ms + RECENT_MS
                yield Sample("tidemark_recent_latency_seconds", (*labels, name), value, until_ms=until_ms)
        hour = [(bucket, n) for _, bucket, n, _ in of_operator if n]
        if hour:
            by_edge = [(_edge_s(edge), sum(n for bucket, n in hour if bucket <= edge)) for edge in EDGES]
            by_edge.append(("+Inf", sum(n for _, n in hour)))
            total_s = sum(value_of(bucket) * n for bucket, n in hour) / 1000
            yield Sample("tidemark_latency_seconds", labels, (by_edge, total_s), newest_ms // HOUR_MS * HOUR_MS / 1000)


def _edge_s(bucket: int) -> str:
    """Returns the largest value in *bucket*, s, as a label of Prometheus.

    >>> _edge_s(0), _edge_s(1), _edge_s(36)
    ('0.0', '0.001', '0.00199989')
    """
    return f"{GAMMA ** (bucket - 1) / 1000:.6g}" if bucket else "0.0"


register(
    MetricGroup(
        name="latency",
        metrics=(
            Metric(
                name="tidemark_recent_latency_seconds",
                rank=140,
                type=MetricType.GAUGE,
                labels=("topology", "operator", "percentile"),
                source="latency_minutes",
                meaning=(
                    "p50, p90 or p99 of the end-to-end latency of the five minutes before the newest result, at "
                    "most 1 % off; no series if these results are older than five minutes"
                ),
            ),
            Metric(
                name="tidemark_latency_seconds",
                rank=160,
                type=MetricType.HISTOGRAM,
                labels=("topology", "operator"),
                source="latency_minutes",
                meaning="end-to-end latency of the records of an operator, since the hour of the newest result began",
            ),
        ),
        needs=(LATENCY_MINUTES,),
        samples=_of_latency,
    )
)
