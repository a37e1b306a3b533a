"""Measures a driver's CPU seconds per million JSON records.

A record has 150 bytes. 20,000 keys are in 4 partitions, and 15 % of the records change their key's value.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.idle import cpu_s
from bench.ratios import Figure
from confluent_kafka import Producer
from streaming.drivers import OnlyDriver

from tidemark.local import broker

MILLION = 1_000_000
SIZES = tuple(int(float(size) * MILLION) for size in os.environ.get("MILLIONS", "1 3").split())
PARTITIONS, KEYS, CHANGES_PERCENT = 4, 20_000, 15
PATIENCE_S = 600
TO_BOARD = """
[operators.latest]
kind = "table"
input = "readings"
key = ["id"]
columns = ["status", "amount"]

[operators.board]
kind = "sink"
input = "latest"
table = "board"
"""
"""The operators after the source `readings`."""
TOPOLOGY = (
    """
name = "bench"
level = "info"

[operators.readings]
kind = "source"
topic = "readings_{records}"
fields = "id string, status string, amount bigint, note string, at bigint"
timestamp = "at"
bound = "3 s"
"""
    + TO_BOARD
)


def figures(runs: int) -> Iterator[Figure]:
    """Measures both sizes in turns, and a million by their difference."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        address = broker.start(home / "broker").address
        stack.callback(broker.stop, home / "broker")
        for size in SIZES:
            send(address, f"readings_{size}", range(size))
        took: dict[int, list[float]] = {size: [] for size in SIZES}
        for run in range(runs):
            for size in SIZES:
                took[size].append(_cpu_s(home / f"{run}_{size}", address, size))
                sys.stderr.write(f"{size:,} records: {took[size][-1]:.2f} CPU s\n")
    first, last = SIZES[0], SIZES[-1]
    for size, values in took.items():
        yield Figure(f"{size:,} JSON records, from the start of the driver", values, unit="CPU s")
    each = [(b - a) * MILLION / (last - first) for a, b in zip(took[first], took[last], strict=True)]
    yield Figure("each further million", each, unit="CPU s")


def _cpu_s(home: Path, address: str, records: int) -> float:
    """Returns CPU seconds of a new driver until it has read *records*."""
    home.mkdir()
    with OnlyDriver(home, TOPOLOGY.format(records=records), address) as driver:
        driver.read_everything(address, {"readings": f"readings_{records}"}, PATIENCE_S)
        return cpu_s(driver.pid)


def send(address: str, topic: str, records: range) -> None:
    """Sends the *records* with these numbers; keys come again each round."""
    if records.start == 0:
        broker.create_topics(address, {topic: PARTITIONS})
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": MILLION})
    for number in records:
        key, turn = number % KEYS, number // KEYS
        # By the turn and the key: 15 of a hundred turns of a key differ from the turn before.
        amount = key * 1_000 + (turn * CHANGES_PERCENT + key) // 100
        at_ms = 1_400_000_000_000 + number // 100
        value = (
            f'{{"id": "sensor-{key:06d}", "status": "in service", "amount": {amount}, '
            f'"note": "as read at the gate of hall five", "at": {at_ms}, "site": "north-west 12"}}'
        )
        producer.produce(topic, value.encode(), b"%d" % key, key % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > MILLION // 2:
                producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
