"""Runs one sub-topology of a topology as one streaming query, until a drain is requested or it has run for long enough.

Exit status: 0 drained or rotated, 1 failed (the reason is in the heartbeat and in the log), 3 another driver runs this
stream, or has taken it over.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import polars as pl
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tidemark.clock import wall_clock_ms
from tidemark.control import SILENT_AFTER_MS, AlreadyRunning, Control, Heartbeat, LeaseLost, StreamState, digest
from tidemark.disk import Disk
from tidemark.errors import TidemarkError
from tidemark.inert import log_to_stderr
from tidemark.place import location
from tidemark.report.batch_job import add_bootstrap, told
from tidemark.spark import have_checkpoints_written, session
from tidemark.spec.connections import Clusters, addressed, time_of
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Source, Time
from tidemark.spec.stream import Stream
from tidemark.spec.topology import SubTopology, load, on_processing_time
from tidemark.stream.blame import as_reason
from tidemark.stream.checkpoint import planned
from tidemark.stream.clock_skew import ClockSkew
from tidemark.stream.distributed.on_spark import SparkExecutors
from tidemark.stream.distributed.shards import Collect, Executors, ReadByDriver
from tidemark.stream.engine import Engine
from tidemark.stream.evidence import evidence
from tidemark.stream.fatal import KILLED, Deaths, counted, passed_over
from tidemark.stream.heartbeats import Heartbeats
from tidemark.stream.intact import Offsets
from tidemark.stream.kafka import KafkaBroker, refuse_marks_in_compacted
from tidemark.stream.meanings import meanings
from tidemark.stream.measurement import Host
from tidemark.stream.parts import Part, passed_over_rows
from tidemark.stream.read.sources import collect, explained, read_again, rows_of_part, stream
from tidemark.stream.read.trying import kills
from tidemark.stream.soundness import refuse_unless_sound
from tidemark.stream.unread import begun
from tidemark.stream.usage import Usage, bytes_in
from tidemark.stream.wiring import build_engine

log = logging.getLogger("tidemark.stream")

BEAT_S = 1.0
CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
"""Spark's word for a file of the checkpoint that was there already when it was about to be written."""
DISTURBED_AT_MOST = 3
"""Times that a query is started again for that. An older driver that wakes up commits a batch and plans another."""


class Ended(Exception):
    """Ends the query in *state*, before a batch or while one waits for the disk; the next driver runs that batch."""

    def __init__(self, state: StreamState) -> None:
        super().__init__(state)
        self.state = state


def main() -> int:
    """Parse the command line, take the lease, run."""
    options = arguments().parse_args()
    log_to_stderr()
    running = digest(options.topology)
    topology = load(options.topology)
    if options.time is Time.PROCESSING:
        topology = on_processing_time(topology)
    sub = topology.sub_topology(options.sub_topology)
    control = Control(Layout(options.warehouse).control(topology.name, sub.name))
    try:
        epoch = control.acquire(
            take_over_at_ms=wall_clock_ms() if options.take_over else None,
            silent_after_ms=round(options.silent_after * 1_000),
        )
    except AlreadyRunning as error:
        log.error("%s", error)
        return 3
    stream_of = Stream(topology, sub, Layout(options.warehouse))
    before, deaths = control.heartbeat(), counted(control, sub)
    if before and before.state in KILLED and (reading := begun(stream_of.control, sub)):
        log.warning("the driver before was killed: %s", reading)
    history = Heartbeats(stream_of.home, topology=topology.name, sub_topology=sub.name)
    pulse = Pulse(control, history, epoch, options.launch_id, digest=running)
    try:
        state = run(options, stream_of, control, pulse, deaths)
    except LeaseLost as error:
        pulse.end(StreamState.FAILED)
        log.error("%s", error)
        return 3
    except Exception as error:
        if not isinstance(error, TidemarkError) and (reading := begun(stream_of.control, sub)):
            error.add_note(reading)
        log.exception("stream %s/%s failed", topology.name, sub.name)
        pulse.end(StreamState.FAILED, reason=as_reason(error)[:2_000])
        return 1
    pulse.end(state)
    return 0


def arguments() -> argparse.ArgumentParser:
    """What `jobs/stream.py` takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", type=told(location), required=True, help="folder of all Delta tables, or s3a://")
    parser.add_argument("--topology", type=Path, required=True, help="TOML file of the topology")
    parser.add_argument("--sub-topology", required=True, help="which of its sub-topologies to run")
    add_bootstrap(parser)
    parser.add_argument(
        "--time",
        type=Time,
        choices=list(Time),
        default=Time.EVENT,
        help="processing: the instant of a batch is the time of its records, with tables and a checkpoint of its own "
        "(%(default)s)",
    )
    parser.add_argument("--launch-id", default="", help="named in the heartbeat, to tell drivers apart")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="start although another driver lives, if it has been silent for long: it cannot write any more",
    )
    parser.add_argument(
        "--silent-after",
        type=float,
        default=SILENT_AFTER_MS / 1_000,
        metavar="SECONDS",
        help="how long a driver must have been silent to be taken over (%(default)g)",
    )
    parser.add_argument(
        "--rotate-after",
        type=int,
        metavar="BATCHES",
        help="end between two batches after so many, for whoever looks after the stream to start the next driver "
        "(never)",
    )
    parser.add_argument(
        "--slow", action="append", default=[], metavar="OPERATOR=MS", help="sleep so long once per batch"
    )
    return parser


class Pulse:
    """Beats once a second beside the query; what the driver is doing is set from outside.

    A driver that has lost its lease beats no more: the newer one speaks for the stream.
    """

    def __init__(self, control: Control, history: Heartbeats, epoch: int, launch_id: str, *, digest: str = "") -> None:
        self.epoch = epoch
        self._control, self._history, self._launch_id, self._digest = control, history, launch_id, digest
        self._doing, self._since_ms, self._batches = "starting", wall_clock_ms(), 0
        self._usage = Usage(os.getpid())
        self._engine: Engine | None = None
        self._disk: Disk | None = None
        self._thread_id: str | None = None
        self._is_heard = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._beat(StreamState.STARTING, None)
        self._thread.start()

    def follow(self, engine: Engine, disk: Disk, thread_id: str) -> None:
        """From now on the stream is running, and its progress is told."""
        self._thread_id, self._disk, self._engine = thread_id, disk, engine
        self._does("waiting for its first batch")

    def begin(self, batch_id: int) -> None:
        """From now on the driver works on a batch."""
        self._does(f"batch {batch_id}")

    def finish(self, batch_id: int) -> None:
        """From now on it waits for the next one, which comes soon: ticks make batches in silence, too."""
        self._batches += 1
        self._does(f"waiting for a batch after {batch_id}")

    def end(self, state: StreamState, *, reason: str | None = None) -> None:
        """The last beat; then the lease is given back."""
        self._over.set()
        self._thread.join()
        self._try_to_beat(state, reason)
        self._control.release()

    def _does(self, what: str) -> None:
        self._doing, self._since_ms = what, wall_clock_ms()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            trouble = self._disk.trouble if self._disk else None
            self._try_to_beat(StreamState.RUNNING if self._engine else StreamState.STARTING, trouble)

    def _try_to_beat(self, state: StreamState, reason: str | None) -> None:
        """Beat if it can be written; a row of beats that cannot is told once."""
        try:
            self._beat(state, reason)
        except OSError as error:
            if self._is_heard:
                log.warning("no heartbeat can be written: %s", error)
            self._is_heard = False
        else:
            self._is_heard = True

    def _beat(self, state: StreamState, reason: str | None) -> None:
        if self._control.epoch() != self.epoch:
            return
        progress = self._engine.progress if self._engine else None
        inputs = progress.inputs if progress else {}
        beat = Heartbeat(
            state=state,
            epoch=self.epoch,
            launch_id=self._launch_id,
            at_ms=wall_clock_ms(),
            pid=os.getpid(),
            batch_id=progress.batch_id if progress else -1,
            offsets={f"{n}/{p}": part.until_offset for n, i in inputs.items() for p, part in i.partitions.items()},
            reason=reason,
            doing=self._doing,
            since_ms=self._since_ms,
            batches=self._batches,
            digest=self._digest,
            host=platform.node(),
        )
        self._control.beat(beat)
        batch_started_at_ms = self._engine.batch_started_at_ms if self._engine else None
        self._history.tell(
            beat, thread_id=self._thread_id, batch_started_at_ms=batch_started_at_ms, usage=self._measured
        )

    def _measured(self) -> dict[str, object]:
        """What the driver takes of its host, and how much there is to do."""
        folders = [bytes_in(self._control.home / name) for name in ("checkpoint", "journal")]
        checkpoint = {"checkpoint_bytes": None if None in folders else sum(size or 0 for size in folders)}
        return {**self._usage.now(), **checkpoint, **(self._engine.load if self._engine else {})}


def check_may_go_on(control: Control, epoch: int) -> None:
    """Raise Ended when a drain was requested, and LeaseLost unless *epoch* is that of the newest driver."""
    if control.drain_requested():
        log.info("a drain was requested: the query ends, which Spark reports as an error")
        raise Ended(StreamState.DRAINED)
    control.check_lease(epoch)


def check_is_not_due_to_rotate(batch: int, rotate_after: int | None) -> None:
    """Raise Ended when the *batch*th batch of this driver is about to begin, and it is to run no more than so many."""
    if rotate_after is not None and batch > max(1, rotate_after):  # each driver gets on by one at least
        log.info("%s batches were run: the query ends, which Spark reports as an error", batch - 1)
        raise Ended(StreamState.ROTATED)


def readers(rows: DataFrame, sub: SubTopology) -> tuple[Collect, SparkExecutors]:
    """What reads the *rows* of a batch of *sub*: here, or in executors."""
    return lambda: collect(rows, sub.operators), SparkExecutors(rows)


def part_readers(
    rows: DataFrame, sub: SubTopology, clusters: Clusters, check: Callable[[], None], part: Part
) -> tuple[Collect, Executors]:
    """What reads *part* of a batch with *rows*; *check* raises when there is no time for another part."""
    check()
    collect_rows, executors = readers(rows_of_part(rows, sub, clusters, part), sub)
    if not part.passed_over:
        return collect_rows, executors
    skipped = passed_over_rows(sub.operators, part)
    return lambda: pl.concat([collect_rows(), skipped], how="diagonal"), ReadByDriver(executors)


def run(options: argparse.Namespace, stream_of: Stream, control: Control, pulse: Pulse, deaths: Deaths) -> StreamState:
    """Run the query until a drain or a rotation ends it, and say which; raises what made it fail.

    *deaths* are those of the drivers before this one.
    """
    topology, sub = stream_of.topology, stream_of.sub
    refuse_unless_sound(evidence(stream_of))
    control.keep_meanings(meanings(sub))
    spark = session(f"tidemark-{topology.name}-{sub.name}")
    have_checkpoints_written(spark, control.home)
    slow_ms = {name: int(ms) for name, _, ms in (item.partition("=") for item in options.slow)}
    clusters = addressed(topology.clusters_used, topology.clusters, options.bootstrap, os.environ)
    broker = KafkaBroker(clusters, topology.name, sub.name, wall_clock_ms)
    refuse_marks_in_compacted(topology, sub, broker)
    thread_id = spark.sparkContext.applicationId

    def reread(source: Source, offsets: Offsets) -> pl.DataFrame:
        return read_again(spark, source, clusters[source.kafka], offsets)

    check_lease = partial(control.check_lease, pulse.epoch)
    check = partial(check_may_go_on, control, pulse.epoch)
    disk = Disk(check)
    host = platform.node()
    clock_skew = ClockSkew(time_of(clusters), stream_of.home, topology.name, sub.name, host, wall_clock_ms)
    clock_skew.start()  # without topics, too: an offset that is known at one end of a hop alone is of no use
    engine = build_engine(
        stream_of,
        broker,
        thread_id=thread_id,
        epoch=pulse.epoch,
        slow_ms=slow_ms,
        reread=reread,
        check_lease=check_lease,
        until_written=disk.until_written,
        host=Host(host, clock_skew.newest),
    )
    ended: list[Exception] = []
    begun, disturbed = count(1), count(1)
    checkpoint = control.home / "checkpoint"
    kills_reader = partial(kills, topology=options.topology, bootstrap=options.bootstrap, spark=spark, check=check)

    def each_batch(rows: DataFrame, batch_id: int) -> None:
        try:
            disk.takes_writes()  # for Spark has planned the batch
            check()
            check_is_not_due_to_rotate(next(begun), options.rotate_after)
            pulse.begin(batch_id)
            plan = planned(checkpoint, batch_id)
            collect_rows, executors = readers(rows, sub)
            engine.process(
                batch_id,
                collect_rows,
                plan.ends,
                executors,
                planned_at_ms=plan.at_ms,
                versions=plan.versions,
                read_part=partial(part_readers, rows, sub, clusters, check),
                passed_over=passed_over(control, deaths, kills_reader) if batch_id == deaths.batch_id else None,
            )
            pulse.finish(batch_id)
        except Exception as error:
            ended.append(error)
            raise

    rows = stream(spark, sub, stream_of.layout, topology.name, clusters)

    def query() -> None:
        """Run until it ends by what we raised, which `ended` has; raises what Spark ended it with."""
        started = (
            rows.writeStream.queryName(f"{topology.name}/{sub.name}")
            .foreachBatch(each_batch)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=f"{topology.trigger_ms} milliseconds")
            .start()
        )
        pulse.follow(engine, disk, thread_id)
        try:
            started.awaitTermination()
        except StreamingQueryException as error:
            check_lease()  # of two drivers with one checkpoint Spark ends either, in words that do not say this
            if CONCURRENT in str(error) and next(disturbed) <= DISTURBED_AT_MOST:
                log.warning("an older driver woke up and wrote into the checkpoint: the query is started again")
                query()
            elif not ended:
                raise explained(error) from None

    try:
        disk.until_written(query)
        raise ended[0]  # Spark wraps what ended the query in its own words; what we raised says it better
    except Ended as end:
        return end.state
    finally:
        clock_skew.end()
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
