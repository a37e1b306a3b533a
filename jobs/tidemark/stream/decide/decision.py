"""Decides a batch: the records read, operator outputs and closed windows.

This module writes nothing. The result is a journal entry: the rows of every table, and notes with the progress, the
clocks and the counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from tidemark.clock import Clock
from tidemark.control.folder import Control, TopologyChange
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.updates.facts import per_interval, records_per_window
from tidemark.model.kinds.operator import latency_level
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import COMPLETENESS, HOP, SCHEMA_CHANGES, TABLES, TOPOLOGY_CHANGES, Table
from tidemark.model.topology import SubTopology, Time, Topology
from tidemark.selection import in_order_of, index_by_name, names_in, omit, within
from tidemark.semantics import skip_rate
from tidemark.semantics.completeness import NEVER, IntervalCount, Intervals, idle_watermark_ms
from tidemark.semantics.event_time import PartitionReading, watermark_over_inputs
from tidemark.semantics.progress import STREAMING, InputProgress, SentMark, StreamProgress
from tidemark.semantics.schema_watch import NO_SAMPLE, FieldSample
from tidemark.semantics.segments import SegmentOwner
from tidemark.semantics.watermark import is_window_late
from tidemark.storage.files import Rows
from tidemark.stream.decide.completeness import Completeness
from tidemark.stream.decide.due import DueTimes, next_mark_at_ms
from tidemark.stream.decide.pipeline import Pipeline
from tidemark.stream.decide.reopenings import Reopenings
from tidemark.stream.decide.schema_watch import SchemaWatch
from tidemark.stream.decide.waits import (
    FIRSTS_OF,
    READS_OF,
    RESULTS_OF,
    SLOW_KEYS_OF,
    BatchWaits,
    LooksBefore,
    no_looks,
)
from tidemark.stream.journal.batch import MicroBatch, Moment
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.layout import table_of
from tidemark.stream.journal.notes import DecisionNotes, EntryNotes, MarkNotes, OperatorNotes, PartitionNotes
from tidemark.stream.journal.streaming_windows import ClosedWindow, StreamingWindows
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.broker import Answers
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.data_loss import LossCheck
from tidemark.stream.read.intake import Intake, Reader
from tidemark.stream.read.table_marks import NewestMarks
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import Run

TIMES = "times_of_"
"""Prefix of an entry's tables with the record times of an operator, if its latency is measured."""
DISORDER = "disorder_of_"
"""Prefix of an entry's tables with the number of records of a source per bucket of their lag behind the watermark."""


@dataclass(frozen=True)
class BatchDecision:
    """A journal entry, the progress after it, and its changes to memory.

    Attributes:
        entry: the journal entry.
        progress: the stream's progress after the batch.
        moves: the changes to the states in memory, to be made after the commit. None if the states are in shards.
        state_bytes: bytes of the states in shards.
    """

    entry: Entry
    progress: StreamProgress
    moves: Moves | None
    state_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts and clocks of an operator in a batch or a shard.

    Attributes:
        counts: updates by outcome.
        windows: finished records per streaming window, by the window's start (epoch ms).
        skipped: suppressed updates per task.
        intervals: for a table whose intervals can be complete, its records per interval, by the interval's start.
        sample: for a source, the fields of some records.
        started_at_ms: when the operator began, epoch ms.
        finished_at_ms: when it had its result, epoch ms.
        queued_ms: how long it waited for a sibling branch before it began.
    """

    counts: Mapping[str, int]
    windows: Mapping[int, int]
    skipped: Mapping[int, int]
    started_at_ms: int
    finished_at_ms: int
    queued_ms: int
    intervals: Mapping[int, IntervalCount] = field(default_factory=dict)
    sample: FieldSample = NO_SAMPLE

    @classmethod
    def of(cls, run: Run, *, window_ms: int, intervals: Intervals | None = None) -> Tally:
        """Counts what *run* did; *intervals* are those of its table if they can be complete."""
        return cls(
            counts=dict(run.counts),
            windows=records_per_window(run.times, window_ms=window_ms),
            skipped=run.skipped,
            started_at_ms=run.started_at_ms,
            finished_at_ms=run.finished_at_ms,
            queued_ms=run.queued_ms,
            intervals=per_interval(run.times, run.output, intervals) if intervals else {},
            sample=run.sample,
        )

    @property
    def notes(self) -> OperatorNotes:
        """The counts and clocks for the notes of the journal entry."""
        return OperatorNotes(
            started_at_ms=self.started_at_ms,
            finished_at_ms=self.finished_at_ms,
            queued_ms=self.queued_ms,
            counts=dict(self.counts),
        )


class RunTables:
    """Turns what the operators of *sub* did in a batch into rows of tables, with times of those that are measured."""

    def __init__(self, topology: Topology, sub: SubTopology) -> None:
        self._same = {"topology": topology.name, "sub_topology": sub.name}
        levels = {o.name: latency_level(o, sub.terminals()) for o in sub.operators}
        self._measured = [name for name, level in levels.items() if level and topology.level.includes(level)]
        self._committing = index_by_name(sub.handing_out)
        self.hops = [o.name for o in sub.operators if o.hop_table]
        self._has_intervals, self._table_inputs = topology.has_intervals, sub.table_inputs()

    def tables(self, batch: MicroBatch, runs: Mapping[str, Run]) -> dict[str, pa.Table]:
        """Returns the rows of *runs* by their name in a journal entry.

        These are rows of the stream's tables of facts, the record times of measured operators, and the outputs of
        repartitions and sinks. Tables of facts without rows are left out.
        """
        frames_by_table: dict[str, list[pl.DataFrame]] = {}
        for run in runs.values():
            for name, rows in run.rows.items():
                # Outputs of repartitions and sinks are in *runs* by the operator's name, and follow below.
                if rows.height and table_of(name) in TABLES:
                    frames_by_table.setdefault(name, []).append(rows)
        # Operators differ in the columns that they fill; the rest is null.
        all_rows = {name: pl.concat(frames, how="diagonal") for name, frames in frames_by_table.items()}
        tables = {name: self.rows_of(TABLES[table_of(name)], rows, batch) for name, rows in all_rows.items()}
        tables |= {f"{DISORDER}{name}": run.disorder.to_arrow() for name, run in runs.items() if run.disorder.height}
        for name in self._measured:
            if name in runs:
                tables[f"{TIMES}{name}"] = runs[name].times.to_arrow()
        for name, operator in self._committing.items():
            if name in runs:
                rows = runs[name].rows[name]
                tables[name] = self.rows_of(HOP, rows, batch) if operator.hop_table else rows.to_arrow()
        return tables

    def rows_of(self, table: Table, rows: pl.DataFrame | list[dict[str, Any]], batch: MicroBatch) -> pa.Table:
        """Returns *rows* of *table* with the columns that all rows of *batch* have in common."""
        same = {**self._same, "batch_id": batch.batch_id, "decided_at": batch.decided_at_ms}
        return rows_of(table, rows, **in_order_of(within(same, table.names), same))

    def mark(
        self, batch_id: int, was: StreamProgress, now: StreamProgress, closed: list[ClosedWindow], *, seq: int
    ) -> pa.Table:
        """Returns the mark: the row that ends a hop's commit and tells the hop's readers how far time has come.

        The result has no row if there is nothing new to tell.

        Args:
            batch_id: number of the batch.
            was: progress before the batch. A mark is also written after a reset of time.
            now: progress after the batch. The mark has its watermark, and whether the stream is idle. It also has what
                idle partitions have reached, for intervals that the watermark completes, but no mark is written
                because of that alone.
            closed: the streaming windows that the batch closes.
            seq: the mark's number among the hop's rows.
        """
        starts = sorted(window.start_ms for window in closed)
        idle_ms = idle_watermark_ms(omit(now.inputs, self._table_inputs)) if self._has_intervals else None
        time = {"watermark": now.watermark_ms, "idle": now.idle, "idle_watermark": 0 if idle_ms == NEVER else idle_ms}
        row = {"seq": seq, "partition": 0, "value": json.dumps(starts), **time}
        # A reset of time is in *was* already, so the two watermarks do not differ.
        set_back = batch_id in was.resets.values()
        news = closed or set_back or (now.watermark_ms, now.idle) != (was.watermark_ms, was.idle)
        # Without news the result is an empty table, which is appended to the hop's rows all the same.
        return rows_of(HOP, [row], **self._same, batch_id=batch_id).slice(0, 1 if news else 0)


class Decider:
    """Decides the batches of *sub*."""

    def __init__(
        self,
        topology: Topology,
        sub: SubTopology,
        reader: Reader,
        pipeline: Pipeline,
        steps: Steps,
        reopenings: Reopenings,
        timeline: Timeline,
        waits: BatchWaits,
        changes: Sequence[TopologyChange],
    ) -> None:
        self._timeline, self._changes = timeline, changes
        self._given_up, self._given_up_after = dict[str, int](), -1
        self._sub, self.reader, self.pipeline, self._steps = sub, reader, pipeline, steps
        self.reopenings = reopenings
        self.window_ms = topology.window_ms
        self.windows = StreamingWindows(topology.window_ms, topology.max_outstanding_windows)
        self.for_tables = RunTables(topology, sub)
        self._completeness, self._schema_watch = Completeness(topology, sub), SchemaWatch(sub)
        self._table_inputs = sub.table_inputs()
        self.sources = sub.sources
        self._due = DueTimes(topology, sub, steps.keeps_states)
        self._leading = self._due.leading
        self.waits = waits
        self._judging = {o.name for o in sub.operators if o.emission}

    def late_up_to_ms(self, progress: StreamProgress) -> dict[str, int]:
        """Returns the latest time of a late record, by source.

        A record of the next batch at or before this time (epoch ms) is late. Sources that are not strict, and those
        without a watermark, are left out.
        """
        late_up_to_ms = {}
        for source in self._leading:
            watermark_ms = progress.inputs.get(source.name, InputProgress()).watermark_ms
            if source.allowed_lateness_ms is not None and watermark_ms is not None:
                late_up_to_ms[source.name] = watermark_ms - source.allowed_lateness_ms
        return late_up_to_ms

    @classmethod
    def of(
        cls,
        stream: Stream,
        steps: Steps,
        broker: Answers,
        intact: LossCheck,
        table_marks: NewestMarks,
        clock: Clock,
        *,
        slow_ms: Mapping[str, int],
        timeline: Timeline | None = None,
        looks: LooksBefore = no_looks,
        changes: Sequence[TopologyChange] = (),
    ) -> Decider:
        """Builds the decider of *stream*.

        Args:
            stream: the stream.
            steps: the steps of its operators.
            broker: knows partitions, offsets and limits of topics.
            intact: checks that no records were lost.
            table_marks: marks of time in the commits of Delta tables.
            clock: epoch ms.
            slow_ms: per operator how long it sleeps, ms.
            timeline: records what the driver does; None if nobody reads that.
            looks: returns when the driver asked for the end offsets of a source.
            changes: changes of the topology file. Each is recorded by the first batch after it.
        """
        timeline = timeline or Timeline()
        topology, sub, control = stream.topology, stream.sub, Control(stream.control)
        reader = Reader(
            sub.outside_sources,
            broker,
            steps,
            intact,
            clock,
            table_marks,
            window_ms=topology.window_ms,
            processing_time=topology.time is Time.PROCESSING,
            max_held=topology.max_held,
        )
        pipeline = Pipeline(sub, steps, clock, timeline, slow_ms=slow_ms, sleep_ms=lambda ms: time.sleep(ms / 1_000))
        reopenings = Reopenings(sub, stream.home, control, steps.schemas)
        waits = BatchWaits(topology, sub, looks, promise_ms=stream.promise_ms)
        return cls(topology, sub, reader, pipeline, steps, reopenings, timeline, waits, changes)

    def decide_rows(self, raw: pl.DataFrame, batch: MicroBatch, was: StreamProgress) -> BatchDecision | None:
        """Takes in the rows *raw* of *batch*, and decides it as `decide` does."""
        return self.decide(self.take_in(raw, batch, was), batch, was)

    def decide(self, intakes: Mapping[str, Intake], batch: MicroBatch, was: StreamProgress) -> BatchDecision | None:
        """Decides *batch* after the progress *was*, from the *intakes* of its sources.

        Returns:
            None if the batch changes nothing.
        """
        now = self.with_intakes(was, intakes, batch)
        records = sum(intake.run.counts["records_in"] for intake in intakes.values())
        # A batch that changes nothing leaves no journal entry; Spark records it as done all the same.
        if not self.is_news(was, now, batch, records):
            return None
        moves = Moves()
        readings: dict[str, Mapping[int, PartitionReading]] = {}
        runs_of_sources: dict[str, Run] = {}
        for name, intake in intakes.items():
            readings[name], runs_of_sources[name] = intake.seen, intake.run
            if intake.waiting is not None:
                moves.waiting[name], moves.held[name] = intake.waiting, intake.waiting.n
        read = {name: intake.read for name, intake in intakes.items()}
        reads, slow_keys = self.waits.read(read, was, batch), self.waits.slow_keys(read, batch)
        taken_in = {name: intake.run.output.with_columns(intake.order) for name, intake in intakes.items()}
        for name, output in self.waits.with_row_numbers(taken_in, reads).items():
            runs_of_sources[name].output = output
        waiting = {name: changes.held for name, changes in moves.waiting.items()}
        for name, held in self.waits.with_row_numbers(waiting, reads).items():
            moves.waiting[name] = replace(moves.waiting[name], held=held)
        runs = self.pipeline.run(runs_of_sources, moves, self.moment(was, now, batch))
        tallies = self.tallies(runs)
        results = self.waits.results(reads, runs, batch)
        tables: dict[str, Rows] = {**self.for_tables.tables(batch, runs)}
        tables |= with_rows(READS_OF, self.waits.numbered({name: rows.rows for name, rows in reads.items()}, was))
        tables |= with_rows(SLOW_KEYS_OF, slow_keys) | with_rows(RESULTS_OF, results)
        # Rows of a hop count from 0, so the mark behind them has their number.
        last = {name: tables[name].num_rows for name in self.for_tables.hops}
        passing = {name: read.records for name, read in reads.items()}
        return BatchDecision(*self.conclude(batch, was, now, readings, tallies, tables, last, _append, passing), moves)

    def conclude(
        self,
        batch: MicroBatch,
        was: StreamProgress,
        now: StreamProgress,
        readings: Mapping[str, Mapping[int, PartitionReading]],
        tallies: Mapping[str, Tally],
        tables: Mapping[str, Rows],
        last: Mapping[str, int],
        join: Callable[[str, Rows, pa.Table], Rows],
        passing: Mapping[str, pl.DataFrame],
    ) -> tuple[Entry, StreamProgress]:
        """Returns the journal entry of *batch* and the progress after it.

        Args:
            batch: the batch.
            was: progress before it.
            now: progress with what the batch read.
            readings: by source and partition, what was read.
            tallies: counts and clocks by operator.
            tables: rows by their name in the entry.
            last: per hop, the number (`seq`) of the mark that ends its commit.
            join: appends the mark to the rows of a hop.
            passing: by source, the records that may be the first to pass the windows that the batch closes.
        """
        now, closed = self.count_windows(now, tallies)
        reads = [tables[name].num_rows for source in self.sources if (name := f"{READS_OF}{source.name}") in tables]
        now = replace(now, reads=was.reads + sum(reads))
        tables = {**tables, **with_rows(FIRSTS_OF, self.waits.firsts(passing, was, closed, batch))}
        counts = {name: tally.intervals for name, tally in tallies.items()}
        held = {name: tally.counts.get("held_after", 0) for name, tally in tallies.items()}
        now, completed = self._completeness.decided(batch, was, now, counts, held)
        if completed:
            tables = {**tables, COMPLETENESS.name: self.for_tables.rows_of(COMPLETENESS, completed, batch)}
        now, changes = self._schema_watch.decided(batch, now, {name: tally.sample for name, tally in tallies.items()})
        if changes:
            rows = self.for_tables.rows_of(SCHEMA_CHANGES, changes, batch)
            tables = {**tables, SCHEMA_CHANGES.name: rows}
        if begun := [change for change in self._changes if change.begins_behind(was.batch_id)]:
            change_rows: list[dict[str, Any]] = [
                {"operator": new.name, "begins": new.begins, "told": new.line, "read_by": list(new.read_by)}
                for new in begun
            ]
            tables = {**tables, TOPOLOGY_CHANGES.name: self.for_tables.rows_of(TOPOLOGY_CHANGES, change_rows, batch)}
        marks = self.marks(was, now, {name for name, rows in tables.items() if rows.num_rows})
        now = replace(now, marks={**was.marks, **marks})
        hops: dict[str, Rows] = {}
        for name, seq in last.items():
            mark = self.for_tables.mark(batch.batch_id, was, now, closed, seq=seq)
            hops[name] = join(name, tables[name], mark)
        notes = self.notes(batch, was, now, readings, tallies, closed, marks)
        return Entry(batch.batch_id, {**tables, **hops}, EntryNotes(decided=notes)), now

    def tallies(self, runs: Mapping[str, Run]) -> dict[str, Tally]:
        """Returns the counts and clocks of *runs*, by operator."""
        intervals = self._completeness.intervals
        return {
            name: Tally.of(run, window_ms=self.window_ms, intervals=intervals.get(name)) for name, run in runs.items()
        }

    def with_intakes(self, was: StreamProgress, intakes: Mapping[str, Intake], batch: MicroBatch) -> StreamProgress:
        """Returns the progress *was* advanced by the *intakes* of *batch*."""
        inputs = {name: intake.progress for name, intake in intakes.items()}
        windows = {name: intake.windows for name, intake in intakes.items()}
        return self.progress(was, inputs, windows, batch)

    def take_in(self, raw: pl.DataFrame, batch: MicroBatch, was: StreamProgress) -> dict[str, Intake]:
        """Takes in the rows *raw* of *batch* at each source, one after the other."""
        late_up_to_ms, allowed_ms = self.late_up_to_ms(was), self._due.allowed_ms(was)
        leading = {*names_in(self._leading)}
        intakes: dict[str, Intake] = {}
        # All sources were ready to be taken in when the batch had been read.
        turn_ms = batch.read_at_ms
        for operator in self.sources:
            self._timeline.begin(SegmentOwner.OPERATOR, operator.name)
            intake = intakes[operator.name] = self.reader.take(
                operator,
                raw,
                was.inputs.get(operator.name, InputProgress()),
                batch,
                late_up_to_ms=late_up_to_ms.get(operator.name),
                allowed_ms=allowed_ms if operator.name in leading else None,
            )
            # Sources take in one after the other: each waits for those before it.
            intake.run.queued_ms = batch.queued.ms + max(0, turn_ms - batch.read_at_ms)
            turn_ms = intake.run.finished_at_ms
        self._timeline.begin(SegmentOwner.ENGINE)
        return intakes

    def give_up(self, newest: Entry, begun: Container[str]) -> None:
        """Counts the updates that are dropped because the topology file changed; the next batch records the counts.

        After the batch of the entry *newest* these updates waited at sources and operators that the file no longer has,
        or that have *begun* anew.
        """
        names, operators = names_in(self._sub.operators), newest.notes.decision.operators
        gone = [name for name in operators if name in begun or name not in names]
        waiting = {name: operators[name].counts.get("held_after", 0) for name in gone}
        self._given_up = {name: n for name, n in waiting.items() if n}
        self._given_up_after = newest.batch_id

    def is_news(self, was: StreamProgress, now: StreamProgress, batch: MicroBatch, records: int) -> bool:
        """Returns True if *batch* with so many *records* changes anything."""
        is_requested = batch.batch_id in {*was.resets.values(), *was.reopened.values()}
        is_due = any(at_ms <= batch.decided_at_ms for at_ms in self._due.results_at_ms(was))
        return bool(records or is_requested or not now.same_as(was) or self.marks(was, now) or is_due)

    def marks(self, was: StreamProgress, now: StreamProgress, rows: Container[str] = ()) -> dict[str, SentMark]:
        """Returns the marks of time that sinks send in this batch, by sink.

        A sink sends a mark if its time has changed and its next mark is due, or if its table gets rows: *rows* has the
        names of such sinks.
        """
        assert now.decided_at_ms is not None
        marks = {}
        for sink in self._due.marking:
            at_ms = next_mark_at_ms(sink, was, now)
            is_due = at_ms is not None and at_ms <= now.decided_at_ms
            # A table that gets rows always gets a mark in the same commit: a mark alone would cost a commit.
            if is_due or (sink.table and sink.name in rows):
                marks[sink.name] = SentMark(now.decided_at_ms, now.watermark_ms, now.idle)
        return marks

    def moment(self, was: StreamProgress, now: StreamProgress, batch: MicroBatch) -> Moment:
        """Returns what operators need to know of *batch*: the times before it (*was*) and after it (*now*).

        It includes what the topics and tables of sinks accept, and the late records that aggregates process again.
        """
        assert now.decided_at_ms is not None
        return Moment(
            was_watermark_ms=was.watermark_ms,
            watermark_ms=now.watermark_ms,
            held_by=was.held_by,
            was_decided_at_ms=was.decided_at_ms,
            decided_at_ms=now.decided_at_ms,
            batch_id=batch.batch_id,
            limits=self.reader.limits(self._sub.sinks),
            constraints=batch.constraints,
            refused=batch.refused,
            stay_closed=was.stay_closed,
            ended=was.ended,
            reopened=self.reopenings.records(was, now.batch_id),
            forgotten=self.reopenings.forgotten(was),
        )

    def progress(
        self,
        was: StreamProgress,
        inputs: Mapping[str, InputProgress],
        windows: Mapping[str, Iterable[int]],
        batch: MicroBatch,
    ) -> StreamProgress:
        """Returns the stream's progress, combined from the progress of its *inputs*.

        Args:
            was: progress before the batch.
            inputs: progress of each source after it.
            windows: per source, the starts of the streaming windows that the batch has records of, epoch ms.
            batch: the batch.
        """
        # Inputs of joined tables do not move the stream's watermark.
        leading = omit(inputs, self._table_inputs)
        time = watermark_over_inputs(leading, previous_ms=was.watermark_ms)
        starts = set[int]().union(*(windows[name] for name in leading))
        # Windows that were closed when time was set back were counted before the reset, and do not open again.
        starts.difference_update(start for start, _ in was.stay_closed.get(STREAMING, ()))
        # A window that the watermark has passed was counted already and does not open again.
        opened = {start for start in starts if not is_window_late(start + self.window_ms, was.watermark_ms)}
        now = replace(
            was,
            batch_id=batch.batch_id,
            decided_at_ms=batch.decided_at_ms,
            inputs=inputs,
            watermark_ms=time.watermark_ms,
            held_by=time.held_by,
            idle=time.idle,
        )
        forgotten, ended = self.reopenings.forgotten(was, now.watermark_ms), self.reopenings.ended(now)
        now = replace(now, forgotten=forgotten, ended=ended)
        return self.windows.with_opened(now, opened)

    def count_windows(
        self, now: StreamProgress, tallies: Mapping[str, Tally]
    ) -> tuple[StreamProgress, list[ClosedWindow]]:
        """Adds the counts of *tallies* to the progress *now*, and closes the windows that the watermark has passed.

        Returns:
            The progress without the closed windows, and the closed windows.
        """
        now, closed = self.windows.count(now, {name: tally.windows for name, tally in tallies.items()})
        assert now.decided_at_ms is not None
        skipped, skipped_lately = dict(now.skipped), {}
        # Only operators with an emission strategy skip updates.
        for name, tally in tallies.items():
            if name in self._judging:
                lately = now.skipped_lately.get(name, ())
                skipped[name] = add_counts(now.skipped.get(name, {}), tally.skipped)
                skipped_lately[name] = skip_rate.skips_of_minute(lately, tally.skipped, now_ms=now.decided_at_ms)
        return replace(now, skipped=skipped, skipped_lately=skipped_lately), closed

    def notes(
        self,
        batch: MicroBatch,
        was: StreamProgress,
        now: StreamProgress,
        readings: Mapping[str, Mapping[int, PartitionReading]],
        tallies: Mapping[str, Tally],
        closed: Iterable[ClosedWindow],
        marks: Mapping[str, SentMark],
    ) -> DecisionNotes:
        """Returns the notes of a journal entry: all that is not rows.

        Args:
            batch: the batch.
            was: progress before it.
            now: progress after it.
            readings: by source and partition, what was read.
            tallies: counts and clocks by operator.
            closed: the streaming windows that the batch closes.
            marks: the marks of time that sinks send.
        """
        sources = []
        for name, parts in readings.items():
            for number, part in parts.items():
                sources.append(PartitionNotes(source=name, partition=number, seen=part))
        return DecisionNotes(
            batch=replace(batch, files={}),  # they are in the progress
            progress=now,
            was=was.without_windows(),
            marks={name: MarkNotes(watermark_ms=mark.watermark_ms, idle=mark.idle) for name, mark in marks.items()},
            closed=tuple(closed),
            sources=tuple(sources),
            operators={name: tally.notes for name, tally in tallies.items()},
            dropped=self._given_up if was.batch_id == self._given_up_after else {},
        )


def _append(_: str, rows: Rows, mark: pa.Table) -> Rows:
    assert isinstance(rows, pa.Table)
    return pa.concat_tables([rows, mark])


def with_rows(prefix: str, frames: Mapping[str, pl.DataFrame]) -> dict[str, pa.Table]:
    """Returns those of *frames* that have rows, by *prefix* and name."""
    return {f"{prefix}{name}": rows.to_arrow() for name, rows in frames.items() if rows.height}


K = TypeVar("K")


def add_counts(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    """Returns the sums of two counts by key."""
    return {key: one.get(key, 0) + other.get(key, 0) for key in {*one, *other}}
