"""Open incidents."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tidemark.metrics.catalog import Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.model.tables.catalog import INCIDENTS
from tidemark.semantics.sla import Severity
from tidemark.why.evidence.snapshot import Scene


def _of_incidents(scene: Scene, rows: Rows) -> Iterator[Sample]:
    by_incident = (
        rows(INCIDENTS)
        .lazy()
        .sort("changed_at")
        .group_by("incident")
        .agg(
            severity=pl.col("severity").filter(pl.col("change").is_in(["opened", "escalated"])).last(),
            is_open=~(pl.col("change") == "resolved").any(),
        )
    )
    open_now = by_incident.filter("is_open").collect()["severity"].to_list()
    for severity in Severity:
        labels = (scene.topology.name, severity.value)
        yield Sample("tidemark_open_incidents", labels, open_now.count(severity.value))


register(
    MetricGroup(
        name="incidents",
        metrics=(
            Metric(
                name="tidemark_open_incidents",
                rank=60,
                type=MetricType.GAUGE,
                labels=("topology", "severity"),
                source="incidents",
                meaning="open incidents by their worst severity",
            ),
        ),
        needs=(INCIDENTS,),
        samples=_of_incidents,
    )
)
