"""The disk under a real driver is full, for Spark's checkpoint as for all else: it waits, says so, and goes on."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from confluent_kafka import Producer
from small_disk import small_disk
from streaming.drivers import OnlyDriver

from tidemark.embedded import broker as embedded
from tidemark.spec.layout import Layout
from tidemark.spec.topology import parse
from tidemark.stream.evidence import evidence
from tidemark.stream.soundness import findings
from tidemark.stream.wiring import Stream

NOON = 1_400_000_000_000
TOML = """
name = "full"
window = "5 s"
trigger = "1 s"

[operators.events]
kind = "source"
sub_topology = "all"
topic = "for_a_full_disk"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 min"

[operators.kept]
kind = "sink"
input = "events"
table = "kept"
"""


def send(address: str, *numbers: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for n in numbers:
        producer.produce("for_a_full_disk", json.dumps({"n": n, "at": NOON + n}), "k", 0)
    assert producer.flush(30) == 0


def test_a_driver_waits_for_a_full_disk_and_then_every_record_is_there_once(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {"for_a_full_disk": 1})
    send(broker, 0, 1)
    with (
        small_disk(tmp_path / "warehouse", megabytes=16) as disk,
        OnlyDriver(tmp_path, TOML, broker) as driver,
    ):

        def reason() -> str | None:
            beat = driver.control.heartbeat()
            return beat.reason if beat else None

        driver.wait_for("kept", 2)
        disk.fill()
        send(broker, 2, 3)
        driver.wait(lambda: reason() == "cannot write: No space left on device", "a driver that waits")
        disk.free()
        kept = driver.wait_for("kept", 4)
        driver.wait(lambda: reason() is None, "a driver that does not wait")
        assert driver.drain() == 0
        topology = parse(tomllib.loads(TOML), file="full.toml")
        stream = Stream(topology, topology.sub_topology("all"), Layout(disk.home))
        assert findings(evidence(stream)) == []
    assert [row["n"] for row in kept] == [0, 1, 2, 3]
