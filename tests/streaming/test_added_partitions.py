"""A running stream reads partitions that are added to its topic."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from streaming.drivers import OnlyDriver, SharedDriver, reads_of
from streaming.sending import NOON_MS, passing, send_numbers

from tidemark.control.process import wait_until
from tidemark.local import broker as embedded

BOUND_MS = 60_000


def add_partitions(address: str, topic: str, number: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_partitions([NewPartitions(topic, number)])[topic].result()
    wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == number, "the new partitions", 30)


def watermarks(driver: OnlyDriver) -> dict[int | None, list[tuple[int | None, str | None]]]:
    """Returns the watermarks of each partition and what held them, in order."""
    moved = defaultdict(list)
    for row in driver.rows("partition_batches"):
        if row["source"] == "events":
            moved[row["partition"]].append((row["watermark"], row["blocked_by"]))
    return moved


def watermark(n: int) -> int:
    """Returns the watermark of a partition whose newest record is *n*."""
    return NOON_MS + n - BOUND_MS - 1


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_added_partitions_are_read_from_their_first_record(
    tmp_path: Path, broker: str, shared: SharedDriver, shards: int
) -> None:
    topic = f"growing_{shards}"
    toml = passing("grows", topic).replace("window =", f"shards = {shards}\nwindow =")
    embedded.create_topics(broker, {topic: 2})
    with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
        send_numbers(broker, topic, 0, 1, 2)
        send_numbers(broker, topic, 10, 11, 12, partition=1)
        driver.wait_for("kept", 6)
        add_partitions(broker, topic, 4)
        send_numbers(broker, topic, 3)
        send_numbers(broker, topic, 20, 21, 22, partition=2)
        driver.wait_for("kept", 10)
        send_numbers(broker, topic, 30, partition=3)
        kept = driver.wait_for("kept", 11)
        assert driver.drain() == 0
        reads, moved = reads_of(driver.rows("partition_batches")), watermarks(driver)
    assert {number: moved[number][-1] for number in range(4)} == {
        0: (watermark(3), None),
        1: (watermark(12), None),
        2: (watermark(22), None),
        3: (watermark(30), None),
    }
    # A partition without a record holds the source back where it was before the partition was added.
    assert moved[3][0] == (None, None)
    assert moved[None][-2:] == [(watermark(2), "3"), (watermark(3), "0")]
    assert sorted(row["n"] for row in kept) == [0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 30]
    read: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for part in chain.from_iterable(reads.values()):
        read[part.partition].append((part.from_offset, part.until_offset))
    assert {number: (ranges[0][0], ranges[-1][1]) for number, ranges in read.items()} == {
        0: (0, 4), 1: (0, 3), 2: (0, 3), 3: (0, 1),
    }  # fmt: skip
    assert all(one[1] == other[0] for ranges in read.values() for one, other in pairwise(ranges))
