"""Complete intervals of tables."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tidemark.metrics.catalog import Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.model.tables.catalog import COMPLETENESS
from tidemark.why.evidence.snapshot import Scene


def _of_completeness(scene: Scene, rows: Rows) -> Iterator[Sample]:
    by_table = rows(COMPLETENESS).lazy().group_by("operator", "table").agg(
        end=pl.col("interval_end").dt.epoch("ms").max(), reopened=pl.col("reopened_at").is_not_null().sum()
    )  # fmt: skip
    for operator, table, end_ms, reopened in by_table.sort("operator", "table").collect().rows():
        of_table = (scene.topology.name, operator, table)
        yield Sample("tidemark_complete_lag_seconds", of_table, age_of_ms=end_ms)
        yield Sample("tidemark_reopened_intervals", of_table, reopened)


register(
    MetricGroup(
        name="completeness",
        metrics=(
            Metric(
                name="tidemark_complete_lag_seconds",
                rank=120,
                type=MetricType.GAUGE,
                labels=("topology", "operator", "table"),
                source="completeness",
                meaning="distance from the end of the newest complete interval to now",
            ),
            Metric(
                name="tidemark_reopened_intervals",
                rank=130,
                type=MetricType.GAUGE,
                labels=("topology", "operator", "table"),
                source="completeness",
                meaning="intervals that got results after they were complete, of those that the table has",
            ),
        ),
        needs=(COMPLETENESS,),
        samples=_of_completeness,
    )
)
