"""A stream continues from its checkpoint after its warehouse was moved.

It is stopped during the move.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from streaming.drivers import OnlyDriver
from streaming.sending import passing, send_numbers

from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings

TOPIC = "moved"
TOML = passing("moving", TOPIC)


@pytest.mark.long  # a minute, for starts that other tests make
def test_a_stream_continues_after_its_warehouse_was_moved(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 0, 1)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    with OnlyDriver(old, TOML, broker) as before:
        before.wait_for("kept", 2)
        assert before.drain() == 0
    old.rename(new)
    topology = parse(tomllib.loads(TOML), file="moving.toml")
    stream = Stream(topology, topology.sub_topology("all"), Layout(new / "warehouse"))
    assert findings(evidence(stream)) == []
    send_numbers(broker, TOPIC, 2)
    with OnlyDriver(new, TOML, broker) as after:
        kept = after.wait_for("kept", 3)
        assert after.drain() == 0
    assert [row["n"] for row in kept] == [0, 1, 2]
