"""Runs the batches of a stream: recover, decide, write to the journal, carry out. Only this module knows the order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tidemark.control.folder import ListedSource
from tidemark.errors import Contradiction
from tidemark.kernels.sql.constraints import Constraint
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import COMPLETENESS
from tidemark.selection import names_in, present
from tidemark.semantics.catching_up import READS, BatchRead, catching_up
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.segments import FACTS, JOURNAL, SegmentOwner
from tidemark.storage.delta.requirements import TableWatch
from tidemark.storage.fence import Fence
from tidemark.stream.decide.decision import BatchDecision, Decider
from tidemark.stream.decide.due import DueTimes
from tidemark.stream.journal.batch import MicroBatch, QueueWait
from tidemark.stream.journal.checkpoint import Ends, committed_at_ms
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.state_runs import StateRun
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.numbering import (
    multi_topic_sources,
    number_partitions,
    number_records,
    with_topic_partitions,
)
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import JoinedTables
from tidemark.stream.read.parts import BatchPart, RecordsByTopic, parts
from tidemark.stream.shards.resharding import begun_behind, reshard, states_after
from tidemark.stream.shards.shards import Collect, Executors, Shards
from tidemark.stream.startup.fatal import blame
from tidemark.stream.startup.load import load_whole
from tidemark.stream.startup.source_list import continued
from tidemark.stream.state.files import StateFiles, remove_unnamed
from tidemark.stream.write.commit import BatchCommitter
from tidemark.stream.write.flushing import Flusher

log = logging.getLogger("tidemark.stream")

Applied = Callable[[StreamProgress, int], StreamProgress]
"""Returns the progress with the requests of people applied (set time back, reopen windows) for a batch number."""
FileSizes = Mapping[str, Mapping[str, int]]
"""By source and name of a file, its bytes."""
Read = Callable[[StreamProgress], tuple[Collect, Executors | None]]
"""Returns the readers of a batch, in which partitions have the numbers that the progress gives them."""
ReadPart = Callable[[BatchPart], tuple[Collect, Executors | None]]
"""Returns the readers of a part of a batch: one that reads into the driver, and one that works on executors."""


class Engine:
    """Runs the batches of *stream*.

    Purpose: Spark's `foreachBatch` calls `process`, which does everything that belongs to a batch.

    How it works: a batch that is in the journal already is carried out again. Any other batch is decided, written to
    the journal and carried out; only then does the state in memory change. Facts (measurements and proofs) follow with
    `flush`, which a timer may call, too. The first batch that needs the state in memory loads it from files and the
    journal. With *shards*, executors keep the states. A batch that was planned too large runs in parts; each part is a
    batch with its own number.

    Known limitation: a crash between a record's arrival in a Kafka sink and the end of the batch sends it twice.

    Args:
        epoch: the number of the driver's lease.
        requests: each applies the requests of people to the progress from which a batch is decided.
        queued: returns how long a batch that began at an instant waited for Spark's task slots.
        listed: the sources in the order of the checkpoint, as the control folder lists them.

    Attributes:
        progress: how far the stream has come; None before the first batch.
        batch_started_at_ms: the clock at which the current batch began; None between batches.
        load: how much work there was in the last batches, as columns of `heartbeats`.
        due_at_ms: the decision time at which the next batch is due even without new input; None if none will be. The
            first batch is due at once.
    """

    def __init__(
        self,
        stream: Stream,
        steps: Steps,
        decider: Decider,
        shards: Shards | None,
        journal: Journal,
        committing: BatchCommitter,
        flushing: Flusher,
        fence: Fence,
        *,
        epoch: int,
        requests: Sequence[Applied],
        state: StateFiles,
        due: DueTimes,
        queued: Callable[[int], QueueWait],
        tables: TableWatch,
        joined: JoinedTables,
        timeline: Timeline,
        listed: Sequence[ListedSource] = (),
    ) -> None:
        self._listed = listed
        self._tables, self._joined, self._timeline = tables, joined, timeline
        self._looked_boot_ms: int | None = None
        self._queued = queued
        self._requests, self._state, self._due = requests, state, due
        self._stream, self._steps, self._decider = stream, steps, decider
        self._journal, self._committing, self._fence, self._epoch = journal, committing, fence, epoch
        self._flushing = flushing
        self.flush, self.flush_if_due = flushing.flush, flushing.flush_if_due
        self._shards = shards
        self._is_loaded = False
        self._sources = ", ".join(names_in(stream.sub.sources))
        self._goes_on = False  # the newest batch is a part, and more parts follow
        self._runs: list[tuple[StateRun, ...]] = []
        self.progress: StreamProgress | None = None
        self.batch_started_at_ms: int | None = None
        self.load: Mapping[str, int | float | None] = {"ambiguous_keys": joined.ambiguous_keys}
        self._reads: deque[BatchRead] = deque(maxlen=READS)
        self._asked_at_ms = 0  # when brokers were last asked for their latest offsets
        self.due_at_ms: int | None = 0

    @property
    def reached(self) -> tuple[int, dict[str, int]]:
        """The last finished batch, or -1 before the first, and up to which offset it read each `source/partition`."""
        if self.progress is None:
            return -1, {}
        offsets: dict[str, int] = {}
        for name, source in self.progress.inputs.items():
            for number, part in source.partitions.items():
                offsets[f"{name}/{number}"] = part.until_offset
        return self.progress.batch_id, offsets

    def process(
        self,
        batch_id: int,
        collect: Collect,
        ends: Ends = MappingProxyType({}),
        executors: Executors | None = None,
        *,
        planned_at_ms: int | None = None,
        excluded_boot_ms: int | None = None,
        versions: Mapping[str, int] = MappingProxyType({}),
        files: FileSizes = MappingProxyType({}),
        read: Read | None = None,
        read_part: ReadPart | None = None,
        passed_over: RecordsByTopic | None = None,
    ) -> None:
        """Decides a batch that Spark planned and carries it out.

        A batch that was carried out before is skipped.

        Args:
            batch_id: Spark's number of the batch.
            collect: reads the rows of the batch.
            ends: the offsets, per topic and partition, up to which Spark reads.
            executors: work on batches in shards.
            planned_at_ms: the time as of which the batch is decided, epoch ms, or None for the clock. It must be the
                same when the batch is run again.
            excluded_boot_ms: when the driver looked for records after the batch before and found none, by the boot
                clock; None if there was no such look, or it is not known.
            versions: per id of a Delta table, the version before which the table is read.
            files: by source and name, the bytes of files that the batch reads, or that have grown.
            read: reads a batch with sources of several topics, once their partitions have numbers; it replaces
                *collect* and *executors*. None if the partitions have numbers already.
            read_part: reads the parts of a batch that is too large. If it is None, the batch is not cut.
            passed_over: records to skip, by topic, partition and offset. If it is given, even empty, the batch is
                read in parts; if it is None, as planned.
        """
        is_first = self.progress is None
        if self.progress is None:
            self.progress = self._recover(batch_id, executors)
            self._refresh(self.progress, at_once=True)
        if self.has_done(batch_id):
            return
        # A driver that was killed between two parts gets the same batch from Spark again.
        is_begun = batch_id == self.progress.planned_id
        sub, reader = self._stream.sub, self._decider.reader
        if multi_topic_sources(sub):
            ends = self._with_numbers(ends, is_first=is_first)
            passed_over = passed_over and number_records(sub, passed_over, self.progress)
            collect, executors = read(self.progress) if read else (collect, executors)
        # A recreated topic ends the driver. So an accepted loss of one matters only in the first batch of a driver.
        was = reader.from_accepted(sub.outside_sources, self.progress, ends) if is_first else self.progress
        absent = reader.absent(multi_topic_sources(sub), was, ends)
        cut = parts(sub, ends, was, reader.earliest, is_begun=is_begun, passed_over=passed_over, absent=absent)
        if read_part is None or any(part.is_whole for part in cut):
            batch = self._batch(batch_id + self.progress.ahead, ends, versions, files, planned_at_ms)
            self._decide(self._looked(batch, planned_at_ms, excluded_boot_ms), self.progress, collect, executors)
            return
        for part in cut:
            # Only the first part reads tables and files.
            read_first = (versions, files) if part.is_first else ({}, {})
            self._decide_part(part, batch_id, planned_at_ms, excluded_boot_ms, *read_first, read_part)

    def _with_numbers(self, ends: Ends, *, is_first: bool) -> Ends:
        """Returns *ends* by input partition: of the sources that read several topics, new partitions get numbers."""
        assert self.progress is not None
        new = [
            source
            for source in multi_topic_sources(self._stream.sub)
            if not with_topic_partitions(source, self.progress).topic_partitions
        ]
        ends, self.progress = number_partitions(self._stream.sub, ends, self.progress)
        if others := sorted({*ends} - {source.topic for source in self._stream.sub.outside_sources}):
            # Their records would have no number.
            msg = f"{self._stream.control}/checkpoint: the plan has {', '.join(others)}, which no source reads"
            raise Contradiction(msg)
        for source in new:
            # A listed topic that is missing before the first batch ends the driver; a pattern may match topics later.
            self._decider.reader.topic(source)
            if is_first and not with_topic_partitions(source, self.progress).topic_partitions:
                log.warning("%s: no topic matches %r yet", source.name, source.topic)
        return ends

    def has_done(self, batch_id: int) -> bool:
        """Returns True if it is known that Spark's batch *batch_id* was carried out before."""
        if self.progress is None:
            return False
        return batch_id < self.progress.planned_id or (batch_id == self.progress.planned_id and not self._goes_on)

    def settle(self) -> None:
        """Merges all rows into the tables with the current row of each key, when the driver ends."""
        self._refresh(self.progress, at_once=True)

    def _refresh(self, progress: StreamProgress | None, *, at_once: bool = False) -> None:
        """Merges rows up to the batch of *progress* into the tables with the current row of each key.

        Only tables that are due are merged, or all of them *at_once*.
        """
        if progress is not None and progress.batch_id >= 0:
            self._committing.refresh(progress, at_once=at_once)

    def _decide_part(
        self,
        part: BatchPart,
        batch_id: int,
        planned_at_ms: int | None,
        excluded_boot_ms: int | None,
        versions: Mapping[str, int],
        files: FileSizes,
        read_part: ReadPart,
    ) -> None:
        """Decides *part* of a planned batch and carries it out.

        Args:
            part: the part to read.
            batch_id: Spark's number of the planned batch.
            planned_at_ms: the time as of which the part is decided, epoch ms, or None for the clock.
            excluded_boot_ms: as for `process`.
            versions: per id of a Delta table, the version before which the table is read.
            files: by source and name, the bytes of files that are read.
            read_part: reads the part.
        """
        was = self.progress
        assert was is not None
        # The stream numbers each part as a batch, so with each further part its numbers are one more ahead of Spark's.
        if was.planned_id == batch_id:
            was = replace(was, ahead=was.ahead + 1)
        log.warning("processing batch %s in parts: this part reads %s", batch_id, dict(part.ranges))
        batch = self._batch(batch_id + was.ahead, part.ends, versions, files, planned_at_ms)
        # The records of a later part waited for the part before it, so they are looked at when that one has ended.
        looked_at_ms = planned_at_ms if part.is_first else None
        batch = self._looked(replace(batch, is_last=part.is_last), looked_at_ms, excluded_boot_ms)
        self._decide(batch, was, *read_part(part))

    def _batch(
        self, batch_id: int, ends: Ends, versions: Mapping[str, int], files: FileSizes, planned_at_ms: int | None
    ) -> MicroBatch:
        assert self.progress is not None
        now_ms = self._fence.clock()
        return MicroBatch(
            batch_id=batch_id,
            epoch=self._epoch,
            decided_at_ms=self.progress.decided_at(now_ms if planned_at_ms is None else planned_at_ms),
            started_at_ms=now_ms,
            started_boot_ms=self._timeline.clock(),
            read_at_ms=now_ms,
            ends=dict(ends),
            versions=dict(versions),
            files=dict(files),
        )

    def _looked(self, batch: MicroBatch, planned_at_ms: int | None, excluded_boot_ms: int | None) -> MicroBatch:
        """Returns *batch* with the instants, by the boot clock, at which the driver looked for records.

        Args:
            batch: the batch.
            planned_at_ms: when the driver looked for the records of the batch, epoch ms; None for now.
            excluded_boot_ms: when it had looked before that, and not found them; None if that is not known.
        """
        age_ms = 0 if planned_at_ms is None else batch.started_at_ms - planned_at_ms
        looked_boot_ms, before_ms = batch.started_boot_ms - age_ms, self._looked_boot_ms
        if excluded_boot_ms is None or (before_ms is not None and before_ms > excluded_boot_ms):
            excluded_boot_ms = before_ms
        self._looked_boot_ms = looked_boot_ms
        return replace(batch, looked_boot_ms=looked_boot_ms, excluded_boot_ms=excluded_boot_ms)

    def _decide(self, batch: MicroBatch, was: StreamProgress, collect: Collect, executors: Executors | None) -> None:
        """Decides *batch*, writes the decision to the journal and carries it out.

        Args:
            batch: the batch, or a part of one.
            was: the progress before it.
            collect: reads its rows.
            executors: work on it if states are in shards.
        """
        self._timeline.work_on(batch.batch_id)
        # A decided batch must be written. So whether tables can be written is asked before.
        self._tables.look()
        self._joined.look()
        batch = replace(batch, constraints=self._constraints(), refused=self._committing.refused)
        self.batch_started_at_ms = self._asked_at_ms = batch.started_at_ms
        # Requests are applied to the progress that the entry will have, so a batch that runs again applies none twice.
        for apply_request in self._requests:
            was = apply_request(was, batch.batch_id)
        if self._shards and executors:
            decision = self._shards.decide(executors, collect, was, batch)
        else:
            decision = self._decide_in_driver(batch, collect, was)
        if decision is not None:
            # A crash after this leaves files that no table names; maintenance removes them.
            entry = self._committing.lay_out(self._with_state(decision, was))
            states = entry.notes.states
            entry = self._flushing.with_facts(entry)
            self._timeline.begin(SegmentOwner.TARGET, JOURNAL)
            segments = self._timeline.since_entry()
            entry = replace(entry, notes=entry.notes.with_segments(segments))
            # An entry is needed until the tables have its facts and a run has its states.
            needed_after = min(self._flushing.flushed, *(state.batch_id for state in states))
            # What is in the journal will happen: a driver that is killed from here on carries it out after its restart.
            self._journal.write(entry, needed_after=needed_after)
            self._timeline.recorded(segments)
            self._timeline.begin(SegmentOwner.ENGINE)
            self._committing.refused = {}  # these are in the entry
            self._committing.carry_out(entry, executors)
            self._timeline.begin(SegmentOwner.TARGET, JOURNAL)
            self._journal.record_carried_out(entry)
            self._timeline.begin(SegmentOwner.ENGINE)
            # If committing fails, memory is still as the last committed batch left it.
            if decision.moves is not None:
                self._steps.apply(decision.moves, watermark_ms=decision.progress.watermark_ms)
                self._state.advance(self._steps.memory, states[0], batch.batch_id)
            if self._runs != (runs := [state.runs for state in states]):
                # Only now there is a durable entry that does not name the old runs any more.
                remove_unnamed(self._stream.control, states, check_lease=self._fence.check_lease)
                self._runs = runs
            self.progress, self._goes_on = decision.progress, not batch.is_last
            state_bytes = self._steps.memory.bytes() if decision.moves is not None else decision.state_bytes
            self.load = {**self.load, **self._backlog(entry), "state_bytes": state_bytes}
        else:
            self._timeline.changed_nothing()
        # If the batch completes an interval, all rows are merged: its readers must find all of them.
        self._refresh(self.progress, at_once=decision is not None and COMPLETENESS.name in decision.entry.tables)
        due_at_ms = self._due.next_at_ms(self.progress or was, batch.decided_at_ms)
        due_times_ms = (due_at_ms, self._committing.refresh_at_ms)
        self.due_at_ms = min(present(due_times_ms), default=None)
        ended_at_ms = self._fence.clock()
        last_batch_ms = ended_at_ms - batch.started_at_ms
        self.load = {**self.load, "last_batch_ms": last_batch_ms, "ambiguous_keys": self._joined.ambiguous_keys}
        self.batch_started_at_ms = None
        # A flush comes after all other work of the batch, so that it delays no result.
        self._timeline.begin(SegmentOwner.TARGET, FACTS)
        self._flushing.flush_if_due(ended_at_ms)
        self._timeline.begin(SegmentOwner.ENGINE)

    def _constraints(self) -> dict[str, tuple[Constraint, ...]]:
        """Returns the constraints of the tables of sinks that have some."""
        tables = {sink.name: self._stream.home / sink.table for sink in self._stream.sub.sinks if sink.table}
        constraints = {name: self._tables.constraints(path) for name, path in tables.items()}
        return {name: conditions for name, conditions in constraints.items() if conditions}

    def _backlog(self, entry: Entry) -> dict[str, int | float | None]:
        """Returns the columns of `heartbeats` about records that the batch of *entry* left unread.

        All are None if the stream reads no topic.
        """
        decision = entry.notes.decision
        parts = [part for part in decision.sources if part.seen.latest_offset is not None]
        read = BatchRead(
            asked_at_ms=self._asked_at_ms,
            finished_at_ms=self._fence.clock(),
            until={(part.source, part.partition): part.seen.until_offset for part in parts},
            latest={(part.source, part.partition): part.seen.latest_offset or 0 for part in parts},
        )
        self._reads.append(read)
        held = sum(operator.counts.get("held_after", 0) for operator in decision.operators.values())
        state = catching_up([*self._reads])
        return {
            "records_waiting": read.behind + held if parts else None,
            "records_behind": state.records_behind if parts else None,
            "arrival_per_s": state.arrival_per_s,
            "working_per_s": state.working_per_s,
            "eta_at": state.eta_at_ms,
        }

    def _decide_in_driver(self, batch: MicroBatch, collect: Collect, was: StreamProgress) -> BatchDecision | None:
        """Reads the rows of *batch* into the driver and decides the batch; returns None if it changes nothing."""
        if not self._is_loaded:
            load_state(self._steps, self._stream, self._journal, self._state, was)
            self._is_loaded = True
        self._timeline.begin(SegmentOwner.BROKER, self._sources)
        reading_ms, raw = self._timeline.clock(), collect()
        batch = replace(batch, read_at_ms=self._fence.clock(), queued=self._queued(batch.started_at_ms))
        queued = batch.queued
        self._timeline.book(SegmentOwner.SLOTS, ", ".join(queued.behind), until_ms=reading_ms + queued.ms)
        self._timeline.begin(SegmentOwner.ENGINE)
        # The first batch may have been planned by a driver that was killed long before, and takes long to read.
        self._asked_at_ms = batch.read_at_ms
        try:
            intakes = self._decider.take_in(raw, batch, was)
            # Operators have copied what they need of a large batch. If the batch fails, its rows are read again.
            del raw
            return self._decider.decide(intakes, batch, was)
        except Exception as error:
            # Without ends, progress follows from the rows, so that a try with fewer rows is a shorter batch.
            blame(error, collect, lambda rows: self._decider.decide_rows(rows, replace(batch, ends={}), was))
            raise

    def _with_state(self, decision: BatchDecision, was: StreamProgress) -> Entry:
        """Returns the entry of *decision*, with the changed states and the files that have the others."""
        entry, moves = decision.entry, decision.moves
        if moves is None:
            return entry  # states in shards are in it already
        moved, runs = self._state.entry_states(self._steps.memory, was.batch_id, entry.batch_id, moves)
        return replace(entry, tables={**entry.tables, **moved}, notes=entry.notes.with_states([runs]))

    def _recover(self, batch_id: int, executors: Executors | None) -> StreamProgress:
        """Returns the progress after the newest entry of the journal, for a driver whose first batch is *batch_id*.

        The entry is about the batch before *batch_id*, or about *batch_id* itself. If a driver was killed before it had
        carried the entry out, this driver carries it out first.

        Raises:
            Contradiction: the journal is ahead of the checkpoint.
        """
        newest = self._journal.newest()
        if newest is None:
            self._flushing.begin(newest, self._fence.clock())
            return continued(StreamProgress(), self._listed, self._stream.sub)
        progress = newest.notes.progress
        if progress.planned_id > batch_id:
            msg = (
                f"{self._stream.home}: the checkpoint continues with batch {batch_id}, but batch {progress.planned_id} "
                "is already decided: the checkpoint was rolled back or replaced; restore it, or give the stream a new "
                "name"
            )
            raise Contradiction(msg)
        if not self._flushing.has_facts_of(newest):
            self._timeline.work_on(newest.batch_id)
            done_at_ms = self._journal.carried_out_at_ms(newest)
            # Spark plans the next batch only after this one was done.
            if done_at_ms is None and progress.planned_id < batch_id:
                done_at_ms = self._done_at_ms(progress.planned_id)
            self._committing.carry_out(newest, executors, recovers=True, done_at_ms=done_at_ms)
        else:
            self._committing.recall_refused(newest)
        self._flushing.begin(newest, self._fence.clock())
        self._flushing.flush()
        self._goes_on = not newest.notes.is_last
        begun = begun_behind(self._stream, newest)
        self._decider.give_up(newest, begun)
        return continued(progress, self._listed, self._stream.sub).without_operators(begun)

    def _done_at_ms(self, planned_id: int) -> int:
        """Returns when Spark recorded the batch *planned_id* as done, epoch ms by the clock of the file system.

        If the checkpoint no longer has the record, the result is the driver's clock now.
        """
        at_ms = committed_at_ms(self._stream.control / "checkpoint", planned_id)
        return self._fence.clock() if at_ms is None else at_ms


def load_state(steps: Steps, stream: Stream, journal: Journal, state: StateFiles, was: StreamProgress) -> None:
    """Loads the state of *stream* after the progress *was*, of all shards, into the memory of *steps*.

    The state is read from *journal* and the files *state*. Files are written only if `tidemark begin` was interrupted.
    """
    newest = journal.newest()
    if newest is None:
        return
    states = states_after(stream, newest)
    if states is None:
        states = reshard(stream, journal, newest, None, lambda _: state, log.info)
    # The driver before may have run in shards.
    if len(states) == 1:
        state.load(steps.memory, states[0], was.batch_id)
    else:
        load_whole(steps, stream, journal, newest)
