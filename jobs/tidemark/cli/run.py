"""`tidemark run`: the drivers of one topology in the foreground, on event time or on processing time.

Purpose: try a topology without Airflow, and see by `--time processing` whether event time is what holds results up.

How it works: each sub-topology gets one `jobs/stream.py`, whose pid file and log (`run.log`) lie in its control folder.
A signal asks the drivers to drain through those folders. One that takes longer than DRAINED_WITHIN_S, or until a
second signal, is killed: the next driver finishes its batch. When one driver fails, the others are drained.

Known limitation: drivers outlive a command that is ended by SIGKILL; `tidemark down` drains them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemark.cli.local import process, running_broker
from tidemark.cli.options import add_topology, place
from tidemark.cli.output import say_inert
from tidemark.clock import wall_clock_ms
from tidemark.control import Control, StreamState
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.inert import one_message
from tidemark.locks import holder, opened, own_folder, taken
from tidemark.object_path import ObjectPath
from tidemark.report.batch_job import add_bootstrap, topology_file
from tidemark.spec.connections import LOCAL, addressed, flags
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Time
from tidemark.spec.project import CHECKOUT
from tidemark.spec.topology import Topology, load, on_processing_time

JOB = CHECKOUT / "jobs" / "stream.py"
NAME = "run"
"""Of a driver's pid file and log. It is not Airflow's name, so that Airflow adopts such a driver and kills none."""
POLL_S = 0.2
DRAINED_WITHIN_S = 30.0
TERMINATED_WITHIN_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RunningDriver:
    """The driver of *sub_topology*, which names *launch_id* in its heartbeats."""

    sub_topology: str
    control: Control
    launch_id: str
    process: process.Process

    def failure(self) -> str | None:
        """Why the driver ended, once it has ended by anything but a drain."""
        if process.is_alive(self.process):
            return None
        beat = self.control.heartbeat()
        if beat is None or beat.launch_id != self.launch_id:
            return f"{self.sub_topology} ended before its first heartbeat; its log is {self.process.log}"
        if beat.state is StreamState.DRAINED:
            return None
        reason = one_message(beat.reason or f"its last state was {beat.state.value}")
        return f"{self.sub_topology} failed: {reason}; its log is {self.process.log}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_topology(parser)
    meaning = "processing: the instant of a batch is the time of its records, with tables of its own (%(default)s)"
    parser.add_argument("--time", type=Time, choices=list(Time), default=Time.EVENT, help=meaning)
    add_bootstrap(parser, LOCAL)


def command(options: argparse.Namespace) -> int:
    """Run the drivers until they end."""
    return run(options, place(options), running_broker(options.home), say_inert)


def timed(file: Path, kind: Time) -> Topology:
    """The topology of *file*, under its own name or, on processing time, under that of its separate stream."""
    topology = load(file)
    return on_processing_time(topology) if kind is Time.PROCESSING else topology


def run(options: argparse.Namespace, warehouse: Path, local: str | None, say: Callable[[str], None]) -> int:
    """Run all drivers until a signal or a drain request ends them; raises TidemarkError when one fails.

    The cluster `default` is the broker at *local* where nothing else has its address.
    """
    file = topology_file(options.topology).resolve()
    topology = timed(file, options.time)
    if isinstance(warehouse, ObjectPath):
        msg = f"tidemark run starts drivers on a folder, got {warehouse}: docs/object-store.md says how to start others"
        raise InvalidArgument(msg)
    clusters = addressed(topology.clusters_used, topology.clusters, options.bootstrap, os.environ, otherwise=local)
    layout = Layout(warehouse.resolve())
    given = ["--warehouse", str(layout.warehouse), "--topology", str(file), *flags(clusters)]
    with _signals() as asked, _only_run(layout, topology):
        _refuse_if_it_runs(layout, topology)
        drivers: list[RunningDriver] = []
        try:
            for sub in topology.sub_topologies:
                control = Control(layout.control(topology.name, sub.name))
                drivers.append(_started(control, sub.name, [*given, "--time", options.time.value]))
                say(f"{sub.name}: started; its log is {drivers[-1].process.log}")
            say(f"{topology.name} runs on {options.time.value} time; Ctrl-C drains it")
            failures = _until_ended(drivers, asked)
        finally:
            _end(drivers, asked)
    if failures:
        raise TidemarkError("; ".join(failures))
    say(f"{topology.name}: all drivers have ended")
    return 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that have come since, in place of what they would do."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _only_run(layout: Layout, topology: Topology) -> Iterator[None]:
    """Be the only `tidemark run` of *topology* in this warehouse; raises InvalidArgument."""
    folder = layout.control(topology.name, topology.sub_topologies[0].name).parent
    own_folder(folder)
    lock = opened(folder / "run.lock")
    try:
        if not taken(lock, within_s=0):
            by = holder(lock)
            msg = f"{topology.name}: another `tidemark run` runs it in {layout.warehouse} ({by}); end that one first"
            raise InvalidArgument(msg)
        yield
    finally:
        os.close(lock)


def _refuse_if_it_runs(layout: Layout, topology: Topology) -> None:
    for sub in topology.sub_topologies:
        control = Control(layout.control(topology.name, sub.name))
        if control.is_held() or any(process.find(control.home, name) for name in (NAME, "driver")):
            msg = (
                f"{topology.name}/{sub.name}: a driver runs already, see {control.home}; drain it first "
                "(`tidemark down`, or clear its task in Airflow)"
            )
            raise InvalidArgument(msg)


def _started(control: Control, sub_topology: str, given: Sequence[str]) -> RunningDriver:
    launch_id = f"run-{uuid.uuid4().hex}"
    command = [sys.executable, str(JOB), *given, "--sub-topology", sub_topology, "--launch-id", launch_id]
    control.forget_drain()
    env = process.without_airflow(os.environ)
    return RunningDriver(sub_topology, control, launch_id, process.launch(NAME, command, home=control.home, env=env))


def _until_ended(drivers: Sequence[RunningDriver], asked: Sequence[int]) -> list[str]:
    """Return at a signal, when every driver has drained, or with why one has failed."""
    while not asked and any(process.is_alive(driver.process) for driver in drivers):
        time.sleep(POLL_S)
        if failures := [failure for driver in drivers if (failure := driver.failure())]:
            return failures
    return [] if asked else [failure for driver in drivers if (failure := driver.failure())]


def _end(drivers: Sequence[RunningDriver], asked: Sequence[int]) -> None:
    """Drain *drivers*, kill what does not end in time or until one more signal, and see that none is left."""
    for driver in drivers:
        if process.is_alive(driver.process):
            driver.control.request_drain(by="tidemark run", now_ms=wall_clock_ms())
    deadline, before = time.monotonic() + DRAINED_WITHIN_S, len(asked)
    while any(process.is_alive(driver.process) for driver in drivers):
        if time.monotonic() > deadline or len(asked) > before:
            break
        time.sleep(POLL_S)
    for driver in drivers:
        process.stop(driver.control.home, NAME, grace_s=TERMINATED_WITHIN_S)
