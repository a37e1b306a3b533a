"""The offsets of a stream in a consumer group never hold the stream up, and are written until they are there."""

from __future__ import annotations

import tomllib

import pytest

from support.topologies import map_of, source, topology_of
from tidemark.model.topology import parse
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress, TopicPartition
from tidemark.stream.kafka import groups
from tidemark.stream.kafka.groups import GroupOffsets, Offsets, offsets_by_cluster

GROUP = "tidemark-shop-orders"
HOUR_S = 3_600


class Cluster:
    """A cluster that gives *reasons* against the next writes, one each; None: it raises."""

    def __init__(self, *reasons: str | None) -> None:
        self.reasons, self.written = [*reasons], list[tuple[str, Offsets]]()
        self.offsets: Offsets = {"default": {TopicPartition("orders", 0): 2}}
        self.now_s = 0.0

    def write(self, group: str, offsets: Offsets) -> list[str]:
        if self.reasons:
            reason = self.reasons.pop(0)
            if reason is None:
                raise LookupError(group)
            return [reason]
        self.written.append((group, offsets))
        return []

    def group(self, name: str | None = GROUP) -> GroupOffsets:
        return GroupOffsets(name, lambda: self.offsets, self.write, lambda: self.now_s)


def test_the_same_offsets_are_written_again_after_an_hour() -> None:
    cluster = Cluster()
    group = cluster.group()
    for at_s in (0, HOUR_S - 1, HOUR_S, HOUR_S + 1):
        cluster.now_s = at_s
        group.write()
    assert cluster.written == [(GROUP, {"default": {TopicPartition("orders", 0): 2}})] * 2
    cluster.offsets = {"default": {TopicPartition("orders", 0): 3}}
    group.write()
    assert cluster.written[2:] == [(GROUP, {"default": {TopicPartition("orders", 0): 3}})]


def test_each_reason_is_logged_once_until_a_write_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("no right", "no right", None, "no right")
    group = cluster.group()
    for _ in range(5):
        group.write()
    assert cluster.written == [(GROUP, cluster.offsets)]
    of_log = "consumer group tidemark-shop-orders"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        f"{of_log}: no right; the stream goes on, and writes its offsets again",
        f"{of_log}: LookupError('tidemark-shop-orders'); the stream goes on, and writes its offsets again",
    ]
    cluster.reasons, cluster.offsets = ["no right"], {}
    group.write()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 3


def test_the_thread_writes_after_a_failure_and_a_last_time_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "RETRIED_EVERY_S", 0.001)
    cluster = Cluster("silence", "silence")
    group = cluster.group()
    group.start()
    group.wake()
    while not cluster.written:
        pass
    cluster.offsets = {"default": {TopicPartition("orders", 0): 5}}
    group.end()
    assert [offsets["default"][TopicPartition("orders", 0)] for _, offsets in cluster.written] == [2, 5]


def test_without_a_group_nothing_is_written() -> None:
    cluster = Cluster()
    group = cluster.group(None)
    group.start()
    group.wake()
    group.end()
    assert cluster.written == []


def test_each_cluster_gets_the_offsets_of_its_own_topics() -> None:
    text = topology_of(
        {"kafka": {"eu": {"bootstrap": "eu:9092"}}},
        orders=source(topic="orders"),
        both=source(topic=None, topics=["a", "b"], kafka="eu", idle_after="1 min"),
        incoming=source(topic=None, delta="incoming"),
        never_read=source(topic="never"),
        kept={"kind": "union", "inputs": ["orders", "both", "incoming", "never_read"]},
        all=map_of("kept", select={"id": "id"}),
    )
    (sub,) = parse(tomllib.loads(text), file="play.toml").sub_topologies

    def read(*offsets: int, **others: tuple[TopicPartition, ...]) -> InputProgress:
        parts = {number: PartitionProgress(until_offset=offset) for number, offset in enumerate(offsets)}
        return InputProgress(partitions=parts, **others)

    places = (TopicPartition("b", 0), TopicPartition("a", 0))
    inputs = {"orders": read(7, 0), "both": read(3, 4, places=places), "incoming": read(8)}
    assert offsets_by_cluster(sub, StreamProgress(inputs=inputs)) == {
        "default": {TopicPartition("orders", 0): 7, TopicPartition("orders", 1): 0},
        "eu": {TopicPartition("b", 0): 3, TopicPartition("a", 0): 4},
    }
    assert offsets_by_cluster(sub, StreamProgress()) == {}
