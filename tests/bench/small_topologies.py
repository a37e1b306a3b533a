"""Measures a driver that many small topologies share: CPU a batch, and cores."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cost import TO_BOARD
from bench.idle import cpu_s
from bench.ratios import Figure
from confluent_kafka import Producer
from streaming.drivers import Driver, SharedDriver

from tidemark.local import broker

TOPOLOGIES = int(os.environ.get("TOPOLOGIES", "20"))
RECORDS_A_S, TRIGGER_S, KEYS = 5, 5, 50
WARM_BATCHES = 24
"""Batches of each stream before anything is measured: the JVM has compiled its code then."""
MEASURED_S = 60
CHANGES = 3
"""Records of a key with the same value, one after the other."""
TOPOLOGY = (
    """
name = "small_{number}"
level = "info"
trigger = "{trigger} s"

[operators.readings]
kind = "source"
topic = "readings_{number}"
fields = "id string, status string, amount bigint, at bigint"
timestamp = "at"
bound = "3 s"
"""
    + TO_BOARD
)


def figures(runs: int) -> Iterator[Figure]:
    """Measures *runs* minutes of one driver."""
    of = f"{TOPOLOGIES} topologies, {RECORDS_A_S} records/s each, a trigger of {TRIGGER_S} s"
    with TemporaryDirectory() as folder, running(Path(folder)) as (pid, drivers):
        found = [_minute(pid, drivers) for _ in range(runs)]
    a_batch, cores = zip(*found, strict=True)
    yield Figure(f"{of}: a batch", a_batch, 0.25, at_most=True, unit="CPU s")
    yield Figure(f"{of}: the driver", cores, 1.0, at_most=True, unit="cores")


@contextmanager
def running(home: Path) -> Iterator[tuple[int, list[Driver]]]:
    """Runs the topologies in one driver under *home*, with records, and warms it up.

    Yields the session of its processes, and its streams.
    """
    with ExitStack() as stack:
        address = broker.start(home / "broker").address
        stack.callback(broker.stop, home / "broker")
        broker.create_topics(address, {f"readings_{number}": 1 for number in range(TOPOLOGIES)})
        shared = stack.enter_context(SharedDriver(home))
        stack.enter_context(_records(address))
        drivers = []
        for number in range(TOPOLOGIES):
            name = f"small_{number}"
            (home / f"{name}.toml").write_text(TOPOLOGY.format(number=number, trigger=TRIGGER_S))
            drivers.append(Driver("readings", home, address, topology=name, shared=shared))
        for driver in drivers:
            driver.wait_for_batches(WARM_BATCHES)
        yield drivers[0].pid, drivers


def _minute(pid: int, drivers: list[Driver]) -> tuple[float, float]:
    """Returns CPU seconds a batch, and cores, of MEASURED_S seconds."""
    cpu_before, batches_before, began_s = cpu_s(pid), batches(drivers), time.monotonic()
    time.sleep(MEASURED_S)
    used_s, seconds = cpu_s(pid) - cpu_before, time.monotonic() - began_s
    return used_s / (batches(drivers) - batches_before), used_s / seconds


def batches(drivers: list[Driver]) -> int:
    """Returns the batches of all streams so far, as of their last heartbeats."""
    return sum(beat.batches for driver in drivers if (beat := driver.beat()))


@contextmanager
def _records(address: str) -> Iterator[None]:
    """Sends RECORDS_A_S records a second to each topic until the context ends."""
    over = threading.Event()

    def send() -> None:
        producer, number, began_s = Producer({"bootstrap.servers": address, "linger.ms": 5}), 0, time.monotonic()
        while not over.wait(max(0.0, began_s + number / RECORDS_A_S - time.monotonic())):
            turn, at_ms = number // (KEYS * CHANGES), time.time_ns() // 1_000_000
            value = {"id": f"sensor-{number % KEYS}", "status": "in service", "amount": turn, "at": at_ms}
            for topic in range(TOPOLOGIES):
                producer.produce(f"readings_{topic}", json.dumps(value).encode())
            producer.flush()
            number += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
