"""A driver stops at lost records and continues once permitted.

A real topic loses records, and is recreated. The driver skips nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from streaming.drivers import OnlyDriver
from streaming.sending import passing, send_numbers

from tidemark.control.process import wait_until
from tidemark.embedded import broker as embedded

TOPIC = "perishable"
TOML = passing("loss", TOPIC)


def accept_loss(home: Path, until: int) -> None:
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--home", str(home), "accept-loss", "loss", "all"]
    command += ["--source", "events", "--partition", "0", "--until", str(until), "--by", "test", "--reason", "a test"]
    subprocess.run(command, check=True)


def test_a_loss_stops_the_stream_until_it_is_accepted(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    admin = AdminClient({"bootstrap.servers": broker})
    send_numbers(broker, TOPIC, 0, 1, 2)
    with OnlyDriver(tmp_path, TOML, broker) as driver:
        driver.wait_for("kept", 3)
        assert driver.drain() == 0
    send_numbers(broker, TOPIC, 3, 4, 5, 6)
    place = TopicPartition("perishable", 0, 5)
    admin.delete_records([place])[place].result()

    with OnlyDriver(tmp_path, TOML, broker) as driver:
        assert "topic 'perishable', partition 0: offsets 3 until 5 were lost unread" in driver.reason_to_fail()
    accept_loss(tmp_path, 5)
    with OnlyDriver(tmp_path, TOML, broker) as driver:
        assert [row["n"] for row in driver.wait_for("kept", 5)] == [0, 1, 2, 5, 6]
        assert driver.drain() == 0
    admin.delete_topics(["perishable"])["perishable"].result()
    wait_until(lambda: "perishable" not in admin.list_topics().topics, "the end of the topic", 30)
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 100, 101)

    with OnlyDriver(tmp_path, TOML, broker) as driver:
        assert "recreated: it ends at offset 2, but 7 was the next to read" in driver.reason_to_fail()
    accept_loss(tmp_path, 0)
    with OnlyDriver(tmp_path, TOML, broker) as driver:
        driver.wait_for("kept", 7)
        send_numbers(broker, TOPIC, 102)
        assert [row["n"] for row in driver.wait_for("kept", 8)] == [0, 1, 2, 5, 6, 100, 101, 102]
        accepted = [loss for row in driver.rows("batches") for loss in row["accepted_loss"] or ()]
    assert accepted == [
        {"source": "events", "partition": 0, "from_offset": 3, "until_offset": 5},
        {"source": "events", "partition": 0, "from_offset": 7, "until_offset": 0},
    ]
