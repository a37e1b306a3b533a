"""A real driver is stopped, another one takes over, the first wakes up: it ends, and every record was read once."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from streaming.drivers import OnlyDriver
from streaming.sending import passing, send_numbers

from tidemark.embedded import broker as embedded
from tidemark.spec.layout import Layout
from tidemark.spec.topology import parse
from tidemark.stream.evidence import evidence
from tidemark.stream.soundness import findings
from tidemark.stream.wiring import Stream

TOPIC = "handed_over"
TOML = passing("handover", TOPIC)


def test_a_driver_that_wakes_up_after_it_was_taken_over_ends_and_has_written_nothing(
    tmp_path: Path, broker: str
) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 0, 1)
    with OnlyDriver(tmp_path, TOML, broker) as older:
        older.wait_for("kept", 2)
        older.stop()
        beat = older.control.heartbeat()
        assert beat is not None
        older.control.beat(replace(beat, at_ms=0))  # as after a long time
        send_numbers(broker, TOPIC, 2, 3)
        with OnlyDriver(tmp_path, TOML, broker, "--take-over") as newer:
            newer.wait_for("kept", 4)
            send_numbers(broker, TOPIC, 4)
            assert older.wake() == 3
            kept = newer.wait_for("kept", 5)
            assert newer.drain() == 0
    assert [row["n"] for row in kept] == [0, 1, 2, 3, 4]
    last = older.control.heartbeat()
    assert last is not None
    assert (last.state, last.epoch) == ("drained", 2)
    topology = parse(tomllib.loads(TOML), file="handover.toml")
    stream = Stream(topology, topology.sub_topology("all"), Layout(tmp_path / "warehouse"))
    assert findings(evidence(stream)) == []
