"""`tidemark run`: runs streams, or a PySpark job, in the foreground.

Purpose: try a topology without Airflow, on event time or on processing time. `--time processing` shows whether event
time is what holds results up. With `--application` a job of a team's own is recorded under the name of the topology.

How it works: one process, `jobs/stream.py`, runs the streams. Its pid file and log (`run.log`) lie in a folder of its
own beside their control folders. A signal asks the streams to drain through those. The process is killed after
DRAINED_WITHIN_S, or at a second signal; the next one finishes its batches. If one stream fails, the others are drained.

Known limitation: the process outlives a command that is ended by SIGKILL; `tidemark down` drains its streams.
"""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemark.cli.project.check import runnable
from tidemark.cli.project.check_live import refuse_topics
from tidemark.cli.shared.local import process, running_broker
from tidemark.cli.shared.options import add_topology, place
from tidemark.cli.shared.output import say_inert
from tidemark.clock import wall_clock_ms
from tidemark.control.driver_folder import DriverFolder, StartRequest
from tidemark.control.folder import Control, StreamState
from tidemark.control.spark_files import with_spark_folder
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.connections import LOCAL, Clusters, addressed_clusters, flags
from tidemark.model.project.extras import require
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.jars import lock_of_this_spark, require_jars, runs_streams
from tidemark.model.project.layout import Layout, usable
from tidemark.model.project.spark_settings import jars
from tidemark.model.topology import Time, Topology, on_processing_time
from tidemark.reports.batch_job import add_bootstrap, given_secrets, topology_file
from tidemark.safe_text import one_message
from tidemark.sample.topic_sample import SampledCluster
from tidemark.storage.locks import holder, open_lock, own_folder, take_lock
from tidemark.storage.object_path import ObjectPath
from tidemark.why.evidence.commands import BY_COMMAND

JOB, APPLICATION_JOB = CHECKOUT / "jobs" / "stream.py", CHECKOUT / "jobs" / "application.py"
NAME = "run"
"""Name of the process, its pid file and its log.

Airflow's processes have another name; Airflow adopts the streams of this one.
"""
SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
"""Variable with options of spark-submit, for a job that starts a JVM."""
POLL_S = 0.2
ANSWER_WITHIN_S = 5.0
"""A broker that does not answer for so long is not asked for its topics."""
DRAINED_WITHIN_S = 30.0
TERMINATED_WITHIN_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RunningStream:
    """The stream *sub_topology*, which names *launch_id* in its heartbeats."""

    sub_topology: str
    control: Control
    launch_id: str

    @classmethod
    def of(cls, layout: Layout, topology: str, sub_topology: str) -> RunningStream:
        """Gives the stream *sub_topology* of *topology* a new launch id."""
        control = Control(layout.control(topology, sub_topology))
        return cls(sub_topology, control, f"run-{uuid.uuid4().hex}")

    def start(self, common_arguments: Sequence[str]) -> StartRequest:
        """Returns the request for the process to start this stream.

        *common_arguments* are the arguments of all streams.
        """
        self.control.forget_drain()
        arguments = (*common_arguments, "--sub-topology", self.sub_topology, "--launch-id", self.launch_id)
        arguments = (*arguments, "--launched-by", f"{BY_COMMAND}{getpass.getuser()}")
        return StartRequest(self.launch_id, str(self.control.home), arguments)

    def failure(self, log: Path) -> str | None:
        """Returns why the stream ended; None if it was drained, or its job finished.

        It has ended, and has written to *log*.
        """
        beat = self.control.heartbeat()
        if beat is None or beat.launch_id != self.launch_id:
            return f"{self.sub_topology} ended before its first heartbeat; its log is {log}"
        if beat.state in {StreamState.DRAINED, StreamState.FINISHED}:
            return None
        reason = one_message(beat.reason or f"its last state was {beat.state.value}")
        return f"{self.sub_topology} failed: {reason}; its log is {log}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    meaning = "processing: record time is the instant of the batch; tables are separate (default: %(default)s)"
    parser.add_argument("--time", type=Time, choices=list(Time), default=Time.EVENT, help=meaning)
    add_bootstrap(parser, LOCAL)
    job = "run this PySpark job, unchanged; its queries are recorded under the name TOPOLOGY"
    parser.add_argument("--application", type=Path, metavar="FILE", help=job)
    parser.add_argument(
        "--argument", action="append", default=[], metavar="TEXT", help="an argument of that job; may be repeated"
    )
    groups = "write the offsets of that job's queries into the consumer groups PREFIX-TOPOLOGY-QUERY"
    parser.add_argument("--consumer-groups", metavar="PREFIX", help=groups)
    observed = (
        "count the latencies of the records that its queries write, by this TIMESTAMP column, of which each query uses "
        "the first that it has; may be repeated"
    )
    parser.add_argument("--observe", action="append", default=[], metavar="COLUMN", help=observed)


def command(options: argparse.Namespace) -> int:
    """Runs the streams until they end."""
    require("pyspark")
    _refuse_contradictions(options)
    if options.application is None or runs_streams():
        require_jars("spark", lock=lock_of_this_spark())
    return run(options, place(options), running_broker(options.home), say_inert)


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """Refuses options that do not fit each other or the file of a job."""
    if options.application is None:
        if options.argument:
            msg = "--argument is for a job; name its Python file with --application"
            raise InvalidArgument(msg)
        if options.consumer_groups:
            msg = "--consumer-groups is for a job; write consumer_groups in the topology's file"
            raise InvalidArgument(msg)
        if options.observe:
            msg = "--observe is for a job; streams of a topology measure the latency of every record: leave it out"
            raise InvalidArgument(msg)
        return
    if options.time is not Time.EVENT or options.bootstrap or options.secrets:
        msg = "--application: a job has its own time, brokers and secrets; leave out --time, --bootstrap, --secrets"
        raise InvalidArgument(msg)
    file: Path = options.application.resolve()
    if not file.is_file():
        seen = "is a folder" if file.is_dir() else "does not exist"
        msg = f"--application: {file} {seen}; name the Python file of a job"
        raise InvalidArgument(msg)


def run(options: argparse.Namespace, warehouse: Path, local: str | None, say: Callable[[str], None]) -> int:
    """Runs all streams until a signal or a drain request ends them.

    The cluster `default` is the broker at *local* where no setting gives it an address. Nothing is started if the
    topology has mistakes, its topics are missing, or a driver of it runs already.

    Raises:
        InvalidSpec: the topology has mistakes, or its topics do not exist or may not be used; a line each.
        TidemarkError: a driver runs already, or a stream failed.
    """
    if isinstance(warehouse, ObjectPath):
        msg = f"the warehouse must be a folder, got {warehouse}; docs/object-store.md shows how to start other drivers"
        raise InvalidArgument(msg)
    layout = Layout(warehouse.resolve())
    if options.application is not None:
        _run_application(options, layout, say)
        return 0
    file = topology_file(options.topology, layout).resolve()
    topology = runnable(file, layout.warehouse)
    if options.time is Time.PROCESSING:
        topology = on_processing_time(topology)
    clusters = addressed_clusters(
        topology.clusters_used,
        topology.clusters,
        options.bootstrap,
        os.environ,
        otherwise=local,
        secrets=given_secrets(options),
    )
    _refuse_topics(topology, clusters, local, say)
    secrets = ["--secrets", str(options.secrets.resolve())] if options.secrets else []
    common_arguments = ["--warehouse", str(layout.warehouse), "--topology", str(file), *flags(clusters), *secrets]
    common_arguments += ["--time", options.time.value]
    streams = [RunningStream.of(layout, topology.name, sub.name) for sub in topology.sub_topologies]
    folder = layout.driver(topology.name, None) / NAME
    _run_streams(
        topology.name, streams, folder, JOB, common_arguments, os.environ, say, f" on {options.time.value} time"
    )
    return 0


def _run_application(options: argparse.Namespace, layout: Layout, say: Callable[[str], None]) -> None:
    """Runs the PySpark job of *options*, with the jars of this project."""
    file: Path = options.application.resolve()
    stream = RunningStream.of(layout, usable(options.topology), usable(file.stem))
    of_job = [f"--argument={argument}" for argument in options.argument]
    place = ["--warehouse", str(layout.warehouse), "--topology", options.topology]
    # What spark-submit would be given; a job may have its own by the same variable. Our jars are for Spark 4.
    ours = {SUBMIT_ARGS: f"--jars {','.join(jars(CHECKOUT))} pyspark-shell"} if runs_streams() else {}
    submit = {**ours, **os.environ}
    groups = ["--consumer-groups", options.consumer_groups] if options.consumer_groups else []
    observed = [f"--observe={column}" for column in options.observe]
    arguments = ["--application", str(file), *of_job, *place, *groups, *observed]
    _run_streams(options.topology, [stream], stream.control.home / NAME, APPLICATION_JOB, arguments, submit, say)


def _run_streams(
    topology: str,
    streams: Sequence[RunningStream],
    place: Path,
    job: Path,
    common_arguments: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
    how: str = "",
) -> None:
    """Runs *streams* until a signal or a drain request ends them.

    Args:
        topology: its name.
        streams: the streams to run.
        place: folder of their process.
        job: the program of the process.
        common_arguments: those of all streams.
        environment: that of the process.
        say: prints a line.
        how: follows the name in this line.

    Raises:
        TidemarkError: a stream failed.
    """
    folder = DriverFolder(place)
    with _signals() as signals, _only_run(topology, folder):
        _refuse_if_it_runs(topology, folder, streams)
        own_folder(folder.home)
        try:
            for stream in streams:
                folder.ask(stream.start(common_arguments))
            command = [sys.executable, str(job), "--driver", str(folder.home)]
            env = with_spark_folder(folder.home, process.without_airflow(environment))
            started = process.launch(NAME, command, home=folder.home, env=env)
            names = ", ".join(stream.sub_topology for stream in streams)
            say(f"{topology} runs{how}: {names}; Ctrl-C drains it. Log: {started.log}")
            failures = _until_ended(folder, started, streams, signals)
        finally:
            _end(folder, streams, signals)
    if failures:
        raise TidemarkError("; ".join(failures))
    say(f"{topology}: all streams have ended")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects signals instead of handling them."""
    received: list[int] = []
    before = {number: signal.signal(number, lambda got, _: received.append(got)) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _only_run(topology: str, folder: DriverFolder) -> Iterator[None]:
    """Excludes another `tidemark run` with the process of *folder*.

    Raises:
        InvalidArgument: there is one.
    """
    beside = folder.home.parent  # a refused command leaves no folder of a process
    own_folder(beside)
    lock = open_lock(beside / "run.lock")
    try:
        if not take_lock(lock, within_s=0):
            by = holder(lock)
            msg = f"{topology}: another `tidemark run` runs it in {folder.home} ({by}); end that one first"
            raise InvalidArgument(msg)
        yield
    finally:
        os.close(lock)


def _refuse_topics(topology: Topology, clusters: Clusters, local: str | None, say: Callable[[str], None]) -> None:
    """Refuses topics that do not exist, or that may not be used, at clusters that answer; it names the others."""
    answering: dict[str, SampledCluster] = {}
    for name in sorted(topology.clusters_used):
        cluster = SampledCluster(clusters[name], within_s=ANSWER_WITHIN_S)
        try:
            cluster.partitions  # noqa: B018 - asked for once
        except InvalidArgument as silence:
            say(f"{topology.name}: {silence}; its topics are not checked, and the streams wait for it")
        else:
            answering[name] = cluster
    refuse_topics(topology, answering, local)


def _refuse_if_it_runs(topology: str, folder: DriverFolder, streams: Sequence[RunningStream]) -> None:
    runs = process.find(folder.home, NAME) is not None
    for stream in streams:
        if runs or stream.control.is_held():
            msg = (
                f"{topology}/{stream.sub_topology}: a driver runs already, see {stream.control.home}; drain it first "
                "(`tidemark down`, or clear its task in Airflow)"
            )
            raise InvalidArgument(msg)


def _until_ended(
    folder: DriverFolder, started: process.Process, streams: Sequence[RunningStream], signals: Sequence[int]
) -> list[str]:
    """Waits until all streams have ended; returns their failures.

    It returns early at a signal, or when a stream failed.
    """
    while not signals:
        lives, running = process.is_alive(started), folder.launches()
        ended = [stream for stream in streams if not lives or stream.launch_id not in running]
        failures = [failure for stream in ended if (failure := stream.failure(started.log))]
        if failures or len(ended) == len(streams):
            return failures
        time.sleep(POLL_S)
    return []


def _end(folder: DriverFolder, streams: Sequence[RunningStream], signals: Sequence[int]) -> None:
    """Drains *streams*, and kills the process if it does not end.

    It is killed after DRAINED_WITHIN_S, or at one more signal.
    """
    for stream in streams:
        if stream.control.is_held():
            stream.control.request_drain(by="tidemark run", now_ms=wall_clock_ms())
        folder.withdraw(stream.launch_id)
    # The signal that ended the run is among *signals* already.
    deadline, before = time.monotonic() + DRAINED_WITHIN_S, len(signals)
    while process.find(folder.home, NAME) is not None:
        if time.monotonic() > deadline or len(signals) > before:
            break
        time.sleep(POLL_S)
    process.stop(folder.home, NAME, grace_s=TERMINATED_WITHIN_S)
