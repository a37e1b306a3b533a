"""Provides drivers as users start them, with their tables and topics."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
from confluent_kafka import Consumer, TopicPartition

from support.control_files import unlisted
from support.oracle_parts import Batch, Message, Place, Read
from support.views import table_or_view, tables_of
from tidemark.control.driver_folder import DriverFolder, StartRequest
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.control.process import wait_until
from tidemark.model.project.layout import Layout
from tidemark.model.topology import parse
from tidemark.storage.warehouse import is_table
from tidemark.stream.journal.unflushed import scan_facts

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180
TABLE_POLL_S = 0.25
"""The shortest time between two polls, since many read tables."""
SEED = 20130627
BECAME = (  # what an update that came in, or waited, can have become
    "emitted",
    "suppressed",
    "late",
    "quarantined",
    "duplicate",
    "filtered",
    "passed",
    "superseded",
    "dropped",
    "held_after",
)

Row = dict[str, Any]


class _Process:
    """A process of its own for one stream, with output in *log*."""

    def __init__(self, command: Sequence[str], home: Path, log: Path) -> None:
        with log.open("a") as output:
            self._of = subprocess.Popen(command, cwd=home, stdout=output, stderr=output, start_new_session=True)
        self.pid, self.launch_id = self._of.pid, ""

    def runs(self) -> bool:
        return self._of.poll() is None

    def status(self) -> int:
        """Its exit status, for one that ends by itself."""
        return self._of.wait(PATIENCE_S)

    def end(self) -> None:
        """Leave nothing of it, nor of the JVM that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._of.wait(PATIENCE_S)


class SharedDriver:
    """A driver process for streams of many tests.

    It runs until the `with` block ends. A stream starts in it within a second.
    """

    def __init__(self, home: Path) -> None:
        self.log, self.folder = home / "driver.log", DriverFolder(home / "driver")
        self._lasting = self.folder.asking(within_s=PATIENCE_S)
        self._numbers = itertools.count()

    def __enter__(self) -> SharedDriver:
        self._lasting.__enter__()
        command = [sys.executable, *Driver.script, "--driver", str(self.folder.home)]
        self._process = _Process(command, self.folder.home.parent, self.log)
        return self

    def __exit__(self, *_: object) -> None:
        self._lasting.__exit__(None, None, None)
        self._process.end()

    def launch(self, control: Control, arguments: Sequence[str]) -> _Launch:
        """Starts the stream of *control*."""
        launch_id = f"launch_{next(self._numbers)}"
        self.folder.ask(StartRequest(launch_id, str(control.home), (*arguments, "--launch-id", launch_id)))
        return _Launch(self, self._process, launch_id, control)


@dataclass(frozen=True)
class _Launch:
    """A stream in a process that it shares with others."""

    driver: SharedDriver
    process: _Process
    launch_id: str
    control: Control

    @property
    def pid(self) -> int:
        return self.process.pid

    def runs(self) -> bool:
        return self.process.runs() and self.launch_id in self.driver.folder.launches()

    def status(self) -> int:
        """The exit status that its process would have alone."""
        wait_until(lambda: not self.runs(), f"the end of {self.launch_id}", PATIENCE_S)
        beat = self.control.heartbeat()
        return int(beat is None or beat.launch_id != self.launch_id or beat.state is not StreamState.DRAINED)

    def end(self) -> None:
        """Leaves nothing of it, by a drain."""
        if self.runs():
            self.control.request_drain(by="test", now_ms=time.time_ns() // 1_000_000)
        self.status()


class Driver:
    """A user's `jobs/stream.py` with output in a file.

    The topology's file is in *home*.

    So does the *warehouse*, unless it is given. The stream runs in the process of *shared*, if that is given.
    """

    script: Sequence[str] = (str(PROJECT / "jobs" / "stream.py"),)

    def __init__(
        self,
        sub_topology: str,
        home: Path,
        address: str,
        *arguments: str,
        topology: str,
        program: Sequence[str] = (sys.executable,),
        warehouse: Path | None = None,
        shared: SharedDriver | None = None,
    ) -> None:
        self._name, self._topology = sub_topology, topology
        self._warehouse = warehouse or home / "warehouse"
        self._log = shared.log if shared else home / f"{sub_topology}.log"
        self._log_begins = self._log.stat().st_size if self._log.exists() else 0
        self.control = Control(Layout(self._warehouse).control(topology, sub_topology))
        self.control.forget_drain()
        options = ["--warehouse", str(self._warehouse), "--topology", str(home / f"{topology}.toml")]
        options += ["--sub-topology", sub_topology, "--bootstrap", address, *arguments]
        self._process = (
            shared.launch(self.control, options)
            if shared
            else _Process([*program, *self.script, *options], home, self._log)
        )

    @property
    def pid(self) -> int:
        """Returns the pid of its session's leader, in which its JVM is."""
        return self._process.pid

    def wait(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Waits for *condition*; fails as soon as the driver has ended."""

        def holds() -> bool:
            assert self._process.runs(), f"{what}: the driver ended\n{self.log()[-5_000:]}"
            return condition()

        wait_until(holds, what, patience_s, poll_s=TABLE_POLL_S)

    def offsets(self) -> dict[str, int]:
        """Returns its progress per `source/partition`.

        That of an earlier driver does not count.
        """
        heartbeat = self.beat()
        return heartbeat.offsets if heartbeat else {}

    def beat(self) -> Heartbeat | None:
        """Returns its last heartbeat; None before its first."""
        beat, mine = self.control.heartbeat(), (self._process.pid, self._process.launch_id)
        return beat if beat is not None and (beat.pid, beat.launch_id) == mine else None

    def wait_for_batches(self, number: int) -> None:
        """Waits until it has finished *number* batches."""
        self.wait(lambda: (beat := self.beat()) is not None and beat.batches >= number, f"{number} batches")

    def read_everything(self, address: str, topics: dict[str, str], patience_s: float = PATIENCE_S) -> None:
        """Waits until it has read all partitions of *topics*, by source."""
        ends = ends_of(address, topics)
        self.wait(lambda: ends.items() <= self.offsets().items(), f"offsets {ends}", patience_s)

    def kill_in_the_middle_of_a_batch(self) -> None:
        """Kills it when a batch has been decided, but not completed."""

        def is_decided() -> bool:
            committed = rows_of(self._warehouse, self._topology, self._name, "batches")
            return self.last_decided() > committed[-1]["batch_id"]

        self.kill_when(is_decided, "a driver in the middle of a batch")

    def kill_when(self, holds: Callable[[], bool], what: str) -> None:
        """Kills it at a seeded instant at which *holds* returns true.

        Its process and its JVM are stopped for each poll, so that nothing changes before the kill. The driver must
        have its own process. Polls stay frequent in a long wait.
        """
        chance, until_s = random.Random(SEED), time.monotonic() + PATIENCE_S
        while True:
            assert self._process.runs(), f"{what}: the driver ended\n{self.log()[-5_000:]}"
            assert time.monotonic() < until_s, f"{what}: not within {PATIENCE_S} s"
            time.sleep(chance.uniform(0, 0.1))
            self.stop()
            if holds():
                break
            self.wake()
        self._process.end()

    def carried_out(self) -> int:
        """Returns the newest batch in all tables and topics.

        -1: the file is being rewritten.
        """
        text = (self.control.home / "journal" / "carried_out").read_text()
        return int(text.partition(" ")[0] or -1)

    def last_decided(self) -> int:
        """Returns the newest batch in its journal."""
        return max(int(path.name.split(".")[0]) for path in (self.control.home / "journal").glob("*.data.zip"))

    def log(self) -> str:
        """Returns what its process has logged since it started."""
        return self._log.read_bytes()[self._log_begins :].decode(errors="replace")

    def drain(self) -> int:
        """Have it end by itself; its exit status."""
        self.control.request_drain(by="test", now_ms=time.time_ns() // 1_000_000)
        status = self.exit()
        assert unlisted(self.control.home) == []
        return status

    def exit(self) -> int:
        """Its exit status, for one that ends by itself."""
        return self._process.status()

    def stop(self) -> None:
        """SIGSTOP, also for the JVM that it started."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT, also for the JVM that it started."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.end()


class OnlyDriver(Driver):
    """The driver of a topology by hand, with one sub-topology unless *stream* names one.

    It ends with the `with` block.
    """

    def __init__(
        self,
        home: Path,
        toml: str,
        address: str,
        *arguments: str,
        program: Sequence[str] = (sys.executable,),
        shared: SharedDriver | None = None,
        stream: str | None = None,
    ) -> None:
        topology = parse(tomllib.loads(toml), file="topology.toml", folder=home)
        (home / f"{topology.name}.toml").write_text(toml)
        (name,) = [stream] if stream else [sub.name for sub in topology.sub_topologies]
        super().__init__(name, home, address, *arguments, topology=topology.name, program=program, shared=shared)

    def __enter__(self) -> OnlyDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def table(self, name: str) -> Path:
        """Where the table *name* is, or will be."""
        return Layout(self._warehouse).stream_table(self._topology, self._name, name)

    def rows(self, table: str) -> list[Row]:
        """The rows of a table or view; none while there is no table."""
        there = all(is_table(self.table(name)) for name in tables_of(table))
        return rows_of(self._warehouse, self._topology, self._name, table) if there else []

    def wait_for(self, table: str, number: int) -> list[Row]:
        """Waits for *number* rows of *table* and returns them.

        Fails as soon as the driver has ended.
        """
        self.wait(lambda: len(self.rows(table)) >= number, f"{number} rows of {table}")
        return self.rows(table)

    def reason_to_fail(self) -> str:
        """Returns the reason for its failure, once it has failed."""
        assert self._process.status() == 1
        heartbeat = self.control.heartbeat()
        assert heartbeat is not None
        return heartbeat.reason or ""


def ends_of(address: str, topics: dict[str, str]) -> dict[str, int]:
    """Returns the end of each partition of *topics*, per `source/partition`.

    *topics* are given by source.
    """
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test"})
    ends = {
        f"{source}/{place.partition}": consumer.get_watermark_offsets(place)[1]
        for source, topic in topics.items()
        for place in _partitions(consumer, topic)
    }
    consumer.close()
    return ends


def rows_of(warehouse: Path, topology: str, sub_topology: str, table: str) -> list[Row]:
    """Returns the rows of a table or view by batch, including those in the journal.

    Instants are epoch ms; within a batch rows keep their order.
    """

    def read(name: str) -> pl.DataFrame:
        return scan_facts(Layout(warehouse).stream_table(topology, sub_topology, name)).collect()

    frame = table_or_view(table, read).with_columns(cs.datetime().dt.epoch("ms"))
    return frame.sort([name for name in ("batch_id", "seq") if name in frame.columns], maintain_order=True).to_dicts()


def reads_of(partitions: Iterable[Row]) -> Mapping[int, list[Read]]:
    """The reads in rows of `partition_batches` as an oracle takes them, by batch."""
    names = ("source", "partition", "from_offset", "until_offset", "latest_offset")
    reads: dict[int, list[Read]] = defaultdict(list)
    for row in partitions:
        if row["until_offset"] is not None:
            reads[row["batch_id"]].append(Read(*(row[name] for name in names)))
    return reads


def batches_of(batches: Iterable[Row], partitions: Iterable[Row]) -> list[Batch]:
    """Rows of `batches` and `partition_batches` as an oracle takes them."""
    reads = reads_of(partitions)
    return [Batch(row["decided_at"], reads[row["batch_id"]], row["batch_id"]) for row in batches]


def in_kafka(address: str, topic: str, *, source: str | None = None) -> list[Message]:
    """Returns a topic's records, in order per partition.

    Each is placed in *source* if given.
    """
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    places = _partitions(consumer, topic)
    number = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.assign(places)
    found = consumer.consume(number, timeout=PATIENCE_S) if number else []
    consumer.close()
    assert len(found) == number
    return [
        Message(
            Place(source or topic, m.partition() or 0, m.offset() or 0),
            m.key(),
            m.value(),
            m.timestamp()[1],
            dict(m.headers() or ()),
        )
        for m in found
    ]


def _partitions(consumer: Consumer, topic: str) -> Sequence[TopicPartition]:
    known = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return [TopicPartition(topic, number, 0) for number in sorted(known)]
