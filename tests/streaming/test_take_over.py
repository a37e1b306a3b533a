"""A paused driver that was replaced ends; records are read once.

It ends when it resumes.
"""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

from streaming.drivers import OnlyDriver, SharedDriver
from streaming.sending import passing, send_numbers

from support.consumer_groups import groups
from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings

TOPIC = "handed_over"
TOML = passing("handover", TOPIC)


def test_a_driver_that_wakes_up_replaced_ends_without_writing(
    tmp_path: Path, broker: str, shared: SharedDriver
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
        with OnlyDriver(tmp_path, TOML, broker, "--take-over", shared=shared) as newer:
            newer.wait_for("kept", 4)
            send_numbers(broker, TOPIC, 4)
            older.wake()
            assert older.exit() == 3
            kept = newer.wait_for("kept", 5)
            assert newer.drain() == 0
    assert [row["n"] for row in kept] == [0, 1, 2, 3, 4]
    last = older.control.heartbeat()
    assert last is not None
    assert (last.state, last.epoch) == ("drained", 2)
    topology = parse(tomllib.loads(TOML), file="handover.toml")
    stream = Stream(topology, topology.sub_topology("all"), Layout(tmp_path / "warehouse"))
    assert findings(evidence(stream)) == []


def test_a_driver_continues_when_an_older_one_plans_a_batch(tmp_path: Path, broker: str, shared: SharedDriver) -> None:
    topic = "planned_twice"
    embedded.create_topics(broker, {topic: 1})
    send_numbers(broker, topic, 0, 1)
    with OnlyDriver(tmp_path, passing("twice", topic), broker, shared=shared) as driver:
        driver.wait_for("kept", 2)
        plan_the_next_batch(driver.control.home / "checkpoint")
        send_numbers(broker, topic, 2)
        kept = driver.wait_for("kept", 3)
        assert driver.drain() == 0
    assert [row["n"] for row in kept] == [0, 1, 2]
    assert "restarting the query" in driver.log()
    assert not [group for group in groups(broker) if "twice" in group], "without the key nothing is written"


def plan_the_next_batch(checkpoint: Path) -> None:
    """Writes Spark's plan of an empty batch, as another query would."""
    while True:
        newest = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
        plan = checkpoint / "plan"
        shutil.copyfile(checkpoint / "offsets" / str(newest), plan)
        try:
            (checkpoint / "offsets" / str(newest + 1)).hardlink_to(plan)
        except FileExistsError:  # the driver was first
            continue
        plan.unlink()
        return
