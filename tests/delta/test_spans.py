"""A batch is a span, linked to the spans of its records."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.otlp_receiver import OtlpReceiver
from support.play import Play, ms
from support.report_warehouse import TestWarehouse
from support.separate_executors import Apart
from support.topologies import repartition, sink, source, table, topology_of
from tidemark.metrics import spans as spans_module
from tidemark.metrics.spans import SpanPusher
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, PARTITION_BATCHES
from tidemark.model.topology import parse

TOML = topology_of(
    {"name": "t"},
    events=source("id string, amount double", traces=True),
    by_id=repartition(key=["id"], columns=["amount"]),
    again=table("by_id", columns=["amount"]),
    sent=sink("again", topic="amounts", traces=True),
)
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


class Scene:
    """Batches of the two streams of TOML, written by hand."""

    def __init__(self, home: Path, receiver: OtlpReceiver) -> None:
        self.topology = parse(tomllib.loads(TOML), file="spans.toml")
        self.tables, self.receiver = TestWarehouse(Layout(home)), receiver
        self.first, self.second = [sub.name for sub in self.topology.sub_topologies]
        (hop,) = self.topology.sub_topologies[1].hops_read
        self.hop = hop.name
        self.pusher = SpanPusher(self.tables.layout, lambda: [self.topology], receiver.traces_url, clock=lambda: ms(60))

    def batches(self, sub: str, numbers: Iterable[int], at_s: int = 0, **read: tuple[int, int]) -> None:
        """Batches at *at_s* that read these offsets of sources, from and until."""
        reads = [
            {"batch_id": number, "source": source, "partition": 0, "from_offset": since, "until_offset": until}
            for source, (since, until) in read.items()
            for number in numbers
        ]
        at = dict.fromkeys(("decided_at", "started_at", "finished_at"), ms(at_s))
        rows: list[Mapping[str, Any]] = [{"batch_id": number, "epoch": 1, "records_in": 1, **at} for number in numbers]
        self.tables.write(PARTITION_BATCHES, reads, sub)
        self.tables.write(BATCHES, rows, sub)

    def pushed(self) -> list[tuple[str, int]]:
        """Returns stream and batch of the spans that were taken."""
        places = []
        for span in self.receiver.spans:
            values = {each.key: each.value for each in span.attributes}
            sub = values["tidemark.sub_topology"].string_value
            places.append((sub, values["tidemark.batch_id"].int_value))
        return places


def test_offsets_of_a_topic_are_no_batches(tmp_path: Path) -> None:
    """To count up to this offset would take hours."""
    with OtlpReceiver() as receiver:
        scene = Scene(tmp_path, receiver)
        scene.batches(scene.first, range(4), events=(0, 10**12))
        scene.batches(scene.second, [0], **{scene.hop: (1, 3), "events": (0, 10**12)})
        assert scene.pusher.push()
    ids = [span.span_id for span in receiver.spans]
    links = [[link.span_id for link in span.links] for span in receiver.spans]
    assert links == [[], [], [], [], ids[1:3]]


def test_many_spans_are_pushed_in_pieces_and_once(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        scene = Scene(tmp_path, receiver)
        scene.batches(scene.first, range(501))
        scene.batches(scene.second, [0])
        receiver.refuses = lambda spans: len(spans) > 500
        assert scene.pusher.push()
        assert scene.pushed() == [*((scene.first, number) for number in range(501)), (scene.second, 0)]


def test_a_refused_piece_holds_only_later_batches_of_its_stream(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        scene = Scene(tmp_path, receiver)
        scene.batches(scene.first, range(501))
        scene.batches(scene.second, [0])
        receiver.refuses = lambda spans: len(spans) > 500 or [span.name for span in spans] == [f"t/{scene.first}"]
        assert not scene.pusher.push()
        taken = [*((scene.first, number) for number in range(500)), (scene.second, 0)]
        assert scene.pushed() == taken
        receiver.refuses = lambda spans: False
        assert scene.pusher.push()
        assert scene.pushed() == [*taken, (scene.first, 500)]


def test_a_push_without_new_batches_makes_no_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with OtlpReceiver() as receiver:
        scene = Scene(tmp_path, receiver)
        scene.batches(scene.first, range(3))
        scene.batches(scene.second, [0], **{scene.hop: (0, 3)})
        assert scene.pusher.push()
        # Without it no span of the upstream can be made, and an error is logged.
        monkeypatch.delattr(spans_module, "span_of_batch")
        assert scene.pusher.push()
    logged = [record.message for record in caplog.records if record.name == spans_module.log.name]
    assert (len(scene.pushed()), logged) == (4, [])


def test_batches_of_a_stream_that_was_reset_are_pushed(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        scene = Scene(tmp_path, receiver)
        scene.batches(scene.first, range(3))
        assert scene.pusher.push()
        shutil.rmtree(scene.tables.layout.stream("t", scene.first))
        scene.batches(scene.first, range(2), at_s=30)
        assert scene.pusher.push()
        scene.batches(scene.first, [2], at_s=40)
        assert scene.pusher.push()
        assert scene.pushed() == [(scene.first, number) for number in (0, 1, 2, 0, 1, 2)]
