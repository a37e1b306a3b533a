"""The state of streams."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.facts.stream_facts import StreamFacts
from tidemark.metrics.catalog import STREAM, Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.semantics.liveness import Liveness
from tidemark.why.evidence.snapshot import Scene


def _of_streams(scene: Scene, _: Rows) -> Iterator[Sample]:
    for sub, facts in scene.facts.items():
        yield from _of_stream((scene.topology.name, sub), facts, scene.at_ms)


def _of_stream(labels: tuple[str, str], facts: StreamFacts, now_ms: int) -> Iterator[Sample]:
    present = facts.driver.liveness
    yield Sample("tidemark_stream_state", labels, {each.value: each is present for each in Liveness})
    beat = facts.driver.beat
    if beat is None:
        return
    yield Sample("tidemark_heartbeat_age_seconds", labels, (now_ms - beat.at_ms) / 1000)
    if beat.records_behind is not None:
        yield Sample("tidemark_behind_records", labels, beat.records_behind)
    if present is Liveness.CATCHING_UP and beat.eta_at_ms is not None:
        yield Sample("tidemark_catch_up_seconds", labels, max(0, beat.eta_at_ms - now_ms) / 1000)


register(
    MetricGroup(
        name="streams",
        metrics=(
            Metric(
                name="tidemark_stream_state",
                rank=20,
                type=MetricType.STATESET,
                labels=STREAM,
                source="heartbeats, control folder",
                meaning="state of a stream, in the label of the same name: 1 for the present state, 0 for the others",
            ),
            Metric(
                name="tidemark_heartbeat_age_seconds",
                rank=30,
                type=MetricType.GAUGE,
                labels=STREAM,
                source="heartbeats, control folder",
                meaning="age of the newest heartbeat",
            ),
            Metric(
                name="tidemark_behind_records",
                rank=40,
                type=MetricType.GAUGE,
                labels=STREAM,
                source="heartbeats",
                meaning="unread records of the stream's topics after its last batch",
            ),
            Metric(
                name="tidemark_catch_up_seconds",
                rank=50,
                type=MetricType.GAUGE,
                labels=STREAM,
                source="heartbeats",
                meaning="estimated time until the stream has read all; no series unless it catches up",
            ),
        ),
        needs=(),
        samples=_of_streams,
        every_scrape=True,
    )
)
