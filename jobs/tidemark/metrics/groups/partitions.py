"""Watermarks and unread records of partitions."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.metrics.catalog import PARTITION, Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.model.tables.catalog import BATCHES, PARTITION_BATCHES
from tidemark.selection import names_in
from tidemark.why.evidence.snapshot import Scene


def _of_partitions(scene: Scene, _: Rows) -> Iterator[Sample]:
    for sub in scene.topology.sub_topologies:
        sources = names_in(sub.outside_sources)
        # The facts of a stream without sources from outside are not read.
        marks = scene.facts[sub.name].marks if sources else {}
        # Spark has one watermark for a whole query of a job.
        named = {
            (source, "" if number is None else str(number)): mark
            for (source, number), mark in marks.items()
            if source in sources and (number is not None or scene.topology.jobs)
        }
        for (source, partition), mark in sorted(named.items(), key=lambda each: each[0]):
            labels = (scene.topology.name, sub.name, source, partition)
            if mark.watermark_ms is not None:
                yield Sample("tidemark_watermark_lag_seconds", labels, age_of_ms=mark.watermark_ms)
            if mark.unread is not None:
                yield Sample("tidemark_unread_records", labels, mark.unread)


register(
    MetricGroup(
        name="partitions",
        metrics=(
            Metric(
                name="tidemark_watermark_lag_seconds",
                rank=170,
                type=MetricType.GAUGE,
                labels=PARTITION,
                source="partition_batches",
                meaning=(
                    "distance from the watermark of an input partition to now; of a query of a job that of the "
                    "query, with an empty partition"
                ),
            ),
            Metric(
                name="tidemark_unread_records",
                rank=180,
                type=MetricType.GAUGE,
                labels=PARTITION,
                source="partition_batches",
                meaning="records of a partition that the last batch left unread",
            ),
        ),
        needs=(BATCHES, PARTITION_BATCHES),
        samples=_of_partitions,
    )
)
