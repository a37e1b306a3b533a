"""Runs a stream as a streaming query of Spark."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from pathlib import Path

import polars as pl
from confluent_kafka import KafkaException
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tidemark.clock import wall_clock_ms
from tidemark.control import launch_secrets
from tidemark.control.folder import Control, LeaseLost, StreamState
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import Clusters, addressed_clusters, time_of
from tidemark.model.project.registries import with_secrets
from tidemark.model.project.rights import MissingRight
from tidemark.model.project.secrets import read_given
from tidemark.model.stream import Stream
from tidemark.model.topology import SubTopology, Time
from tidemark.selection import index_by_name, names_in, present
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.semantics.segments import NEXT, SegmentOwner
from tidemark.spark_session import have_checkpoints_written
from tidemark.storage.disk import Disk, Work
from tidemark.storage.fence import Fence
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.driver.clock_skew import ClockSkew
from tidemark.stream.driver.launch import LaunchOptions
from tidemark.stream.driver.pace import Pace
from tidemark.stream.driver.planning import Planning
from tidemark.stream.driver.shared_session import SharedSession
from tidemark.stream.driver.ticks import Ticks
from tidemark.stream.driver.waking import SELDOM_SIGN_EVERY_MS, SIGN_EVERY_MS, Waker
from tidemark.stream.engine import Engine
from tidemark.stream.flush_timer import FlushTimer
from tidemark.stream.journal.checkpoint import Plan, last_tick, make_plan_durable, read_plan
from tidemark.stream.kafka.client import KafkaBroker, refuse_marks_in_compacted
from tidemark.stream.kafka.groups import GroupOffsets, offsets_by_cluster
from tidemark.stream.kafka.looks import ArrivalLooks
from tidemark.stream.kafka.transactions import TransactionWatch, row_of
from tidemark.stream.kafka.watch import BrokerWatch
from tidemark.stream.pulse import BEAT_S, Pulse
from tidemark.stream.read.beyond_spark import BeyondSpark, TopicsUnreadable, overflows
from tidemark.stream.read.data_files import files_of_batch
from tidemark.stream.read.data_loss import Offsets
from tidemark.stream.read.joined_tables import ColumnsChanged
from tidemark.stream.read.parts import BatchPart, RecordsByTopic, passed_over_rows
from tidemark.stream.read.source_tables import SourceTables
from tidemark.stream.read.sources import collect, read_again, rows_of_part, stream, with_numbers
from tidemark.stream.schemas.known_schemas import SchemaStore
from tidemark.stream.shards.on_spark import SparkExecutors
from tidemark.stream.shards.shards import Collect, DriverIntake, Executors
from tidemark.stream.startup.fatal import FailedBatch, records_to_skip
from tidemark.stream.startup.source_list import ask_for_starts
from tidemark.stream.startup.unread import refuse_unstable
from tidemark.stream.trying import TriedStream, try_apart
from tidemark.stream.wiring import build_engine
from tidemark.stream.write.measurement import Host

log = logging.getLogger("tidemark.stream")

CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
"""Spark's error class for a checkpoint file that another writer made first."""
DISTURBED_AT_MOST = 3
"""How often a query is restarted after such an error.

An older driver that wakes up commits a batch and plans another, so there is more than one error.
"""


class RunOptions(LaunchOptions):
    """The command line of a driver, as its parser fills it in.

    Attributes:
        topology: the TOML file of the topology.
        sub_topology: the name of the sub-topology to run.
        bootstrap: addresses of Kafka clusters by name.
        time: the record time to use.
        secrets: a JSON file with the values of secrets of clusters, by key of the settings; None without one.
        rotate_after: the number of batches after which the query ends, or None if it goes on for ever.
        slow: operators, and the time that each sleeps in a batch (ms).
    """

    topology: Path
    sub_topology: str
    bootstrap: list[tuple[str, str]]
    time: Time
    secrets: Path | None
    rotate_after: int | None
    slow: list[tuple[str, int]]


class QueryEnded(Exception):
    """Ends the query in *state*; the next driver runs the pending batch.

    Raised before a batch, or while a batch waits for the disk.
    """

    def __init__(self, state: StreamState) -> None:
        super().__init__(state)
        self.state = state


def check_may_go_on(control: Control, epoch: int) -> None:
    """Raises if this driver must not go on.

    Raises:
        QueryEnded: a drain was requested.
        LeaseLost: a newer driver than the one of *epoch* has the lease.
    """
    if control.drain_requested():
        log.info("drain requested: ending the query, which Spark reports as an error")
        raise QueryEnded(StreamState.DRAINED)
    control.check_lease(epoch)


def is_due_to_rotate(batches: int, rotate_after: int | None) -> bool:
    """Returns True if a driver that ran *batches* is to end."""
    # Each driver runs at least one batch: with --rotate-after 0 a stream would never advance.
    return rotate_after is not None and batches >= max(1, rotate_after)


def check_is_not_due_to_rotate(batches: int, rotate_after: int | None) -> None:
    """Raises QueryEnded if a driver that ran *batches* is to end."""
    if is_due_to_rotate(batches, rotate_after):
        log.info("ran %s batches: ending the query, which Spark reports as an error", batches)
        raise QueryEnded(StreamState.ROTATED)


def upstreams(stream_of: Stream) -> list[Path]:
    """Returns the folders of the streams whose hops *stream_of* reads."""
    return [stream_of.layout.stream(stream_of.topology.name, hop.upstream) for hop in stream_of.sub.hops_read]


def can_ask(sub: SubTopology) -> bool:
    """Returns True if brokers know of all records that *sub* may read.

    A source over several topics may find another topic.
    """
    return not sub.hops_read and all(source.topic for source in sub.outside_sources)


def offsets_read(progress: StreamProgress | None) -> dict[str, dict[int, int]]:
    """Returns the offset up to which each partition was read, by source and partition."""
    return {name: source.offsets_read for name, source in progress.inputs.items()} if progress else {}


def readers(rows: DataFrame, sub: SubTopology, schemas: SchemaStore) -> tuple[Collect, SparkExecutors]:
    """Returns two readers of the *rows* of a batch: a function that collects them, and executors that work on them.

    *schemas* has the schemas of registries.
    """
    return lambda: collect(rows, sub.operators, schemas.resolve), SparkExecutors(rows, schemas.known)


def part_readers(
    rows: DataFrame,
    sub: SubTopology,
    clusters: Clusters,
    schemas: SchemaStore,
    beyond_spark: BeyondSpark | None,
    check: Callable[[], None],
    part: BatchPart,
) -> tuple[Collect, Executors]:
    """Returns the two readers of a *part* of a batch, as `readers` does.

    Args:
        rows: all rows of the batch.
        sub: the sub-topology.
        clusters: the Kafka clusters of its sources.
        schemas: the schemas of registries.
        beyond_spark: reads the topics in place of Spark, if it is given.
        check: raises if the driver must not go on with another part.
        part: the offsets to read, and the records to pass over.
    """
    check()
    part_rows = rows_of_part(rows, sub, clusters, part, topics_too=beyond_spark is None)
    collect_rows, executors = readers(part_rows, sub, schemas)
    if beyond_spark is not None:
        more = partial(beyond_spark.rows, sub.outside_sources, part)
        collect_rows = partial(collect, part_rows, sub.operators, schemas.resolve, more)
    if not part.passed_over:
        return collect_rows, executors if beyond_spark is None else DriverIntake(executors)
    skipped = passed_over_rows(sub.operators, part)
    return lambda: pl.concat([collect_rows(), skipped], how="diagonal"), DriverIntake(executors)


def read_secrets(options: RunOptions) -> dict[str, str]:
    """Returns the secrets of Kafka clusters that the launcher gives."""
    file = options.secrets
    if file is None:
        return {}
    secrets = read_given(file)
    # The launcher wrote the file for this launch alone, so no other process reads it.
    if file.name == launch_secrets.name_of(options.launch_id):
        file.unlink(missing_ok=True)
    return secrets


class StreamQuery:
    """The query of one stream, of which this driver has the lease.

    Args:
        options: the command line.
        stream_of: the stream to run.
        control: its control folder.
        pulse: the heartbeat to report to.
        failed: the newest batch, with the failures of drivers before this one.
        session_of: starts or returns the Spark session.
        secrets: the values of secrets, by key of the settings.
        disk: repeats writes that a full disk refuses, and says so meanwhile.
    """

    def __init__(
        self,
        options: RunOptions,
        stream_of: Stream,
        control: Control,
        pulse: Pulse,
        failed: FailedBatch,
        session_of: SharedSession,
        secrets: Mapping[str, str],
        disk: Disk,
    ) -> None:
        topology, sub = stream_of.topology, stream_of.sub
        self._options, self._stream, self._control = options, stream_of, control
        self._pulse, self._failed = pulse, failed
        self._name, self._checkpoint = f"{topology.name}/{sub.name}", control.home / "checkpoint"
        self._session_of, self._spark = session_of, session_of()
        # Threads that this one starts inherit the pool, so each stream of a process has its own.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._name)
        have_checkpoints_written(self._spark, control.home)
        self._thread_id = self._spark.sparkContext.applicationId
        self._secrets = secrets
        self._clusters = addressed_clusters(
            topology.clusters_used, topology.clusters, options.bootstrap, os.environ, secrets=self._secrets
        )
        self._broker = broker = KafkaBroker(self._clusters, topology.name, sub.name, wall_clock_ms)
        self._source_tables = SourceTables(sub, stream_of.layout.warehouse, self._checkpoint)
        self._transactions = TransactionWatch(broker, self._inputs, wall_clock_ms)
        self._watch = BrokerWatch(broker, wall_clock_ms, look=self._transactions.look)
        self._group = GroupOffsets(
            topology.consumer_group(sub.name),
            lambda: offsets_by_cluster(sub, self._engine.progress or StreamProgress()),
            broker.write_group,
        )
        broker.refuse_denied()
        with suppress(KafkaException, MissingRight):  # Spark asks the same brokers, and says what is wrong
            refuse_unstable(control.home, sub, broker)
        refuse_marks_in_compacted(topology, sub, broker)
        ask_for_starts(control, sub, broker.starts)
        self._beyond_spark = BeyondSpark(self._clusters)
        self._check_lease = partial(control.check_lease, pulse.epoch)
        self._check = partial(check_may_go_on, control, pulse.epoch)
        self._disk = disk
        registries = with_secrets(topology.registries_used, os.environ, self._secrets)
        self._schemas = SchemaStore(registries, control.home, self._check)
        self._schemas.check_latest(sub.outside_sources, topology.file)
        host = platform.node()
        self._clock_skew = ClockSkew(
            time_of(self._clusters), pulse.clock_offsets, topology.name, sub.name, host, wall_clock_ms
        )
        # Streams without topics measure their clock, too: between two streams both offsets have to be known.
        self._clock_skew.start()
        self._looks = ArrivalLooks(broker, pulse.timeline, self._inputs)
        self._engine: Engine = build_engine(
            stream_of,
            broker,
            thread_id=self._thread_id,
            epoch=pulse.epoch,
            slow_ms=dict(options.slow),
            reread=self._reread,
            fence=Fence(self._check_lease, self._disk.until_written),
            host=Host(host, self._clock_skew.newest),
            clock_offsets=pulse.clock_offsets,
            queued=partial(session_of.slots.queued, self._name, self._spark.sparkContext),
            timeline=pulse.timeline,
            looks=self._looks.before,
        )
        self._sources = ", ".join(names_in(sub.sources))
        self._planning = Planning(
            pulse.timeline,
            self._checkpoint,
            self._sources,
            plan_every_ms=topology.trigger_ms,
            clock=wall_clock_ms,
        )
        self._pace = Pace(
            topology.trigger_ms,
            [partial(self._unread, source) for source in sub.outside_sources] if can_ask(sub) else [],
        )
        self._errors: list[Exception] = []
        self._disturbed = count(1)
        asks_seldom = isinstance(control.home, ObjectPath)
        self._is_woken = session_of.hops.wakes(sub, asks_seldom=asks_seldom)
        self._waking = Waker(
            self._due_at_ms,
            partial(control.request_names, pulse.epoch),
            self._waits,
            wall_clock_ms,
            every_s=BEAT_S,
            sign_every_ms=SELDOM_SIGN_EVERY_MS if asks_seldom else SIGN_EVERY_MS,
            is_woken=self._is_woken,
            trigger_ms=topology.trigger_ms,
            pace=self._pace,
        )

    def run(self) -> StreamState | None:
        """Runs the query until a drain or a rotation ends it.

        The query's own error is raised, not Spark's around it.

        Returns:
            The final state, drained or rotated. None if another query should be started, because brokers were silent
            and answer again, or because a joined table has other columns.
        """
        ticks = Ticks(self._spark, last_tick(self._checkpoint))
        sub, layout, topology = self._stream.sub, self._stream.layout, self._stream.topology
        listed = index_by_name(self._control.sources())
        sources = partial(stream, self._spark, sub, layout, topology.name, self._clusters, ticks, listed)
        timer = FlushTimer(self._engine, wall_clock_ms, partial(self._disk.work, Work.FLUSH))
        hops = self._session_of.hops.running(self._stream.home, upstreams(self._stream), self._waking)
        self._watch.start()
        self._looks.start()
        self._group.start()
        try:
            self._source_tables.look()
            self._source_tables.refuse_other_columns()
            with hops:
                error = self._error_of_query(sources(), ticks)
                if isinstance(error, TopicsUnreadable):
                    self._errors.clear()
                    self._beyond_spark.is_needed = self._beyond_spark.always = True
                    error = self._error_of_query(sources(reads_topics=False), ticks)
            if isinstance(error, ColumnsChanged):
                log.info("%s: the next query has tables for them", error)
            else:
                self._pulse.timeline.begin(SegmentOwner.BROKER, self._sources, batch_id=NEXT)
                self._watch.wait_after(error, self._check)
            return None
        except QueryEnded as end:
            with suppress(QueryEnded):  # raised again on a full disk; the next driver merges what this one cannot
                self._engine.settle()
            return end.state
        finally:
            # The timer flushes a last time, so it ends after the last batch was carried out.
            timer.end()
            self._group.end()
            self._clock_skew.end()
            self._looks.end()
            self._watch.end()

    def _error_of_query(self, rows: DataFrame, ticks: Ticks) -> Exception:
        """Runs the query over *rows*, and returns the error that ended it.

        Raises:
            QueryEnded: no error ended it.
            LeaseLost: another driver has the lease.
        """
        sources = self._stream.sub.outside_sources
        try:
            self._disk.until_written(partial(self._query, rows, ticks))
        except (QueryEnded, LeaseLost):
            raise
        except Exception as error:
            return self._broker.explained(error, sources)
        # The error that this process raised is clearer than Spark's error around it.
        first = self._errors[0]
        if isinstance(first, QueryEnded):
            raise first
        return self._broker.explained(self._source_tables.explained(first), sources)

    def _query(self, rows: DataFrame, ticks: Ticks) -> None:
        """Runs the query over *rows* until an error ends it.

        If this process raised the error, it is in `_errors`. Otherwise Spark's error is raised here, explained.
        """
        writing = (
            rows.writeStream.queryName(self._name)
            .foreachBatch(self._run_batch)
            .option("checkpointLocation", str(self._checkpoint))
            # A batch waits at its end for the time of the next (Waker.finish). A trigger of Spark would start batches
            # at multiples of its interval.
            .trigger(processingTime="0 milliseconds")
        )
        started = self._session_of.start(writing, plan_every_ms=self._stream.topology.trigger_ms)
        self._planning.started(started)
        self._pulse.follow(
            self._engine,
            (self._schemas, self._watch),
            self._thread_id,
            open_transactions=lambda: [row_of(transaction) for transaction in self._transactions.open],
        )
        try:
            with self._waking.ticking(ticks.tick):
                started.awaitTermination()
        except StreamingQueryException as error:
            # Of two drivers with one checkpoint Spark ends either one, and its error does not say why.
            self._check_lease()
            if CONCURRENT in str(error) and next(self._disturbed) <= DISTURBED_AT_MOST:
                log.warning("an older driver resumed and wrote to the checkpoint: restarting the query")
                self._query(rows, ticks)
            elif not self._errors:
                raise self._source_tables.explained(error) from None

    def _run_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Runs a batch, and keeps its error for `run`."""
        # The JVM calls this in another thread, whose name is not that of the stream yet.
        threading.current_thread().name = self._name
        try:
            plan = read_plan(self._checkpoint, batch_id)
            excluded_ms = self._planning.book(batch_id, plan.at_ms)
            self._waking.begin()
            self._disk.takes_writes()  # Spark has planned the batch, and that was a write to the checkpoint
            self._check()
            self._source_tables.look()
            check_is_not_due_to_rotate(self._pulse.batches, self._options.rotate_after)
            self._pulse.begin(batch_id)
            before = self._engine.progress
            # After an error Spark runs the last batch again, which does not wait for the disk.
            with nullcontext() if self._engine.has_done(batch_id) else self._disk.work(Work.BATCH):
                self._process(rows, batch_id, plan, max(present((excluded_ms, self._pace.in_vain_ms)), default=None))
            self._pulse.finish(batch_id)
            self._group.wake()
            after = self._engine.progress
            has_changed, has_read = after is not before, offsets_read(after) != offsets_read(before)
            if has_changed:
                self._session_of.hops.committed(self._stream.home)
            # Spark records the batch as done only when this returns; after a crash it is found in the journal.
            self._pulse.timeline.begin(SegmentOwner.TRIGGER, batch_id=NEXT)
            self._waking.finish(has_changed=has_changed, has_read=has_read)
            self._planning.returned(batch_id)
        except Exception as error:
            self._errors.append(error)
            raise

    def _process(self, rows: DataFrame, batch_id: int, plan: Plan, excluded_boot_ms: int | None) -> None:
        make_plan_durable(self._checkpoint, batch_id)
        warehouse, progress = self._stream.layout.warehouse, self._engine.progress
        files = files_of_batch(self._stream.sub, warehouse, self._checkpoint, batch_id, progress)
        rows = files.added_to(rows)
        collect_rows, executors = readers(rows, self._stream.sub, self._schemas)

        def process(passed_over: RecordsByTopic | None, beyond_spark: BeyondSpark | None) -> None:
            self._engine.process(
                batch_id,
                collect_rows,
                plan.ends,
                executors,
                planned_at_ms=plan.at_ms,
                excluded_boot_ms=excluded_boot_ms,
                versions=plan.versions,
                files=files.sizes,
                read=lambda was: readers(with_numbers(rows, self._stream.sub, was), self._stream.sub, self._schemas),
                read_part=partial(
                    part_readers, rows, self._stream.sub, self._clusters, self._schemas, beyond_spark, self._check
                ),
                passed_over=passed_over,
            )

        with self._session_of.slots.batch(self._name):
            passed_over = self._passed_over() if batch_id == self._failed.batch_id else None
            if not self._beyond_spark.is_needed:
                try:
                    process(passed_over, None)
                except Exception as error:
                    if not overflows(error):
                        raise
                    log.warning("batch %s has a record whose broker's time Spark cannot read", batch_id)
                    if not can_ask(self._stream.sub):
                        raise TopicsUnreadable from error
                else:
                    return
            # Without Spark's reader a batch is read by its offsets, which is the way of parts, even if there is one.
            process(passed_over or {}, self._beyond_spark)

    def _passed_over(self) -> RecordsByTopic | None:
        tried = TriedStream(
            topology=str(self._options.topology),
            sub_topology=self._stream.sub.name,
            warehouse=str(self._stream.layout.warehouse),
            time=self._options.time,
            batch_id=self._failed.batch_id,
            bootstrap=self._options.bootstrap,
            secrets=dict(self._secrets),
        )
        try_records = partial(try_apart, tried=tried, spark=self._spark, check=self._check)
        return records_to_skip(self._control, self._stream.sub, self._failed, try_records)

    def _reread(self, source: Source, offsets: Offsets) -> pl.DataFrame:
        return read_again(self._spark, source, self._clusters[source.kafka], offsets, self._schemas.resolve)

    def _inputs(self) -> Iterator[tuple[Source, list[int]]]:
        """Yields the sources over topics with their input partitions, as of the newest batch."""
        progress = self._engine.progress or StreamProgress()
        for source in self._stream.sub.outside_sources:
            if source.topic:
                was = progress.inputs.get(source.name, InputProgress())
                yield source.with_topic_partitions(was.places), [*was.partitions]

    def _unread(self, source: Source) -> int:
        """Asks the broker how many records of *source* no batch has read."""
        read_to = offsets_read(self._engine.progress).get(source.name, {})
        latest = self._broker.latest(source, [*read_to])
        return sum(max(0, latest[partition] - offset) for partition, offset in read_to.items())

    def _waits(self, now_ms: int) -> None:
        self._pulse.waits(now_ms)
        self._planning.waits()

    def _due_at_ms(self) -> int | None:
        is_due = is_due_to_rotate(self._pulse.batches, self._options.rotate_after) or self._source_tables.is_replaced
        return 0 if is_due else self._engine.due_at_ms
