"""Checks numbers of several topics in tables, findings and commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.play import NOON, Play, bad
from support.separate_executors import Apart
from support.topologies import aggregate, operators, sink, source
from tidemark.cli.repair.set_aside import dead_letters, with_kafka_partitions
from tidemark.model.project.layout import Layout
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.progress import TopicPartition
from tidemark.stream.startup.unread import unread_ranges
from tidemark.why.walk import why

EVENTS = source("id string", topic=None, topics=["a", "b"], idle_after="1 h")
KEPT = 'name = "play"\n' + operators(events=EVENTS, kept=sink("events", table="kept"))
COUNTED = 'name = "play"\n' + operators(
    events=EVENTS,
    counted=aggregate(
        key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
    ),
    counts=sink("counted", table="counts"),
)


def of_several(toml: str, home: Path) -> Play:
    play = Play(toml, home)
    play.broker.places = (TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1))
    return play


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    return of_several(KEPT, tmp_path).in_shards(request.param, Apart)


def places(play: Play) -> list[tuple[int, int, str, str]]:
    """Returns batch, input partition, place and activity."""
    rows = [row for row in play.rows("partition_batches") if row["partition"] is not None]
    return [(row["batch_id"], row["partition"], row["topic_partition"], row["activity"]) for row in rows]


def test_a_deleted_topic_leaves_with_the_first_batch_without_it(play: Play) -> None:
    play.batch([play.row("events", NOON + 9, id="x"), play.row("events", NOON, partition=1, id="y")], at_ms=NOON)
    play.batch([play.row("events", NOON + 5, partition=2, id="z")], at_ms=NOON + 1_000)
    play.broker.gone.add("b")
    play.batch([play.row("events", NOON + 7_000, id="w")], at_ms=NOON + 2_000)
    assert places(play) == [
        (0, 0, "a/0", "active"), (0, 1, "b/0", "active"),
        (1, 0, "a/0", "active"), (1, 1, "b/0", "active"), (1, 2, "b/1", "active"),
        (2, 0, "a/0", "active"), (2, 1, "b/0", "idle"), (2, 2, "b/1", "idle"),
    ]  # fmt: skip
    combined = [row for row in play.rows("partition_batches") if row["source"] == "events" and row["partition"] is None]
    # A watermark is 1 ms and the bound, 1 s, behind the newest record of the slowest partition.
    assert [(row["watermark"] - NOON, row["blocked_by"]) for row in combined] == [(-1_001, "1"), (5_999, "0")]


def test_a_bad_record_has_its_topic_and_goes_to_its_partition(play: Play) -> None:
    rows = [play.row("events", NOON, id="x"), play.row("events", NOON, partition=1, id="y")]
    play.batch([*rows, bad("malformed_json", part=2)(play)], at_ms=NOON)
    layout = Layout(play.home)
    kept = dead_letters(layout.stream("play", play.sub), DeadLetterKind.QUARANTINED).rename({"operator": "source"})
    columns = ("topic", "partition", "kafka_partition", "offset")
    assert with_kafka_partitions(kept, layout, "play").select(columns).rows() == [("b", 2, 1, 0)]


def test_unread_records_have_topics_and_kafkas_numbers(play: Play) -> None:
    rows = [play.row("events", NOON, partition=number, id="x") for number in (0, 1, 2)]
    play.batch(rows, at_ms=NOON)
    offsets = play.control.home / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    plan = '{"a":{"0":1,"1":2},"b":{"0":1,"1":4}}'
    (offsets / "1").write_text('v1\n{"batchTimestampMs":0}\n1\n' + plan)
    (sub,) = play.topology.sub_topologies
    assert unread_ranges(play.control.home, sub) == (1, {"a": {1: (0, 2)}, "b": {1: (1, 4)}})


def test_a_silent_partition_is_named_by_its_topic(tmp_path: Path) -> None:
    play = of_several(COUNTED, tmp_path)
    rows = [play.row("events", NOON, partition=number, id="x") for number in (0, 1)]
    play.batch(rows, at_ms=NOON)
    play.batch([play.row("events", NOON + 120_000, id="x")], at_ms=NOON + 120_000)
    finding = why(play.topology, Layout(tmp_path), at_ms=NOON + 120_000, operator="counts")[0]
    assert (finding.cause, finding.partition) == ("partition_idle_holds_back", 1)
    assert finding.seen.startswith("b/0: it has been silent and holds the watermark at ")
