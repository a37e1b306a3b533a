"""Runs jobs of a team's own in the Spark of the tests."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from deltalake import DeltaTable

from tidemark.api.application import ApplicationOptions, run_application
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import Control
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms, iso
from tidemark.model.topology import Topology
from tidemark.recorded_jobs.queries import recorded_topology
from tidemark.why.walk import why

JOBS = Path(__file__).parents[1] / "spark" / "unchanged_jobs"
EXAMPLES = Path(pyspark.__file__).parent / "examples" / "src" / "main" / "python" / "sql" / "streaming"
NOON = instant_ms("2026-03-01T12:00")
MINUTE = 60_000
WITHIN_S = 60


@dataclass
class Shop:
    """The folder of the jobs of the topology `shop`."""

    home: Path
    files: dict[str, int] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(self.home / "warehouse")

    def feed(self, name: str, *orders: tuple[int, int, int]) -> None:
        """Writes a file of *orders*: id, ms after noon, amount."""
        folder, n = self.home / name, self.files.get(name, 0)
        folder.mkdir(exist_ok=True)
        self.write(folder / f"{n}.json", "\n".join(map(json.dumps, as_rows(*orders))))
        self.files[name] = n + 1

    def write(self, file: Path, text: str) -> None:
        """Writes a file of a feed; Spark reads the oldest first.

        Spark reads a file again only if its time changes, so it stays the same.
        """
        file.write_text(text)
        os.utime(file, (1_000 + int(file.stem), 1_000 + int(file.stem)))

    def run(self, job: str, *inputs: str) -> int:
        """Runs *job* with these inputs, its output and its checkpoint."""
        places = [*inputs, f"{job}_table", f"{job}_checkpoint"]
        return self.start(JOBS / f"{job}.py", *(str(self.home / place) for place in places))

    def start(self, file: Path, *argument: str) -> int:
        """Runs the job in *file*, and returns its exit status."""
        names = {"topology": "shop", "sub_topology": file.stem, "launch_id": "l", "launched_by": "a test"}
        names["consumer_groups"] = "tidemark"
        arguments = {"application": file, "argument": [*argument]}
        lease = {"warehouse": self.layout.warehouse, "take_over": False, "silent_after": 60.0}
        argv, path = sys.argv, [*sys.path]
        try:
            return run_application(ApplicationOptions(**names, **arguments, **lease))
        finally:
            sys.argv, sys.path[:] = argv, path

    def run_example(self, example: str, *arguments: str) -> int:
        """Runs an example of Spark until it has read a record.

        Returns the number of records that it has read. Its query has neither a name nor a checkpoint.
        """

        def drain() -> None:
            wait_for(lambda: self.has_read(example))
            self.drain(example)

        with beside(drain, or_else=partial(self.drain, example)):
            assert self.start(EXAMPLES / f"{example}.py", *arguments) == 0
        beat = self.control(example).heartbeat()
        assert beat is not None
        assert (beat.state, beat.drained_by) == ("drained", "a test")
        source, query = self.topology.operators
        assert (source.partition(":")[0], query) == (f"{example}_1", f"{example}_1")
        outcomes = self.recorded(query, "operator_batches", "operator", "records_in")
        return sum(n for operator, n in outcomes if operator == query)

    def has_read(self, job: str) -> bool:
        """Returns True if *job* has finished a batch."""
        beat = self.control(job).heartbeat()
        return beat is not None and beat.batches > 0

    def control(self, job: str) -> Control:
        """The control folder of *job*."""
        return Control(self.layout.control("shop", job))

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of the table of a job, sorted."""
        return _rows(self.home / table, *columns)

    def recorded(self, query: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of a table of *query* in the warehouse, sorted."""
        return _rows(self.layout.stream_table("shop", query, table), *columns)

    @property
    def topology(self) -> Topology:
        """The topology of the recorded queries."""
        topology = recorded_topology(self.layout, "shop")
        assert topology is not None
        return topology

    def causes(self) -> list[str]:
        """Returns the causes that `tidemark why` finds now."""
        return [str(each.cause) for each in why(self.topology, self.layout, at_ms=wall_clock_ms())]

    def reason(self) -> str:
        """Returns the observation about the dead driver."""
        finding = why(self.topology, self.layout, at_ms=wall_clock_ms())[0]
        assert finding.cause == "driver_dead"
        return finding.seen

    def drain(self, job: str) -> None:
        """Has *job* end after its batches."""
        self.control(job).request_drain(by="a test", now_ms=wall_clock_ms())


@contextmanager
def beside(work: Callable[[], object], *, or_else: Callable[[], object]) -> Iterator[None]:
    """Does *work* in a thread beside a job, and raises its error.

    After an error it does *or_else*, which ends the job.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            or_else()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(WITHIN_S)
    assert not errors, errors
    assert not thread.is_alive()


def wait_for(condition: Callable[[], object]) -> None:
    """Returns as soon as *condition* holds."""
    until_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def as_rows(*orders: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Returns *orders* as jobs read them: id, ms after noon, amount."""
    return [{"id": key, "at": iso(NOON + at_ms), "amount": amount} for key, at_ms, amount in orders]


def _rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(path).to_pyarrow_table().select(columns).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)
