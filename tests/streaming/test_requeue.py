"""Quarantined records can be sent to their topic again, once."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

from support.command_line import tidemark
from support.play import Play, ms
from support.topologies import aggregate, map_of, sink, source, table, topology_of
from tidemark.cli.repair.requeue import add_options, requeue_plan
from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.model.topology import Topology, parse
from tidemark.storage.delta.tables import create, scan

NOON = 1_400_000_000_000  # 2014-05-13T16:53:20Z


@pytest.fixture
def warehouse(tmp_path: Path, broker: str) -> Path:
    """Three quarantined records from two batches.

    Two are of batch 0, decided at noon, and one of batch 1, a second later.
    """
    embedded.create_topics(broker, {"again": 2})
    common = {"kind": "quarantined", "operator": "events", "topic": "again", "key": b"k"}
    first, second = ({**common, "batch_id": number, "decided_at": NOON + number * 1_000} for number in (0, 1))
    rows: list[dict[str, Any]] = [
        {**first, "partition": 1, "offset": 7, "reason": "malformed_json", "value": b"{"},
        {**first, "partition": 0, "offset": 7, "reason": "invalid_key", "key": b"\xff", "value": b"{}"},
        {**second, "partition": 1, "offset": 9, "reason": "null_value", "value": None},
    ]
    path = Layout(tmp_path).stream_table("t", "s", DEAD_LETTERS.name)
    create(path, arrow_schema(DEAD_LETTERS))
    write_deltalake(path, rows_of(DEAD_LETTERS, rows, topology="t", sub_topology="s"), mode="append")
    return tmp_path


def asked(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(["t", *arguments])


def in_topic(address: str) -> list[tuple[Any, ...]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    places = [TopicPartition("again", number, 0) for number in (0, 1)]
    number = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.assign(places)
    found = consumer.consume(number, timeout=30)
    consumer.close()
    return sorted((m.partition(), m.offset(), m.key(), m.value(), m.headers()) for m in found)


def test_a_record_returns_to_its_partition_once_with_its_origin(warehouse: Path, broker: str) -> None:
    assert requeue_plan(asked(), warehouse, None).effect.splitlines() == [
        "3 of 3 records would be sent again",
        "  events, invalid_key: 1 of topic again, partition 0, offset 7",
        "  events, malformed_json: 1 of topic again, partition 1, offset 7",
        "  events, null_value: 1 of topic again, partition 1, offset 9",
        "Correct the producer or the topology first: a record that still cannot be used is quarantined again",
    ]
    assert not Layout(warehouse).report_table("t", "requeued").exists()
    malformed = requeue_plan(asked("--reason", "malformed_json"), warehouse, broker, lambda: NOON).apply()
    assert malformed == "1 of 1 records were sent again"
    assert requeue_plan(asked(), warehouse, broker, lambda: NOON + 5).apply() == "2 of 3 records were sent again"
    assert requeue_plan(asked(), warehouse, broker).apply() == "0 of 3 records were sent again"
    assert in_topic(broker) == [
        (0, 0, b"\xff", b"{}", [("tidemark-requeued", b"0/7")]),
        (1, 0, b"k", b"{", [("tidemark-requeued", b"1/7")]),
        (1, 1, b"k", None, [("tidemark-requeued", b"1/9")]),
    ]
    written = scan(Layout(warehouse).report_table("t", "requeued")).collect().sort("partition", "offset")
    assert written["reason"].to_list() == ["invalid_key", "malformed_json", "null_value"]
    assert written["requeued_at"].dt.epoch("ms").to_list() == [NOON + 5, NOON, NOON + 5]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "2014-05-13T16:53:21Z"], 1),
        (["--to", "2014-05-13T16:53:21"], 2),
        (["--from", "2014-05-13T18:53:20+02:00", "--to", "2014-05-13T16:53:20.5Z"], 2),
    ],
)
def test_only_what_was_asked_for_is_sent(warehouse: Path, arguments: list[str], expected: int) -> None:
    said = f"{expected} of {expected} records would be sent again"
    assert requeue_plan(asked(*arguments), warehouse, None).effect.splitlines()[0] == said


def test_mistakes_are_named(warehouse: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cluster default has no address; write \[kafka.default\]"):
        requeue_plan(asked(), warehouse, None).apply()
    with pytest.raises(InvalidArgument, match=r"ISO 8601, got 'noon'"):
        requeue_plan(asked("--from", "noon"), warehouse, None)
    with pytest.raises(InvalidArgument, match="reason 'nosuch'; known: invalid_key, malformed_json, null_value"):
        requeue_plan(asked("--reason", "nosuch"), warehouse, None)
    with pytest.raises(InvalidArgument, match="source 'others'; known: events"):
        requeue_plan(asked("--source", "others"), warehouse, None)
    with pytest.raises(InvalidArgument, match=r"has no dead letters of a topology 't'; check the name"):
        requeue_plan(asked(), warehouse / "elsewhere", None)


LATE = topology_of(
    {"name": "t"},
    events=source("id string", sub_topology="s", topic="late", allowed_lateness="1 min", max_ahead=None),
    ids=map_of(select={"id": "id"}),
    minutes=aggregate("ids", key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}),
)


def test_late_records_go_back_to_the_topic_of_their_source(warehouse: Path, broker: str) -> None:
    embedded.create_topics(broker, {"late": 1})
    producer = Producer({"bootstrap.servers": broker})
    for number in range(4):
        producer.produce("late", b'{"id": "%d"}' % number, b"\xff", 0)
    assert producer.flush(20) == 0
    rows = [
        {"operator": "events", "offset": 1, "key": b"\xfe", "value": b"as it was kept"},
        {"operator": "minutes", "offset": 2, "key": None, "value": b'{"id":"2"}'},
        {"operator": "minutes", "offset": 3, "key": None, "value": b'{"id":"3"}'},
        {"operator": "minutes", "offset": 99, "key": None, "value": b'{"id":"99"}'},
    ]
    path = Layout(warehouse).stream_table("t", "s", DEAD_LETTERS.name)
    told = [{**row, "kind": "late", "batch_id": 0, "partition": 0} for row in rows]
    write_deltalake(path, rows_of(DEAD_LETTERS, told, topology="t", sub_topology="s"), mode="append")

    def described(_: str) -> Topology:
        return parse(tomllib.loads(LATE), file="t.toml")

    said = requeue_plan(asked("--late"), warehouse, None, described=described).effect
    assert said.splitlines()[0] == "4 of 4 records would be sent again"
    said = requeue_plan(asked("--late"), warehouse, broker, lambda: NOON, described).apply()
    assert said == "3 of 4 records were sent again; 1 are no longer in their topics"
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("late", 0, 4)])
    sent = [(m.key(), m.value(), m.headers()) for m in consumer.consume(3, timeout=30)]
    consumer.close()
    assert sent == [
        (b"\xfe", b"as it was kept", [("tidemark-requeued", b"0/1")]),
        (b"\xff", b'{"id": "2"}', [("tidemark-requeued", b"0/2")]),
        (b"\xff", b'{"id": "3"}', [("tidemark-requeued", b"0/3")]),
    ]
    assert set(scan(Layout(warehouse).report_table("t", "requeued")).collect()["reason"]) == {"late"}
    said = requeue_plan(asked("--late"), warehouse, None, described=described).effect
    assert said.splitlines()[0] == "1 of 4 records would be sent again"


def test_traces_and_counts_read_the_records_of_a_real_topic(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {"audited": 1})
    toml = topology_of(
        events=source("id string, v int", topic="audited", sub_topology="main"),
        mapped=map_of(select={"id": "id", "v": "v"}, where="v > 0"),
        newest=table("mapped", columns=["v"]),
        board=sink("newest", table="board"),
    )
    file = tmp_path / "play.toml"
    file.write_text(toml)
    play = Play(toml, tmp_path / "warehouse")
    values = [("a", 1), ("a", 0), ("a", 1), ("b", 2)]
    producer = Producer({"bootstrap.servers": broker})
    for at_s, (id_, v) in enumerate(values):
        producer.produce("audited", f'{{"id":"{id_}","v":{v},"event_time":{ms(at_s)}}}', id_, 0)
    producer.flush()
    rows = [play.row("events", ms(at_s), key=id_, id=id_, v=v) for at_s, (id_, v) in enumerate(values)]
    play.batch(rows, at_ms=ms(5))
    which, of_topology = ("--bootstrap", broker), ("--topology", str(file))
    home = ("--warehouse", str(tmp_path / "warehouse"))

    traced = tidemark(tmp_path, *home, "trace", str(file), "--record", "audited/0/1", *which, "--format", "json")
    results = [(result["operator"], result["outcome"]) for result in json.loads(traced.stdout)["results"]]
    assert results == [("events", "passed"), ("mapped", "filtered")]
    made = tidemark(tmp_path, *home, "trace", str(file), "--row", "board", "a", *which)
    assert (made.returncode, made.stdout.splitlines()[-2:]) == (
        0,
        ["  events/0/0", "verified: this record alone makes the same row"],
    )
    # A broker that has no such topic is not one that has lost the record.
    file.write_text(toml.replace('"audited"', '"elsewhere"'))
    away = tidemark(tmp_path, *home, "trace", str(file), "--row", "board", "a", *which)
    assert (away.returncode, away.stdout) == (1, "")
    assert (
        away.stderr
        == f"tidemark trace: {broker} has no topic elsewhere; create it, or give the address of its broker\n"
    )
    file.write_text(toml)

    day = ("reconcile", "events", "--day", "2014-05-13", *of_topology, *which)
    whole = tidemark(tmp_path, *home, *day)
    assert whole.returncode == 0
    assert whole.stdout.splitlines()[-1].startswith("every count agrees so far; "), "the day is not over"
    producer.produce("audited", f'{{"id":"c","v":3,"event_time":{ms(6)}}}', "c", 0)
    producer.flush()
    behind = tidemark(tmp_path, *home, *day, "--format", "json")
    assert (behind.returncode, json.loads(behind.stdout)["differences"]) == (
        1,
        ["events, partition 0: 1 record of offsets 4 to 4 is at the broker and not read yet"],
    )
    play.batch([play.row("events", ms(6), key="c", id="c", v=3)], at_ms=ms(7))
    admin = AdminClient({"bootstrap.servers": broker})  # while it lives, its answers come
    deleted = admin.delete_records([TopicPartition("audited", 0, 2)])
    for answer in deleted.values():
        answer.result(30)
    answer_of = json.loads(tidemark(tmp_path, *home, *day, "--format", "json").stdout)
    assert (answer_of["differences"], answer_of["remarks"]) == (
        [],
        ["events, partition 0: the broker has deleted offsets 0 to 1 of batch 0; they are not counted again"],
    )
