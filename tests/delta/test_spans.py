"""A batch is a span, linked to the spans of its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.otlp_receiver import OtlpReceiver
from support.play import Play, ms
from support.separate_executors import Apart
from tidemark.metrics.spans import SpanPusher
from tidemark.model.project.layout import Layout

TOML = """
name = "t"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, amount double, event_time bigint"
timestamp = "event_time"
bound = "1 s"
traces = true
[operators.by_id]
kind = "repartition"
input = "events"
key = ["id"]
columns = ["amount"]
[operators.again]
kind = "table"
input = "by_id"
key = ["id"]
columns = ["amount"]
[operators.sent]
kind = "sink"
input = "again"
topic = "amounts"
traces = true
"""
OUTSIDE = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_span_links_to_those_of_topics_and_hops(tmp_path: Path, shards: int) -> None:
    play = Play(TOML, tmp_path).in_shards(shards, Apart)
    first, second = [sub.name for sub in play.topology.sub_topologies]
    waiting = []
    for number, header in enumerate([*OUTSIDE, OUTSIDE[0]]):
        row = play.row("events", ms(number), key=str(number), id=str(number), amount=1.0)
        waiting.append({**row, "headers": [{"key": "traceparent", "value": header.encode()}]})
        if number:  # the first two are one batch
            play.batch(waiting, at_ms=ms(10 * number))
            waiting = []
    play.hop(second, at_ms=ms(30))
    with OtlpReceiver() as receiver:
        pusher = SpanPusher(Layout(play.home), lambda: [play.topology], receiver.traces_url, clock=lambda: ms(60))
        assert pusher.push()
        assert pusher.push()  # nothing is new
    spans = [(span.name, [link.span_id.hex() for link in span.links]) for span in receiver.spans]
    ids = [span.span_id.hex() for span in receiver.spans]
    assert len({*ids}) == 3
    assert spans == [
        (f"t/{first}", ["0000000000000001", "0000000000000002"]),
        (f"t/{first}", ["0000000000000001"]),
        (f"t/{second}", ids[:2]),
    ]
    assert receiver.spans[1].start_time_unix_nano == ms(20) * 1_000_000
