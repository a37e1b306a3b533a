"""A source over several topics numbers their partitions, and keeps the numbers.

Records and topics are real; expected values were worked out by hand.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from streaming.drivers import OnlyDriver, SharedDriver, reads_of
from streaming.sending import NOON_MS, passing, send_numbers
from streaming.test_loss import recreate, tidemark

from tidemark.control.process import wait_until
from tidemark.local import broker as embedded
from tidemark.stream.journal.entries import Journal

BOUND_MS = 60_000


def reading(name: str, topics: str, *, shards: int = 1, more: str = "") -> str:
    """Returns a topology that copies *topics*, as TOML, to `kept`."""
    toml = passing(name, "x").replace("window =", f"shards = {shards}\nwindow =")
    return toml.replace('topic = "x"', f'topics = {topics}\nidle_after = "1 h"\n{more}')


def delete(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics().topics, "the end of the topic", 30)


def places(driver: OnlyDriver) -> dict[int, str]:
    """Returns the topic and partition of each input partition."""
    return {
        row["partition"]: row["topic_partition"]
        for row in driver.rows("partition_batches")
        if row["source"] == "events" and row["topic_partition"] is not None
    }


def read_offsets(driver: OnlyDriver) -> dict[int, list[tuple[int, int]]]:
    """Returns the offsets that batches read of each input partition."""
    read: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for parts in reads_of(driver.rows("partition_batches")).values():
        for part in parts:
            if part.from_offset < part.until_offset:
                read[part.partition].append((part.from_offset, part.until_offset))
    return read


def source_watermarks(driver: OnlyDriver) -> list[tuple[int | None, str | None]]:
    """Returns the watermarks of the source and what held them, in order."""
    rows = [row for row in driver.rows("partition_batches") if row["source"] == "events" and row["partition"] is None]
    return [(row["watermark"], row["blocked_by"]) for row in rows]


def watermark(n: int) -> int:
    """Returns the watermark of a partition whose newest record is *n*."""
    return NOON_MS + n - BOUND_MS - 1


def read_by_journal(driver: OnlyDriver) -> dict[int, int]:
    """Returns the offset up to which each input partition was read."""
    entry = Journal(driver.control.home / "journal", "data").newest()
    assert entry is not None
    return entry.notes.progress.inputs["events"].offsets_read


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_topic_found_while_running_keeps_its_number(
    tmp_path: Path, broker: str, shared: SharedDriver, shards: int
) -> None:
    name = f"found{shards}"
    toml = reading(name, f"'{name}\\.[a-z]+'", shards=shards)
    embedded.create_topics(broker, {f"{name}.m": 2, f"{name}.q": 1, f"{name}.m2": 1})
    send_numbers(broker, f"{name}.m", 0, 1)
    send_numbers(broker, f"{name}.m", 10, 11, 12, partition=1)
    send_numbers(broker, f"{name}.q", 20)
    send_numbers(broker, f"{name}.m2", 99)
    # This driver has its own process, so that `end` kills it; `end` would drain a stream in the shared process.
    with OnlyDriver(tmp_path, toml, broker) as driver:
        driver.wait_for("kept", 6)
        # Its name comes first, its number last.
        embedded.create_topics(broker, {f"{name}.a": 2})
        send_numbers(broker, f"{name}.a", 30, 31, partition=1)
        driver.wait_for("kept", 8)
        send_numbers(broker, f"{name}.q", 21)
        driver.wait_for("kept", 9)
        driver.end()
    send_numbers(broker, f"{name}.a", 33)
    send_numbers(broker, f"{name}.m", 2)
    with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
        kept = driver.wait_for("kept", 11)
        send_numbers(broker, f"{name}.q", 22)
        driver.wait_for("kept", 12)
        assert driver.drain() == 0
        assert places(driver) == {
            0: f"{name}.m/0", 1: f"{name}.m/1", 2: f"{name}.q/0", 3: f"{name}.a/0", 4: f"{name}.a/1",
        }  # fmt: skip
        assert read_by_journal(driver) == {0: 3, 1: 3, 2: 3, 3: 1, 4: 2}
        # Each offset was read once.
        read = {number: [o for a, b in parts for o in range(a, b)] for number, parts in read_offsets(driver).items()}
        assert read == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [0], 4: [0, 1]}
        # The new topic's empty partition held time back where it was: at partition 0 with the record 1.
        assert (watermark(1), "3") in source_watermarks(driver)
        assert source_watermarks(driver)[-1] == (watermark(2), "0")
    assert sorted(row["n"] for row in kept)[:11] == [0, 1, 2, 10, 11, 12, 20, 21, 30, 31, 33]


def test_a_deleted_topic_that_was_read_holds_nothing_back(tmp_path: Path, broker: str, shared: SharedDriver) -> None:
    toml = reading("ends", '["ends_b", "ends_a"]', more="max_records = 100")
    embedded.create_topics(broker, {"ends_a": 1, "ends_b": 1})
    send_numbers(broker, "ends_a", 0, 1)
    send_numbers(broker, "ends_b", 500, 600)
    with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
        driver.wait_for("kept", 4)
        delete(broker, "ends_a")
        send_numbers(broker, "ends_b", 700)
        driver.wait_for("kept", 5)
        driver.wait(lambda: source_watermarks(driver)[-1] == (watermark(700), "1"), "the watermark of the other topic")
        assert source_watermarks(driver)[0] == (watermark(1), "0")
        # A topic of the same name later has the same number, and is read from its beginning.
        embedded.create_topics(broker, {"ends_a": 1})
        send_numbers(broker, "ends_a", 2, 3, 4)
        kept = driver.wait_for("kept", 8)
        assert driver.drain() == 0
        assert read_by_journal(driver) == {0: 3, 1: 3}
        assert places(driver) == {0: "ends_a/0", 1: "ends_b/0"}
    assert sorted(row["n"] for row in kept) == [0, 1, 2, 3, 4, 500, 600, 700]


@pytest.mark.long
def test_unread_records_of_a_deleted_topic_are_a_loss(tmp_path: Path, broker: str) -> None:
    toml = reading("cut", '"cut_[ab]"', more="max_records = 4")
    embedded.create_topics(broker, {"cut_a": 1, "cut_b": 1})
    send_numbers(broker, "cut_a", *range(400))
    send_numbers(broker, "cut_b", 900)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        driver.wait_for("kept", 5)
        driver.end()
        read_to = read_by_journal(driver)[0]
    delete(broker, "cut_a")
    with OnlyDriver(tmp_path, toml, broker) as driver:
        reason = driver.reason_to_fail()
        assert "topic 'cut_a', partition 0 (input partition 0): the topic was deleted" in reason
        assert f"before offsets {read_to} until 400 were read" in reason
        assert "tidemark accept-loss cut all --source events --partition 0 --until 400 --by NAME" in reason
    place = ("--source", "events", "--partition", "0", "--until", "400")
    tidemark(tmp_path, "accept-loss", "cut", "all", *place, "--by", "test", "--reason", "a test")
    send_numbers(broker, "cut_b", 901)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        kept = driver.wait_for("kept", read_to + 2)
        send_numbers(broker, "cut_b", 902)
        driver.wait_for("kept", read_to + 3)
        assert driver.drain() == 0
        names = ("source", "partition", "lost_from_offset", "lost_until_offset")
        rows = driver.rows("partition_batches")
        losses = [tuple(row[name] for name in names) for row in rows if row["lost_from_offset"] is not None]
        assert losses == [("events", 0, read_to, 400)]
        assert read_by_journal(driver) == {1: 3}
    assert sorted(row["n"] for row in kept)[: read_to + 2] == [*range(read_to), 900, 901]


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 2])
def test_a_recreated_topic_of_several_is_accepted_alone(tmp_path: Path, broker: str, shards: int) -> None:
    name = f"again{shards}"
    toml = reading(name, f'["{name}_a", "{name}_b"]', shards=shards)
    embedded.create_topics(broker, {f"{name}_a": 1, f"{name}_b": 1})
    send_numbers(broker, f"{name}_a", 0, 1)
    send_numbers(broker, f"{name}_b", 10)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        driver.wait_for("kept", 3)
        assert driver.drain() == 0
    recreate(broker, f"{name}_a", 1)
    send_numbers(broker, f"{name}_a", 2, 3, 4)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        reason = driver.reason_to_fail()
        assert f"topic '{name}_a' was recreated" in reason
        assert "partition 0 was read until offset 2 of the earlier topic" in reason
    new_id = reason.split("--topic-id ")[1].split()[0]
    place = ("--source", "events", "--topic-id", new_id, "--until", "0")
    tidemark(tmp_path, "accept-loss", name, "all", *place, "--by", "test", "--reason", "a test")
    with OnlyDriver(tmp_path, toml, broker) as driver:
        kept = driver.wait_for("kept", 6)
        send_numbers(broker, f"{name}_a", 5)
        send_numbers(broker, f"{name}_b", 11)
        kept = driver.wait_for("kept", 8)
        assert driver.drain() == 0
        assert read_by_journal(driver) == {0: 4, 1: 2}
    assert sorted(row["n"] for row in kept) == [0, 1, 2, 3, 4, 5, 10, 11]


@pytest.mark.long
def test_a_listed_topic_that_is_missing_is_an_error(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {"listed_a": 1})
    with OnlyDriver(tmp_path, reading("listed", '["listed_a", "listed_b"]'), broker) as driver:
        assert "topic 'listed_b'" in driver.reason_to_fail()


@pytest.mark.long
def test_a_pattern_may_match_its_first_topic_later(tmp_path: Path, broker: str) -> None:
    with OnlyDriver(tmp_path, reading("later", '"later-.*"'), broker) as driver:
        driver.wait(lambda: driver.control.heartbeat() is not None, "the driver")
        embedded.create_topics(broker, {"later-1": 1})
        send_numbers(broker, "later-1", 0, 1)
        assert [row["n"] for row in driver.wait_for("kept", 2)] == [0, 1]
        assert driver.drain() == 0
        assert (places(driver), read_by_journal(driver)) == ({0: "later-1/0"}, {0: 2})


def test_one_topic_becomes_several_and_another_list_goes_on_with_those_that_it_still_has(
    tmp_path: Path, broker: str, shared: SharedDriver
) -> None:
    embedded.create_topics(broker, {"listed.a": 1, "listed.b": 2, "listed.c": 1})
    send_numbers(broker, "listed.a", 5)
    send_numbers(broker, "listed.b", 10)
    send_numbers(broker, "listed.b", 70, partition=1)
    send_numbers(broker, "listed.c", 90)
    with OnlyDriver(tmp_path, passing("listed", "listed.b"), broker, shared=shared) as driver:
        driver.wait_for("kept", 2)
        assert driver.drain() == 0
    send_numbers(broker, "listed.b", 11)
    with OnlyDriver(tmp_path, reading("listed", '["listed.a", "listed.b"]'), broker, shared=shared) as driver:
        driver.wait_for("kept", 4)
        assert driver.drain() == 0
    send_numbers(broker, "listed.a", 6)  # never read
    send_numbers(broker, "listed.b", 12)
    with OnlyDriver(tmp_path, reading("listed", '["listed.b", "listed.c"]'), broker, shared=shared) as driver:
        driver.wait_for("kept", 6)
        send_numbers(broker, "listed.c", 91)
        kept = driver.wait_for("kept", 7)
        assert driver.drain() == 0
        assert places(driver) == {0: "listed.b/0", 1: "listed.b/1", 2: "listed.a/0", 3: "listed.c/0"}
        assert read_by_journal(driver) == {0: 3, 1: 1, 3: 2}
        moved = [watermark_ms for watermark_ms, _ in source_watermarks(driver) if watermark_ms is not None]
        # The partition 0 of b holds time back, and the topic a, which came later, cannot set it back.
        assert (moved[0], moved[-1], moved) == (watermark(10), watermark(12), sorted(moved))
    assert sorted(row["n"] for row in kept) == [5, 10, 11, 12, 70, 90, 91]
