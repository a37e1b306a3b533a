"""A real driver on a full disk waits, reports it and continues.

The disk has Spark's checkpoint and all else.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from streaming.drivers import OnlyDriver
from streaming.sending import passing, send_numbers

from support.small_disk import small_disk
from tidemark.embedded import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings

TOPIC = "for_a_full_disk"
TOML = passing("full", TOPIC)


def test_a_driver_waits_for_a_full_disk_and_loses_no_record(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 0, 1)
    with (
        small_disk(tmp_path / "warehouse", megabytes=16) as disk,
        OnlyDriver(tmp_path, TOML, broker) as driver,
    ):

        def reason() -> str | None:
            beat = driver.control.heartbeat()
            return beat.reason if beat else None

        driver.wait_for("kept", 2)
        disk.fill()
        send_numbers(broker, TOPIC, 2, 3)
        driver.wait(lambda: reason() == "cannot write: No space left on device", "a driver that waits")
        disk.free()
        kept = driver.wait_for("kept", 4)
        driver.wait(lambda: reason() is None, "a driver that does not wait")
        assert driver.drain() == 0
        topology = parse(tomllib.loads(TOML), file="full.toml")
        stream = Stream(topology, topology.sub_topology("all"), Layout(disk.home))
        assert findings(evidence(stream)) == []
    assert [row["n"] for row in kept] == [0, 1, 2, 3]
