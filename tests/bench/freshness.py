"""Measures record arrival to visible row, against Spark's own Delta sink."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import Figure, by_turns, ratios
from confluent_kafka import Producer
from streaming.drivers import OnlyDriver

from tidemark.control.process import wait_until
from tidemark.local import broker

TRIGGER_S = 2
BURSTS = 3
PATIENCE_S = 120
TOPOLOGY = """
name = "bench"
level = "trace"
trigger = "{trigger} s"

[operators.arrivals]
kind = "source"
topic = "{topic}"
fields = "id string, status string, amount bigint"
bound = "3 s"

[operators.latest]
kind = "table"
input = "arrivals"
key = ["id"]

[operators.board]
kind = "sink"
input = "latest"
table = "board"
"""


def figures(runs: int) -> Iterator[Figure]:
    """Compares medians at two batch sizes, where every record changes something."""
    with TemporaryDirectory() as folder:
        address = broker.start(Path(folder) / "broker").address
        try:
            for records, limit in ((20_000, 0.5), (200_000, 1.0)):
                yield from _figures(runs, Path(folder) / str(records), address, records, limit)
        finally:
            broker.stop(Path(folder) / "broker")


def _figures(runs: int, home: Path, address: str, records: int, limit: float) -> Iterator[Figure]:
    home.mkdir()
    topics = {side: f"{side}_{records}" for side in ("ours", "plain")}
    broker.create_topics(address, dict.fromkeys(topics.values(), 4))
    with ExitStack() as stack:
        driver = stack.enter_context(
            OnlyDriver(home, TOPOLOGY.format(trigger=TRIGGER_S, topic=topics["ours"]), address)
        )
        ours = Side(address, topics["ours"], driver.table("board"), records, driver.pid)
        table = home / "plain"
        job = [
            sys.executable,
            str(Path(__file__).with_name("plain_sink.py")),
            address,
            f"{TRIGGER_S} seconds",
            f"{topics['plain']}={table}",
        ]
        plain = Side(address, topics["plain"], table, records, stack.enter_context(started(job, home / "plain.log")))
        sides = {"ours": ours, "plain": plain}
        for side in sides.values():
            side.burst()
            side.pause()
        found = by_turns({name: side.median_ms for name, side in sides.items()}, runs + 1)
        found = {name: values[1:] for name, values in found.items()}  # the first turn warms up
        for side in sides.values():
            side.go_on()
    name = f"freshness, {records:,} records a batch"
    for side, values in found.items():
        yield Figure(f"{name}: median, {side}", [ms / 1_000 for ms in values], unit="s")
    yield Figure(f"{name}: ours against plain Spark", ratios(found, "ours", "plain"), limit, at_most=True)


@contextmanager
def started(command: list[str], log: Path) -> Iterator[int]:
    """Starts a process in a session of its own; yields its id.

    Its whole session is killed afterwards.
    """
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Side:
    """A stream from *topic* to the Delta table at *path*.

    Its processes are those of the session *pid*.
    """

    def __init__(self, address: str, topic: str, path: Path, records: int, pid: int) -> None:
        self._topic, self._path, self._records, self._pid = topic, path, records, pid
        self._producer = Producer(
            {"bootstrap.servers": address, "log_level": 0, "linger.ms": 5, "queue.buffering.max.messages": 2 * records}
        )
        self._said, self._sent, self._chance = count(), 0, Random(records)

    def pause(self) -> None:
        os.killpg(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._pid, signal.SIGCONT)

    def median_ms(self) -> float:
        """Returns the median of consecutive bursts while the other side pauses."""
        self.go_on()
        self.burst()  # it has stood still, too
        first = self._version() + 1
        for _ in range(BURSTS):
            self.burst()
        self.pause()
        waited = [self._waited_ms(version) for version in range(first, self._version() + 1)]
        found = pl.concat(waited).median()
        assert isinstance(found, float)
        return found

    def burst(self) -> None:
        """Sends a batch at a random instant between triggers.

        Returns when all of it is visible.
        """
        time.sleep(self._chance.uniform(0, TRIGGER_S))
        said = next(self._said)
        for number in range(self._records):
            value = f'{{"id": "key-{number:08}", "status": "status {said}", "amount": {number * 7 + said}}}'
            self._producer.produce(self._topic, value, str(number), number % 4)
        assert self._producer.flush(PATIENCE_S) == 0
        self._sent += self._records
        wait_until(lambda: self._seen() >= self._sent, f"{self._sent} records in {self._path}", PATIENCE_S)

    def _log(self, version: int) -> Path:
        return self._path / "_delta_log" / f"{version:020}.json"

    def _version(self) -> int:
        return max((int(file.stem) for file in self._path.glob("_delta_log/*.json")), default=-1)

    def _seen(self) -> int:
        return sum(json.loads(add["stats"])["numRecords"] for v in range(self._version() + 1) for add in self._adds(v))

    def _adds(self, version: int) -> list[dict[str, str]]:
        actions = [json.loads(line) for line in self._log(version).read_text().splitlines()]
        return [action["add"] for action in actions if "add" in action]

    def _waited_ms(self, version: int) -> pl.Series:
        """For each record of a commit, how long before it it arrived."""
        seen_ms = self._log(version).stat().st_mtime_ns // 1_000_000
        files = [pl.read_parquet(self._path / add["path"], columns=["timestamp"]) for add in self._adds(version)]
        arrived_ms = [file["timestamp"].dt.epoch("ms") for file in files]
        return seen_ms - pl.concat([pl.Series("timestamp", [], pl.Int64), *arrived_ms])
