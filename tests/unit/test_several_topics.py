"""Checks sources over several topics: keys, numbers, deleted topics."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import msgspec
import polars as pl
import pytest

from tidemark.errors import InvalidSpec
from tidemark.model.arrival_order import by_arrival
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology, parse
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress, TopicPartition
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.notes import as_json
from tidemark.stream.kafka.broker import SeveralTopics
from tidemark.stream.kafka.numbering import number_partitions, number_ranges, number_records
from tidemark.stream.read.data_loss import DataLost, LossCheck, Offsets, nothing_to_reread

TOML = """
name = "shop"
window = "5 s"

[operators.events]
kind = "source"
sub_topology = "all"
topics = TOPICS
idle_after = "30 s"
fields = "id string"
bound = "1 s"

[operators.kept]
kind = "sink"
input = "events"
table = "kept"
"""
SECOND = """
[operators.more]
kind = "source"
OTHER
idle_after = "30 s"
fields = "id string"
bound = "1 s"

[operators.both]
kind = "union"
inputs = ["events", "more"]
"""


def shop(topics: str, more: str = "") -> Topology:
    toml = TOML.replace("TOPICS", topics) + more
    return parse(tomllib.loads(toml), file="shop.toml")


def events(topology: Topology) -> Source:
    (source,) = topology.outside_sources
    return source


def mistakes(topics: str, more: str = "") -> str:
    with pytest.raises(InvalidSpec) as told:
        shop(topics, more)
    return str(told.value)


def test_a_list_is_a_pattern_of_its_names_alone():
    source = events(shop('["or.ders", "returns"]'))
    assert (source.topic, source.topics, source.subscribed_pattern) == (
        "or.ders, returns", ("or.ders", "returns"), r"or\.ders|returns",
    )  # fmt: skip
    assert [name for name in ("or.ders", "orxders", "returns", "returns2", "xreturns") if source.reads(name)] == [
        "or.ders", "returns",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pattern", ["a.*?", "(eu|us)-orders", "a{2}", "a{2,}+", "a{2,3}", "[^a-z_-]+", "[-a.]*", r"a\.\d+", "^a|b$"]
)
def test_a_pattern_of_a_known_form_is_accepted(pattern):
    assert events(shop(f"'{pattern}'")).topic_pattern == pattern


def test_a_pattern_matches_whole_names():
    source = events(shop('"orders-.*"'))
    assert [name for name in ("orders-", "orders-eu", "my-orders-eu", "orders") if source.reads(name)] == [
        "orders-", "orders-eu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ("[]", "events.topics: is []; write topics = "),
        ('["a", 1]', "events.topics: is ['a', 1]; write topics = "),
        ('["a b"]', "events.topics: is ['a b']; write topics = "),
        ('["a", "b", "a"]', "events.topics: has 'a' twice; name each topic once"),
        ('"orders"', "events.topics: is 'orders', the name of one topic; write topic = \"orders\""),
        ('"orders("', "events.topics: is 'orders(', which is not a pattern that Spark and Python read alike"),
        ('"(?i)orders"', "events.topics: is '(?i)orders', which is not a pattern that Spark and Python read alike"),
        ("'[a-z&&[^b]]'", "which is not a pattern that Spark and Python read alike"),
        # Java refuses the first two, and Python the others.
        ("'a{,3}'", "which is not a pattern that Spark and Python read alike"),
        ("'a{b}'", "which is not a pattern that Spark and Python read alike"),
        ("'a{2}{2}'", "which is not a pattern that Spark and Python read alike"),
        ("'a-[b-\\d]'", "which is not a pattern that Spark and Python read alike"),
        ("'a\\p{L}'", "which is not a pattern that Spark and Python read alike"),
        ("5", 'events.topics: is 5; write topics = ["readings", "alarms"]'),
    ],
)
def test_topics_that_cannot_be_read_are_mistakes(topics: str, problem: str):
    assert problem in mistakes(topics)


def test_topics_need_idle_after_and_no_topic():
    with pytest.raises(InvalidSpec, match="idle_after: is missing, and topics is set; write idle_after = "):
        parse(tomllib.loads(TOML.replace("TOPICS", '["a"]').replace('idle_after = "30 s"', "")), file="shop.toml")
    assert "events.topic: is set together with topics; write exactly one of topic = " in mistakes('["a"]\ntopic = "b"')


@pytest.mark.parametrize(
    ("topics", "other", "problem"),
    [
        ('["a", "b"]', 'topic = "b"', "events.topics: matches 'b', which 'more' reads"),
        ('["a", "b"]', 'topics = ["b", "c"]', "more.topics: matches 'b', which 'events' reads"),
        ('"a-.*"', 'topics = ["a-b", "c"]', "events.topics: matches 'a-b', which 'more' reads"),
        ('"a-.*"', 'topics = "b-.*"', "events.topics: is a pattern, and 'more' has one, too"),
    ],
)
def test_no_topic_is_read_by_two_sources(topics: str, other: str, problem: str):
    assert problem in mistakes(topics, SECOND.replace("OTHER", other))


@pytest.mark.parametrize(("place", "expected"), [('topics = ["a", "b"]', ["newest"]), ('topic = "a"', [])])
def test_a_key_of_several_topics_is_read_in_no_fixed_order(place: str, expected: list[str]):
    newest = '[operators.newest]\nkind = "table"\ninput = "events"\nkey = ["id"]\ncolumns = ["id"]\n'
    toml = TOML.replace("topics = TOPICS", f'{place}\nkey = "id"') + newest
    assert [name for name, _ in by_arrival(parse(tomllib.loads(toml), file="shop.toml"))] == expected


def test_a_pattern_does_not_match_what_a_driver_writes():
    sink = '\n[operators.out]\nkind = "sink"\ninput = "events"\ntopic = "a-out"\n'
    assert "matches 'a-out', which the sink 'out' of this topology writes" in mistakes('"a-.*"', sink)
    assert "matches 'tidemark_heartbeats', which drivers write" in mistakes('".*"')


def test_numbers_follow_plans_then_topics_then_kafka():
    sub = shop('"[a-z]"').sub_topologies[0]
    ends, first = number_partitions(sub, {"m": {1: 4, 0: 3}, "q": {0: 5}}, StreamProgress())
    assert ends == {"[a-z]": {0: 3, 1: 4, 2: 5}}
    assert first.inputs["events"].places == (TopicPartition("m", 0), TopicPartition("m", 1), TopicPartition("q", 0))
    # A topic whose name comes first, and a new partition, come after those known; a deleted one keeps its number.
    ends, second = number_partitions(sub, {"m": {0: 6, 1: 4, 2: 1}, "a": {0: 0}}, first)
    assert ends == {"[a-z]": {0: 6, 1: 4, 3: 0, 4: 1}}
    assert second.inputs["events"].places[3:] == (TopicPartition("a", 0), TopicPartition("m", 2))
    assert number_partitions(sub, {"q": {0: 7}}, second) == ({"[a-z]": {2: 7}}, second)
    records = {"a": {(0, 9): "x"}, "m": {(2, 1): "y", (0, 5): "z"}}
    assert number_records(sub, records, second) == {"[a-z]": {(3, 9): "x", (4, 1): "y", (0, 5): "z"}}
    assert number_ranges(sub, {"a": {0: (7, 9)}, "m": {1: (0, 4)}}, second) == {"[a-z]": {3: (7, 9), 1: (0, 4)}}


def test_a_plan_of_another_stream_stays_visible():
    sub = shop('["a", "b"]').sub_topologies[0]
    ends, _ = number_partitions(sub, {"c": {0: 1}}, StreamProgress())
    assert ends == {"c": {0: 1}, "a, b": {}}


def test_a_source_of_one_topic_keeps_plan_and_progress():
    toml = TOML.replace("topics = TOPICS", 'topic = "a"')
    sub = parse(tomllib.loads(toml), file="shop.toml").sub_topologies[0]
    was = StreamProgress(inputs={"events": InputProgress(partitions={0: PartitionProgress(until_offset=3)})})
    ends, now = number_partitions(sub, {"a": {0: 5}}, was)
    assert ends == {"a": {0: 5}}
    assert now is was


def test_progress_of_several_topics_is_read_as_written():
    part = PartitionProgress(until_offset=3, topic_id="x", latest_offset=4)
    was = StreamProgress(
        inputs={"events": InputProgress(partitions={1: part}, places=(TopicPartition("a", 0), TopicPartition("b", 2)))}
    )
    assert msgspec.json.decode(as_json(was), type=StreamProgress) == was


SEVERAL = replace(
    Source(name="events", topic="a, b", topics=("a", "b"), fields={}, timestamp_range_ms=(0, 1), bound_ms=0),
    topic_partitions=(TopicPartition("a", 0), TopicPartition("b", 3)),
)


def deleted(
    offsets: list[int],
    *,
    read_to: int,
    latest: int | None,
    end: int | None = None,
    accepted: int | None = None,
    waiting: list[int] | None = None,
) -> tuple[Offsets, Offsets]:
    """Checks a batch without the topic of input partition 1."""
    rows = pl.DataFrame({"partition": [1] * len(offsets), "offset": offsets}, schema={"partition": int, "offset": int})
    part = PartitionProgress(until_offset=read_to, latest_offset=latest)
    was = InputProgress(partitions={0: PartitionProgress(), 1: part}, places=SEVERAL.topic_partitions)
    ends = {} if end is None else {"a, b": {1: end}}
    batch = MicroBatch(batch_id=1, epoch=1, decided_at_ms=0, started_at_ms=0, read_at_ms=0, ends=ends)
    intact = LossCheck("t s", lambda: {} if accepted is None else {("events", 1, read_to): accepted}, nothing_to_reread)
    return intact.deleted(SEVERAL, rows, was, SeveralTopics(None, 2, {0: "id"}), batch, waiting or [])


def test_a_deleted_topic_read_to_its_end_leaves():
    assert deleted([], read_to=7, latest=7) == ({}, {})
    # In the batch that read its last records it stays, and as long as records of it wait (`max_drift`).
    assert deleted([7, 8], read_to=7, latest=7, end=9) == ({1: (7, 9)}, {})
    assert deleted([], read_to=7, latest=7, waiting=[1]) == ({1: (7, 7)}, {})


@pytest.mark.parametrize(
    ("offsets", "latest", "end", "lost"),
    [
        ([], 12, None, (7, 12)),  # known to be there after the last batch
        ([], 7, 9, (7, 9)),  # planned, and gone before it was read
        ([7, 8], 7, 11, (9, 11)),  # gone while it was read
        ([7, 9], 7, 10, (8, 10)),  # a gap may be a loss, too
    ],
)
def test_unread_offsets_of_a_deleted_topic_are_lost(offsets, latest, end, lost):
    with pytest.raises(DataLost) as told:
        deleted(offsets, read_to=7, latest=latest, end=end)
    assert str(told.value) == (
        f"topic 'b', partition 3 (input partition 1): the topic was deleted before offsets {lost[0]} until {lost[1]} "
        "were read; records are never skipped silently: restore them, or accept the loss and continue from offset "
        f"{lost[1]}: tidemark accept-loss t s --source events --partition 1 --until {lost[1]} --by NAME --reason TEXT"
    )
    read, losses = deleted(offsets, read_to=7, latest=latest, end=end, accepted=lost[1])
    assert losses == {1: lost}
    assert read == {1: (7 if offsets else lost[1], lost[1])}
    # An earlier permission does not cover more.
    with pytest.raises(DataLost):
        deleted(offsets, read_to=7, latest=latest, end=end, accepted=lost[1] - 1)
