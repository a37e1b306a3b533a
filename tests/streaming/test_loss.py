"""A driver stops at lost records and continues once permitted.

A real topic loses records, and is recreated. The driver skips nothing else.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from streaming.drivers import OnlyDriver, SharedDriver
from streaming.sending import passing, send_numbers

from tidemark.control.process import wait_until
from tidemark.local import broker as embedded

TOPIC = "perishable"
TOML = passing("loss", TOPIC)


def tidemark(home: Path, *arguments: str) -> None:
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", code, "--home", str(home), *arguments], check=True)


def accept_loss(home: Path, until: int) -> None:
    place = ("--source", "events", "--partition", "0", "--until", str(until))
    tidemark(home, "accept-loss", "loss", "all", *place, "--by", "test", "--reason", "a test")


def recreate(address: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics().topics, "the end of the topic", 30)
    embedded.create_topics(address, {topic: partitions})


def test_a_loss_stops_the_stream_until_it_is_accepted(tmp_path: Path, broker: str, shared: SharedDriver) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    admin = AdminClient({"bootstrap.servers": broker})
    send_numbers(broker, TOPIC, 0, 1, 2)
    with OnlyDriver(tmp_path, TOML, broker, shared=shared) as driver:
        driver.wait_for("kept", 3)
        assert driver.drain() == 0
    send_numbers(broker, TOPIC, 3, 4, 5, 6)
    place = TopicPartition("perishable", 0, 5)
    admin.delete_records([place])[place].result()

    with OnlyDriver(tmp_path, TOML, broker, shared=shared) as driver:
        assert "topic 'perishable', partition 0: offsets 3 until 5 were lost unread" in driver.reason_to_fail()
    accept_loss(tmp_path, 5)
    with OnlyDriver(tmp_path, TOML, broker, shared=shared) as driver:
        assert [row["n"] for row in driver.wait_for("kept", 5)] == [0, 1, 2, 5, 6]
        assert driver.drain() == 0


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_recreated_topic_is_known_by_its_id(tmp_path: Path, broker: str, shared: SharedDriver, shards: int) -> None:
    topic = f"recreated_{shards}"
    toml = passing("loss", topic).replace("window =", f"shards = {shards}\nwindow =")
    embedded.create_topics(broker, {topic: 2})
    send_numbers(broker, topic, 0, 1, 2)
    with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
        driver.wait_for("kept", 3)
        driver.stop()  # all of its process, in which no other stream runs now
        try:
            recreate(broker, topic, 1)
            # The new topic has more records than the stream has read of the earlier one, and one partition less.
            send_numbers(broker, topic, *range(100, 105))
        finally:
            driver.wake()  # later tests use this process, too
        assert driver.exit() == 1
        reason = driver.reason_to_fail()
    assert f"topic '{topic}' was recreated: its id was" in reason
    assert "partition 0 was read until offset 3 of the earlier topic; the new one has offsets 0 until 5;" in reason

    with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
        assert driver.reason_to_fail() == reason, "at a start, too"
    command = shlex.split(reason[reason.index("accept-loss") :])
    tidemark(tmp_path, *("test" if word in {"NAME", "TEXT"} else word for word in command))
    with OnlyDriver(tmp_path, toml, broker, shared=shared) as driver:
        driver.wait_for("kept", 8)
        send_numbers(broker, topic, 105)
        assert [row["n"] for row in driver.wait_for("kept", 9)] == [0, 1, 2, *range(100, 106)]
        assert driver.drain() == 0
        lost_until = [row["lost_until_offset"] for row in driver.rows("partition_batches")]
    assert [until for until in lost_until if until is not None][-1] == 0
