"""Decides a batch whose operators run in shards.

Spark's tasks do the work, and the driver sums up their results, so that as a rule no record comes to the driver. The
journal entry is carried out, and repeated, like any other. If a batch was never decided, its files belong to no table,
and VACUUM removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import polars as pl
import pyarrow as pa

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.kernels.records.read_ages import summed
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import HOP
from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.segments import TASKS_OF_SPARK, SegmentOwner
from tidemark.storage.disk import trouble_of
from tidemark.storage.fence import Fence
from tidemark.storage.files import Rows, files_written_for
from tidemark.storage.location import remove_folder
from tidemark.stream.decide.decision import BatchDecision, Decider, Tally, with_rows
from tidemark.stream.decide.waits import READS_OF, RESULTS_OF, SLOW_KEYS_OF
from tidemark.stream.driver.versions import Versions
from tidemark.stream.journal.batch import MicroBatch, QueueWait
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.broker import Answers, Publishers, TopicState, TopicWriter
from tidemark.stream.kafka.numbering import with_topic_partitions
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import COPIES, Reference
from tidemark.stream.read.table_marks import NewestMarks
from tidemark.stream.shards.answers import BatchAnswers
from tidemark.stream.shards.host_clocks import HostClocks
from tidemark.stream.shards.resharding import reshard, states_after
from tidemark.stream.shards.sharding import sharding
from tidemark.stream.shards.tasks import ROWS, SEQ_BITS, Dealt, IntakeTask, ShardTask, Task
from tidemark.stream.shards.totals import (
    BatchIntake,
    ShardResult,
    concatenate,
    concatenated,
    rows_by_name,
    tally_operators,
)
from tidemark.stream.state.files import StateFiles
from tidemark.stream.updates.step import Run

log = logging.getLogger("tidemark.stream")

Collect = Callable[[], pl.DataFrame]
"""Reads the batch into the driver, and parses it."""


class Executors(Publishers, Protocol):
    """Runs tasks over the rows of one batch, and returns their results in the order of shards."""

    def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
        """Runs *taking_in* on each partition of each source, then *working* for each shard on what was dealt to it."""

    def work(self, working: ShardTask, dealt: Iterable[Dealt]) -> list[ShardResult]:
        """Runs *working* for each shard on what the driver has *dealt* to it."""


@dataclass(frozen=True)
class DriverIntake:
    """Executors with which the driver reads the batch itself; *executors* do all other work."""

    executors: Executors

    def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
        """Reads nothing, and returns a doubtful result, so that the driver takes in the batch."""
        # The caller reads the batch itself when a shard is doubtful.
        return [ShardResult(shard=0, is_doubtful=True)]

    def work(self, working: ShardTask, dealt: Iterable[Dealt]) -> list[ShardResult]:
        """Runs *working* for each shard on what the driver has *dealt* to it."""
        return self.executors.work(working, dealt)

    def publish(self, publishing: TopicWriter) -> list[pl.DataFrame]:
        """Runs all tasks of *publishing*."""
        return self.executors.publish(publishing)


class Shards:
    """Decides the batches of a stream whose operators run in shards.

    Args:
        stream: the stream.
        decider: decides what needs no records: progress, closed windows, marks.
        steps: the operators, from whose keys it follows how records are dealt out.
        reference: reads joined Delta tables.
        journal: the stream's journal.
        broker: answers questions about topics.
        table_marks: the newest mark of time in the log of a Delta table.
        fence: repeats a whole attempt if a disk rejected a file. The files that the attempt has written are removed
            before, unless the lease is lost: then a newer driver may have written files of the same batch.
        host_clocks: estimates the clocks of other hosts.
        slow_ms: by operator, how long it sleeps, for tests.
        queued: returns how long the batch waited for Spark's task slots since an instant of the driver's clock.
        timeline: records what the driver does.
    """

    def __init__(
        self,
        stream: Stream,
        decider: Decider,
        steps: Steps,
        reference: Reference,
        journal: Journal,
        broker: Answers,
        table_marks: NewestMarks,
        fence: Fence,
        host_clocks: HostClocks,
        *,
        slow_ms: Mapping[str, int],
        queued: Callable[[int], QueueWait],
        timeline: Timeline,
    ) -> None:
        self._fence, self._queued, self._timeline = fence, queued, timeline
        self._stream, self._reference, self._journal = stream, reference, journal
        self._broker, self._table_marks = broker, table_marks
        self._decider, self._host_clocks = decider, host_clocks
        self._slow_ms = slow_ms
        self._states: Sequence[StateRuns] | None = None
        self._versions = Versions.here()
        self._sharding = sharding(stream.topology, stream.sub, steps)
        self._schemas = {name: dict(schema) for name, schema in steps.schemas.items()}
        self._hops = {o.name: steps.hop_columns(o) for o in stream.sub.hops_read}

    def decide(
        self, executors: Executors, collect: Collect, was: StreamProgress, batch: MicroBatch
    ) -> BatchDecision | None:
        """Decides *batch*, of which nothing has been read yet; returns None if it changes nothing.

        Args:
            executors: Run the tasks.
            collect: Reads the batch into the driver, if that is necessary.
            was: The progress before the batch.
            batch: The batch as Spark planned it.
        """
        self._forget(batch.epoch)
        if self._states is None:
            self._states = self._states_after_newest()
        task = Task(
            stream=self._stream,
            batch=batch,
            was=was,
            sharding=self._sharding,
            answers=BatchAnswers.ask(self._stream.sub, was, batch, self._broker, self._table_marks),
            versions=self._versions,
        )
        decision = self._fence.until_written(lambda: self._decide_or_clean_up(executors, collect, task))
        if decision is not None:
            self._states = decision.entry.notes.states
        return decision

    def _forget(self, epoch: int) -> None:
        """Removes the rows of earlier batches, and the joined tables that earlier drivers left.

        Earlier batches are finished once another is to be decided.
        """
        # The folders are named by the epochs of drivers.
        for folder in (self._stream.control / ROWS).glob("*"):
            # A driver that has lost its lease without noticing must remove nothing of newer drivers.
            if int(folder.name) <= epoch:
                remove_folder(folder)
        for folder in (self._stream.control / COPIES).glob("*"):
            if int(folder.name) < epoch:
                remove_folder(folder)

    def _decide_or_clean_up(self, executors: Executors, collect: Collect, task: Task) -> BatchDecision | None:
        """Returns the decision on the batch of *task*."""
        try:
            return self._decide(executors, collect, task)
        except Exception as error:
            # The disk rejects a file: the space of the batch's other files is given back before the next try.
            if trouble_of(error) is not None:
                written = files_written_for(self._stream.home, task.batch.batch_id)
                # After the files were seen: a driver that comes later has not written any of them.
                self._fence.check_lease()
                for file in written:
                    file.unlink(missing_ok=True)
                remove_folder(task.folder)
            raise

    def _decide(self, executors: Executors, collect: Collect, task: Task) -> BatchDecision | None:
        began_ms, was, batch = self._fence.clock(), task.was, task.batch
        shard_task = self._shard_task(task)
        # A hop whose log is cut may lack rows, which only the driver can look for.
        if self._is_any_hop_cut(was):
            executors = DriverIntake(executors)
        intake_task = IntakeTask(**vars(task), late_up_to_ms=self._decider.late_up_to_ms(was), hops=self._hops)
        self._timeline.begin(SegmentOwner.SPARK, TASKS_OF_SPARK)
        working_ms, results = self._timeline.clock(), executors.run(intake_task, shard_task)
        taken_in = results[0].taken_in
        # A topic that was recreated while tasks read it has given them records of two topics.
        is_recreated = task.answers.of_topics != self._topics_now(was)
        if taken_in is None or is_recreated or any(shard.is_doubtful for shard in results):
            log.warning(
                "a topic or hop may have lost records, a record is skipped, or one has a new schema: "
                "the driver reads this batch"
            )
            taken_in, dealt = self._read_by_driver(collect, task)
            self._timeline.begin(SegmentOwner.SPARK, TASKS_OF_SPARK)
            results = executors.work(replace(shard_task, taken_in=taken_in), dealt)
        ended_ms = self._fence.clock()
        queued = self._queued(began_ms)
        self._timeline.book(SegmentOwner.SLOTS, ", ".join(queued.behind), until_ms=working_ms + queued.ms)
        self._timeline.begin(SegmentOwner.ENGINE)
        self._fence.reached("worked on")
        if not any(shard.is_news for shard in results):
            return None
        batch = replace(batch, read_at_ms=ended_ms, queued=queued)
        runs, moved, state_bytes = [*taken_in.task_runs], dict[str, pa.Table](), 0
        for shard in results:
            runs += shard.task_runs
            moved |= shard.moved
            state_bytes += shard.state_bytes
        # Instants of hosts are compared only after they are on the driver's clock.
        runs = self._host_clocks.adjusted(runs, began_ms=began_ms, ended_ms=ended_ms)
        clocks = {"began_ms": began_ms, "ended_ms": ended_ms, "queued_ms": batch.queued.ms}
        tallies = tally_operators(taken_in, results, runs, **clocks)
        tables = rows_by_name((taken_in.tables, *(shard.tables for shard in results)), task.lay_out)
        results_of_shards = concatenated(shard.results for shard in results)
        tables |= with_rows(READS_OF, self._decider.waits.numbered(taken_in.reads, was))
        tables |= with_rows(SLOW_KEYS_OF, taken_in.slow_keys)
        tables |= with_rows(RESULTS_OF, {name: summed(rows, "row") for name, rows in results_of_shards.items()})
        hops = self._decider.for_tables.hops
        for name in hops:
            # A hop may get a mark of time even in a batch without rows.
            tables.setdefault(name, arrow_schema(HOP).empty_table())
        # The mark that ends a commit of a hop is numbered after the rows of every shard.
        last = dict.fromkeys(hops, self._stream.shards << SEQ_BITS)

        def join(name: str, rows: Rows, mark: pa.Table) -> Rows:
            return concatenate([rows, mark], partial(task.lay_out, name))

        entry, now = self._decider.conclude(
            batch, was, taken_in.now, taken_in.seen, tallies, tables, last, join, taken_in.passing
        )
        notes = entry.notes.with_states([shard.state for shard in results], tasks=runs)
        return BatchDecision(replace(entry, tables={**entry.tables, **moved}, notes=notes), now, None, state_bytes)

    def _topics_now(self, was: StreamProgress) -> dict[str, TopicState]:
        return {
            o.name: self._broker.topic(with_topic_partitions(o, was))
            for o in self._stream.sub.outside_sources
            if o.topic
        }

    def _is_any_hop_cut(self, was: StreamProgress) -> bool:
        """Returns True if the log of a hop lacks batches that are unread.

        Raises:
            DataLost: the loss was not accepted.
        """
        read_hops = self._stream.sub.hops_read
        return any(self._decider.reader.lost_of_hop(source, was.inputs.get(source.name)) for source in read_hops)

    def _shard_task(self, task: Task) -> ShardTask:
        # The driver has chosen the versions of joined tables, so that all shards of the batch read the same ones.
        for table in self._reference.versions:
            self._reference.leave_copy(table, task.copies)
        return ShardTask(
            **vars(task),
            states=tuple(self._states or ()),
            schemas=self._schemas,
            references=dict(self._reference.versions),
            slow_ms=self._slow_ms,
        )

    def _read_by_driver(self, collect: Collect, task: Task) -> tuple[BatchIntake, list[Dealt]]:
        """Has the driver read the batch itself; returns what the sources took in, and the records dealt to shards."""
        intakes = self._decider.take_in(collect(), task.batch, task.was)
        read = {name: intake.read for name, intake in intakes.items()}
        reads = self._decider.waits.read(read, task.was, task.batch)
        readings: dict[str, Mapping[int, PartitionReading]] = {}
        tallies: dict[str, Tally] = {}
        runs: dict[str, Run] = {}
        dealt: list[Dealt] = []
        for name, intake in intakes.items():
            readings[name], runs[name] = intake.seen, intake.run
            tallies[name] = Tally.of(intake.run, window_ms=self._decider.window_ms)
            records = intake.run.output.with_columns(intake.order)
            if name in reads:
                records = reads[name].beside(records)
            # All records come from one task here, so their partition matters no more.
            dealt += task.dealt(name, 0, records)
        now = self._decider.with_intakes(task.was, intakes, task.batch)
        return BatchIntake(
            now=now,
            seen=readings,
            tallies=tallies,
            tables=task.lay_out_large(task.tables(runs)),
            reads={name: counted.rows for name, counted in reads.items()},
            passing=self._decider.waits.passing(read),
            slow_keys=self._decider.waits.slow_keys(read, task.batch),
        ), dealt

    def _states_after_newest(self) -> Sequence[StateRuns]:
        """Returns the files with the state of each shard after the newest entry.

        If the number of shards has changed, the state is dealt out again.
        """
        newest = self._journal.newest()
        if newest is None:
            # StateRuns are never changed in place, so all shards may share one.
            return [StateRuns()] * self._stream.shards
        states = states_after(self._stream, newest)
        if states is not None and len(states) == self._stream.shards:
            return states
        log.info(
            "partitioning the state into %d shards; `tidemark reshard` does this before a start", self._stream.shards
        )
        return reshard(self._stream, self._journal, newest, self._sharding, self._state_files, log.info)

    def _state_files(self, number: int) -> StateFiles:
        return StateFiles(self._stream, self._journal, number, self._stream.shards, self._fence)
