"""Updates of operators by outcome."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tidemark.metrics.catalog import Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.model.settings.intervals import Grain
from tidemark.model.tables.catalog import BATCHES, BECAME, OPERATOR_BATCHES
from tidemark.selection import outside
from tidemark.why.evidence.snapshot import Scene

WORDS = outside(BECAME, ("dropped", "held_after"))
"""Outcomes of updates: held updates have none yet, and what a change of a topology drops is no rate."""
HOUR_MS = Grain.HOUR.length_ms


def _of_outcomes(scene: Scene, rows: Rows) -> Iterator[Sample]:
    batch, at_ms = ["sub_topology", "batch_id"], pl.col("finished_at").dt.epoch("ms")
    batches = rows(BATCHES).lazy().select(*batch, at_ms=at_ms)
    outcomes = rows(OPERATOR_BATCHES).lazy().join(batches, on=batch)
    in_hours = outcomes.with_columns(hour_ms=pl.col("at_ms").max() // HOUR_MS * HOUR_MS)
    newest = in_hours.filter(pl.col("at_ms") >= pl.col("hour_ms")).group_by("operator", "hour_ms")
    sums = newest.agg(pl.col(WORDS).sum()).sort("operator").collect()
    for row in sums.iter_rows(named=True):
        for outcome in WORDS:
            labels = (scene.topology.name, row["operator"], outcome)
            yield Sample("tidemark_updates", labels, row[outcome], row["hour_ms"] / 1000)


register(
    MetricGroup(
        name="outcomes",
        metrics=(
            Metric(
                name="tidemark_updates",
                rank=150,
                type=MetricType.COUNTER,
                labels=("topology", "operator", "outcome"),
                source="operator_batches, batches",
                meaning="updates of an operator by outcome, since the hour of the newest batch began",
            ),
        ),
        needs=(OPERATOR_BATCHES, BATCHES),
        samples=_of_outcomes,
    )
)
