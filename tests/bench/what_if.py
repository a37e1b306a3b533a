"""Compares what-if without a delay to streams that never had it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import Figure, by_turns
from streaming.drivers import PROJECT, Driver

from tidemark.demo.feed_record import PARTITIONS
from tidemark.local import broker
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, OPERATOR_WINDOWS, Table
from tidemark.model.topology import Topology, load
from tidemark.reports.what_if.estimates import WorkChange, distances_of, what_if

FLIGHTS = PROJECT / "jobs" / "topologies" / "flights.toml"
SLOWED, DELAY_MS = "carrier_state", 400
REPLAY = ["--from", "2013-06-27", "--to", "2013-06-28", "--speed", "1440", "--weather-first", "--seed", "7"]
WITHIN = 0.1


def figures(runs: int) -> Iterator[Figure]:
    """Compares median critical paths of a day, played in a minute."""
    sides = {"without": lambda: _latency_ms(delay_ms=0), "what_if": lambda: _latency_ms(delay_ms=DELAY_MS)}
    found = by_turns(sides, runs)
    without = median(found["without"])
    spread = (max(found["without"]) - min(found["without"])) / without
    yield Figure("critical path without the delay", found["without"], unit="ms")
    yield Figure("critical path with the delay, what-if without it", found["what_if"], unit="ms")
    off = abs(median(found["what_if"]) / without - 1)
    yield Figure("what-if is off by, as a part", [off], max(WITHIN, spread), at_most=True, unit="")


def _latency_ms(*, delay_ms: int) -> float:
    """Returns the median critical path, calculated without the run's delay."""
    topology = load(FLIGHTS)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        _play(home, stack, delay_ms=delay_ms)
        windows, batches = (_of_both(home / "warehouse", topology, table) for table in (OPERATOR_WINDOWS, BATCHES))
    changes = [WorkChange(operator=SLOWED, less_ms=delay_ms)]
    found = what_if(windows, batches, topology.upstreams, changes, distances_ms=distances_of(topology))
    return median(window.then.latency_ms for window in found)


def _of_both(warehouse: Path, topology: Topology, table: Table) -> pl.DataFrame:
    """The rows of *table* of both drivers."""
    layout = Layout(warehouse)
    paths = (layout.stream_table(topology.name, sub.name, table.name) for sub in topology.sub_topologies)
    return pl.concat(pl.read_delta(str(path)) for path in paths)


def _play(home: Path, stack: ExitStack, *, delay_ms: int) -> None:
    (home / FLIGHTS.name).write_text(FLIGHTS.read_text())
    stack.callback(broker.stop, home / "broker")
    address = broker.start(home / "broker").address
    broker.create_topics(address, {**PARTITIONS, "carrier_delays": 1})
    drivers = []
    for sub in ("status", "carriers"):
        slow = ("--slow", f"{SLOWED}={delay_ms}") if delay_ms and sub == "carriers" else ()
        drivers.append(Driver(sub, home, address, *slow, topology="flights"))
        stack.callback(drivers[-1].end)
    for driver in drivers:
        driver.wait(lambda driver=driver: driver.control.heartbeat() is not None, "a heartbeat")
    drivers[0].wait(lambda: bool(drivers[0].offsets()), "a first batch")
    replay = [sys.executable, str(PROJECT / "jobs" / "replay.py"), "--bootstrap", address, *REPLAY]
    subprocess.run(replay, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    drivers[0].read_everything(address, {topic: topic for topic in PARTITIONS})
    for driver in drivers:
        assert driver.drain() == 0
