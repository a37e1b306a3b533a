"""A topic gets more partitions, or is recreated, while a stream runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import polars as pl
import pytest

from support.play import NOON, Play
from support.separate_executors import Apart
from support.topologies import operators, sink, source
from tidemark.cli.repair.accept_loss import loss_plan
from tidemark.model.kinds.source import Source
from tidemark.stream.read.data_loss import DataLost, Offsets

KEPT = 'name = "play"\n' + operators(events=source("id string", bound="1 s"), kept=sink("events", table="kept"))


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    return Play(KEPT, tmp_path).in_shards(request.param, Apart)


def watermarks(play: Play) -> list[tuple[int, int | None, int | None, str | None]]:
    """Returns batch, partition, watermark and what holds it, ms after NOON."""
    return [
        (row["batch_id"], row["partition"], row["watermark"] and row["watermark"] - NOON, row["blocked_by"])
        for row in play.rows("partition_batches")
        if row["source"] == "events"
    ]


def test_an_added_partition_holds_back_before_its_first_record(play: Play) -> None:
    play.batch([play.row("events", NOON + 5_000, id="a")], at_ms=NOON)
    play.broker.partitions = 2
    play.batch([play.row("events", NOON + 9_000, id="b")], at_ms=NOON + 1_000)
    play.batch([play.row("events", NOON + 7_000, partition=1, id="c")], at_ms=NOON + 2_000)
    assert watermarks(play) == [
        (0, 0, 3_999, None), (0, None, 3_999, "0"),
        (1, 0, 7_999, None), (1, 1, None, None), (1, None, 3_999, "1"),
        (2, 0, 7_999, None), (2, 1, 5_999, None), (2, None, 5_999, "1"),
    ]  # fmt: skip


def test_all_records_of_an_added_partition_are_read(play: Play) -> None:
    play.batch([play.row("events", NOON + 5_000, id="a")], at_ms=NOON)
    play.broker.partitions = 2
    rows = [play.row("events", NOON + 1_000 * n, partition=1, id=str(n)) for n in range(3)]
    play.batch(rows, at_ms=NOON + 1_000)
    assert [(row["source_partition"], row["source_offset"]) for row in play.rows("kept")] == [
        (0, 0), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    names = ("source", "partition", "from_offset", "until_offset", "latest_offset")
    assert [tuple(row[name] for name in names) for row in play.reads()[1]] == [
        ("events", 0, 1, 1, 1),
        ("events", 1, 0, 3, 3),
    ]


def test_a_recreated_topic_ends_the_stream_before_it_is_read(play: Play) -> None:
    play.broker.topic_ids["events"] = "old"
    play.batch([play.row("events", NOON, id="a")], at_ms=NOON)
    play.broker.topic_ids["events"] = "new"
    with pytest.raises(DataLost, match="topic 'events' was recreated: its id was old and is new; partition 0 was read"):
        play.batch([play.row("events", NOON, id="b")], at_ms=NOON + 1_000)
    assert [row["id"] for row in play.rows("kept")] == ["a"]


def test_a_recreated_topic_is_known_at_a_start_in_silence(play: Play) -> None:
    play.broker.topic_ids["events"] = "old"
    play.batch([play.row("events", NOON, id="a")], at_ms=NOON)
    play.broker.topic_ids["events"] = "new"
    play.start()
    with pytest.raises(DataLost, match="topic 'events' was recreated"):
        play.batch(at_ms=NOON + 1_000)


def test_a_topic_without_an_id_takes_the_first_one_that_it_gets(play: Play) -> None:
    play.batch([play.row("events", NOON, id="a")], at_ms=NOON)
    play.broker.topic_ids["events"] = "first seen"
    play.batch([play.row("events", NOON, id="b")], at_ms=NOON + 1_000)
    play.broker.topic_ids["events"] = "new"
    with pytest.raises(DataLost, match="its id was first seen and is new"):
        play.batch(at_ms=NOON + 2_000)


def test_lost_records_of_an_added_partition_end_the_stream(play: Play) -> None:
    """Partition 1 lost two records before the stream read it."""
    play.batch([play.row("events", NOON, id="a")], at_ms=NOON)
    play.broker.partitions, play.broker.earliest_of = 2, {1: 2}
    rows = [play.row("events", NOON, partition=1, id=str(n)) for n in range(3)]
    with pytest.raises(DataLost, match=r"partition 1: offsets 0 until 2 were lost unread; .* --partition 1 --until 2 "):
        play.batch(rows[2:], at_ms=NOON + 1_000)
    asked = Namespace(topology="play", sub_topology=play.sub, source="events", partition=1, until=2, topic_id=None)
    loss_plan(Namespace(**vars(asked), by="Ann", reason="holiday"), play.home).apply()
    play.process(1, rows[2:], at_ms=NOON + 1_000)
    assert [row["id"] for row in play.rows("kept")] == ["a", "2"]
    lost = [(row["partition"], row["lost_from_offset"], row["lost_until_offset"]) for row in play.reads()[1]]
    assert lost == [(0, None, None), (1, 0, 2)]


@pytest.mark.parametrize("shards", [1, 2])
def test_an_accepted_topic_is_read_in_parts(tmp_path: Path, shards: int) -> None:
    toml = KEPT.replace("bound", "max_records = 2\nbound")
    play = Play(toml, tmp_path).in_shards(shards, Apart)
    play.broker.topic_ids["events"] = "old"
    play.batch([{**play.row("events", NOON, id="a"), "offset": 8}], at_ms=NOON)
    play.broker.topic_ids["events"] = "new"
    play.broker.forget("events")
    rows = [{**play.row("events", NOON, id=str(n)), "offset": n} for n in range(5)]
    reread: list[Offsets] = []

    def again(_: Source, unread: Offsets) -> pl.DataFrame:
        reread.append(unread)
        return pl.DataFrame(rows[slice(*unread[0])], schema=play._schema(play.sub))

    play.reread = again
    accepted = Namespace(topology="play", sub_topology=play.sub, source="events", partition=None, until=0)
    loss_plan(Namespace(**vars(accepted), topic_id="new", by="Ann", reason="holiday"), play.home).apply()
    play.start()
    play.process(1, rows, at_ms=NOON + 1_000)
    assert [row["id"] for row in play.rows("kept")] == ["a", "0", "1", "2", "3", "4"]
    ranges = [[(row["from_offset"], row["until_offset"]) for row in reads] for reads in play.reads().values()]
    assert ranges[-4:] == [[(7, 9)], [(0, 1)], [(1, 3)], [(3, 5)]]
    assert reread == [{0: (0, 1)}], "later parts are of the new topic"
