"""Runs one peer once, and returns what it used and emitted."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from confluent_kafka.admin import AdminClient
from contests.comparison import compare
from contests.peers.peer import PROJECT, WORK, KafkaPeer, Peer, Place, ends_of, jar_versions
from contests.process_tree import Use, of_process
from contests.workload import PARTITIONS, SEED, records_of, send

from tidemark.control.process import wait_until
from tidemark.local import broker
from tidemark.local.broker import EmbeddedBroker

Run = dict[str, Any]
"""The measurements of one run, as JSON has them."""
PATIENCE_S, LOOK_EVERY_S = 360, 0.1
COMMITTED_WITHIN_S = 30
SETTLED_S, IDLE_S = 20, 60
MOST_RECORDS_OF_A_KILL = 400_000
LEAST_OF_A_THREAD_S = 0.1
METER = Path(__file__).with_name("process_tree.py")


class Kind(StrEnum):
    """Tasks of a peer in one run."""

    BACKLOG = "backlog"
    """To read a topic that was filled before it started."""
    KILLED = "killed"
    """To be killed while records arrive, and to go on."""
    IDLE = "idle"
    """To wait for records after the end of a topic."""
    FLOOR = "floor"
    """To parse the records and nothing else; of parsers, not of peers."""


class Running:
    """A peer that runs below a meter; its home has its log."""

    def __init__(self, peer: Peer, place: Place) -> None:
        self._report, self._log = place.home / "use.json", place.home / "peer.log"
        self._report.unlink(missing_ok=True)
        env = os.environ | {"PYTHONPATH": str(PROJECT / "jobs")}
        command = [sys.executable, str(METER), str(self._report), *peer.command(place)]
        with self._log.open("a") as log:
            self._meter = subprocess.Popen(command, cwd=place.home, env=env, stdout=log, stderr=log)

    def require(self) -> None:
        """Fails, with the end of its log, if the peer has ended."""
        assert self._meter.poll() is None, f"it ended\n{self._log.read_text(errors='replace')[-5_000:]}"

    def use(self) -> Use:
        """Returns its use at an instant after this call."""
        asked_s = time.monotonic()
        while (use := self._last()) is None or (use.at_s < asked_s and not use.ended):
            time.sleep(0.05)
        return use

    def kill(self) -> Use:
        """Kills its processes by SIGKILL, and returns their whole use."""
        self._meter.send_signal(signal.SIGTERM)
        self._meter.wait()
        use = self._last()
        assert use is not None
        assert use.ended
        return use

    def _last(self) -> Use | None:
        return Use(**json.loads(self._report.read_text())) if self._report.exists() else None


def run(peer: Peer, kind: Kind, number: int) -> Run:
    """Has *peer* read *number* records, and returns its measurements."""
    number = min(number, MOST_RECORDS_OF_A_KILL) if kind is not Kind.BACKLOG else number
    records = records_of(number)
    expected = peer.expected.rows(records["value"])
    load = os.getloadavg()[0]
    WORK.mkdir(exist_ok=True)
    served = broker.start(WORK / "broker")
    try:
        with TemporaryDirectory(dir=WORK) as folder, _place(peer, Path(folder), served.address) as place:
            measure = {Kind.BACKLOG: _backlog, Kind.KILLED: _killed, Kind.IDLE: _idle}[kind]
            measurements = measure(peer, place, served, records, expected.height)
            comparison = compare(expected, peer.emitted(place))
    finally:
        broker.stop(WORK / "broker")
    head = {"peer": peer.name, "kind": kind, "records": number, "promise": peer.promise, "began_load": round(load, 1)}
    tail = {**asdict(comparison), "is_exact": comparison.is_exact, "is_complete": comparison.is_complete}
    described = {"versions": peer.versions(), "settings": dict(peer.settings), "machine": machine()}
    return head | measurements | {"load": round(os.getloadavg()[0], 1)} | tail | described


def machine() -> dict[str, str | int]:
    """Returns what all peers share: cores, memory, Java, Python, broker."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "java": java.split('"')[1],
        "python": platform.python_version(),
        "kafka": jar_versions(PROJECT / ".jars" / "broker", "kafka-clients")["kafka-clients"],
    }


@contextmanager
def _place(peer: Peer, home: Path, address: str) -> Iterator[Place]:
    """Yields names of its own; deletes the topics that begin with them."""
    name = f"{peer.name}_{time.time_ns()}"
    try:
        yield Place(home, address, f"{name}_input", f"{name}_output", name)
    finally:
        topics = [topic for topic in broker.topics(address) if topic.startswith(name)]
        client = AdminClient({"bootstrap.servers": address})
        for deletion in client.delete_topics(topics).values() if topics else ():
            deletion.result()


def _fill(place: Place, records: pl.DataFrame) -> None:
    broker.create_topics(place.address, dict.fromkeys((place.input, place.output), PARTITIONS))
    send(place.address, place.input, records)


def _backlog(peer: Peer, place: Place, served: EmbeddedBroker, records: pl.DataFrame, expected: int) -> Run:
    _fill(place, records)
    before, began_s = of_process(served.process.pid), time.monotonic()
    running = Running(peer, place)
    try:
        _wait_for_the_end(peer, place, running, expected)
        took_s = time.monotonic() - began_s
    finally:
        use = running.kill()
    after = of_process(served.process.pid)
    return {
        "cpu_s": round(use.cpu_s, 2),
        "cpu_s_by_thread": {name: cpu_s for name, cpu_s in use.cpu_s_by_thread.items() if cpu_s >= LEAST_OF_A_THREAD_S},
        "wall_s": round(took_s, 1),
        "peak_rss_mib": round(use.peak_rss_bytes / 2**20),
        "written_mib": round(use.bytes_written / 2**20, 1),
        "broker_cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "broker_written_mib": round((after.bytes_written - before.bytes_written) / 2**20, 1),
    }


def _killed(peer: Peer, place: Place, _: EmbeddedBroker, records: pl.DataFrame, expected: int) -> Run:
    """Kills it after a part of the second half of *records*."""
    half = records.height // 2
    arrives = half + int(random.Random(SEED).uniform(0.3, 0.7) * half)
    _fill(place, records[:half])
    running = Running(peer, place)
    try:
        _wait(running, lambda: sum(peer.progress(place).values()) > half // 10, "a tenth of the first half")
        send(place.address, place.input, records[half:arrives])
    finally:
        running.kill()
    durable = sum(peer.progress(place).values())
    send(place.address, place.input, records[arrives:])
    running = Running(peer, place)
    try:
        _wait_for_the_end(peer, place, running, expected)
    finally:
        running.kill()
    return {"sent_before_kill": arrives, "durable_at_kill": durable}


def _idle(peer: Peer, place: Place, _: EmbeddedBroker, records: pl.DataFrame, expected: int) -> Run:
    _fill(place, records)
    running = Running(peer, place)
    try:
        _wait_for_the_end(peer, place, running, expected)
        time.sleep(SETTLED_S)
        before = running.use()
        time.sleep(IDLE_S)
        after = running.use()
    finally:
        running.kill()
    cpu_s_a_minute = (after.cpu_s - before.cpu_s) * 60 / (after.at_s - before.at_s)
    return {"idle_cpu_s_a_minute": round(cpu_s_a_minute, 2), "idle_rss_mib": round(after.rss_bytes / 2**20)}


def _wait_for_the_end(peer: Peer, place: Place, running: Running, expected: int) -> None:
    """Waits until all records are durable, and committed rows are as many."""
    ends = ends_of(place.address, place.input)
    _wait(running, lambda: ends.items() <= peer.progress(place).items(), f"progress {ends} of {peer.name}")
    if not isinstance(peer, KafkaPeer):
        return
    # Flink commits its offsets a moment before its transaction. Rows that are missing after that are a result.
    until_s = time.monotonic() + COMMITTED_WITHIN_S
    while peer.emitted(place).height < expected and time.monotonic() < until_s:
        running.require()


def _wait(running: Running, condition: Any, what: str) -> None:
    def holds() -> bool:
        running.require()
        return bool(condition())

    wait_until(holds, what, PATIENCE_S)
