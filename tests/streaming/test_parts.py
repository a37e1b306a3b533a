"""A batch too large runs in parts, while its drivers are killed."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake
from streaming.drivers import PROJECT, OnlyDriver

from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings

NOON = 1_400_000_000_000
SOURCE = 'kind = "source"\nfields = "n int, at bigint"\ntimestamp = "at"\nbound = "1 s"\n'
TOML = f"""
name = "parted"
trigger = "1 s"
shards = SHARDS
[operators.events]
{SOURCE}topic = "parted_events"
max_records = MOST
[operators.lines]
{SOURCE}delta = "outside/lines"
[operators.both]
kind = "union"
inputs = ["events", "lines"]
[operators.kept]
kind = "sink"
input = "both"
table = "kept"
"""


def send(address: str, topic: str, numbers: range) -> None:
    """Sends a record per number, alternating between two partitions."""
    producer = Producer({"bootstrap.servers": address})
    for n in numbers:
        producer.produce(topic, json.dumps({"n": n, "at": NOON + n}).encode(), b"k", n % 2)
    assert producer.flush(30) == 0


class Driver(OnlyDriver):
    """A driver that reads *most* records and is killed at *step*.

    Its JVM is killed, too; None: it is not killed.
    """

    def __init__(self, home: Path, address: str, shards: int, most: int, step: str | None = None) -> None:
        told = home / "told"
        told.unlink(missing_ok=True)
        if step is not None:
            told.write_text(f"9 {step}")
        self.script = (str(PROJECT / "tests" / "chaos" / "driver.py"), str(told))
        super().__init__(home, toml(shards, most), address)


def toml(shards: int, most: int) -> str:
    return TOML.replace("MOST", str(most)).replace("SHARDS", str(shards)).replace("parted_events", f"parted_{shards}")


def faults(home: Path, shards: int) -> list[str]:
    topology = parse(tomllib.loads(toml(shards, 1)), file="parted.toml")
    stream = Stream(topology, topology.sub_topologies[0], Layout(home / "warehouse"))
    return [finding.lines for finding in findings(evidence(stream))]


@pytest.mark.long  # minutes; tests/delta/test_parts.py has crashes between parts in one process
@pytest.mark.parametrize("shards", [1, 2])
def test_each_record_counts_once_across_kills_between_parts(tmp_path: Path, broker: str, shards: int) -> None:
    columns = {"n": pa.array([100, 101, 102], pa.int32()), "at": pa.array([NOON] * 3, pa.int64())}
    write_deltalake(tmp_path / "warehouse" / "outside" / "lines", pa.table(columns))
    topic = f"parted_{shards}"
    embedded.create_topics(broker, {topic: 2})
    send(broker, topic, range(40))
    # The third is killed while it carries out what the second has decided; the fourth, before Spark knows of the end.
    for most, step in [(1_000, "planned"), (10, "committed kept"), (10, "decided"), (5, "done")]:
        with Driver(tmp_path, broker, shards, most, step) as driver:
            assert driver.exit() == -9, step
        assert faults(tmp_path, shards) == []
    with Driver(tmp_path, broker, shards, 5) as driver:
        driver.wait_for("kept", 43)
        send(broker, topic, range(40, 45))
        rows = driver.wait_for("kept", 48)
        assert driver.drain() == 0
    assert faults(tmp_path, shards) == []
    batches = defaultdict(list)
    for row in rows:
        batches[row["batch_id"]].append(row["n"])
    assert sorted(n for numbers in batches.values() for n in numbers) == [*range(45), 100, 101, 102]
    assert sorted(batches[0]) == [*range(10), 100, 101, 102]
    left = [range(10, 14), range(14, 20), range(20, 24), range(24, 30), range(30, 34), range(34, 40)]
    assert [sorted(batches[number]) for number in range(1, 7)] == [[*numbers] for numbers in left]
