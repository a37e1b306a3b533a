"""The updates that a topology has sent on."""

import polars as pl

from tidemark.metrics.catalog import Metric, MetricGroup, MetricType, Sample, register
from tidemark.model.tables.catalog import OPERATOR_BATCHES


def samples(scene, rows):
    sent = rows(OPERATOR_BATCHES).select(pl.sum("emitted")).item()
    yield Sample("tidemark_kept_updates", (scene.topology.name,), sent)


register(
    MetricGroup(
        name="kept_updates",
        metrics=(
            Metric(
                name="tidemark_kept_updates",
                type=MetricType.GAUGE,
                labels=("topology",),
                source="operator_batches",
                meaning="updates that were sent on, as far as facts are kept",
                rank=500,
            ),
        ),
        needs=(OPERATOR_BATCHES,),
        samples=samples,
    )
)
