"""Takes in and processes a batch in shards, in Spark's tasks.

Purpose: run the same readers, operators and states as in the driver, each task over some of the records.
How it works: `IntakeTask` takes in one partition of a source, deals its records out to shards, and sends the counts,
offsets and times of the partition to every shard. So each `ShardTask` knows all partitions, and computes the same
progress of time as every other. It then runs the operators over the records and states of its shard. Small
results come back to the driver as rows. Large ones are written as files in the folders of their tables, to which they
belong only when the driver commits them by name.
A task that Spark runs twice writes files twice, and the driver receives the result of one of them.
Known limitation: a shard, with the states of its keys, has to fit into the memory of an executor's Python.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from platform import node
from typing import assert_never

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Clock, wall_clock_ms
from tidemark.kernels.columns.schemas import record_schema
from tidemark.kernels.columns.values import key_text, value_text
from tidemark.kernels.records.arrivals import held_schema, hop_arrivals, rows_in_order
from tidemark.kernels.records.loss import with_gaps
from tidemark.kernels.updates.facts import TIMES, records_per_window, times_of
from tidemark.kernels.updates.steps import hop_records
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import CHANGES
from tidemark.selection import names_in, within
from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.storage.files import Files, Rows, write_file
from tidemark.stream.decide.decision import DISORDER, Decider, RunTables, Tally
from tidemark.stream.decide.waits import BatchWaits
from tidemark.stream.driver.versions import Versions
from tidemark.stream.journal.batch import MicroBatch, Moment
from tidemark.stream.journal.entries import MANY
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.data_loss import LossCheck, Offsets, nothing_to_reread
from tidemark.stream.read.intake import (
    ids_of,
    records_of_hop,
    seen_of,
    seen_of_hop,
    source_rows,
    with_left,
    without_records,
)
from tidemark.stream.read.joined_tables import COPIES
from tidemark.stream.shards.answers import BatchAnswers
from tidemark.stream.shards.shard import Schemas, Shard
from tidemark.stream.shards.sharding import Sharding
from tidemark.stream.shards.totals import (
    BatchIntake,
    Input,
    PartitionIntake,
    ShardResult,
    arrival,
    concatenated,
    hop_input,
    parts_of_source,
    rows_by_name,
)
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import Run
from tidemark.stream.write.commit import appended

ROWS = "rows"
"""Folder, in the control folder of a stream, for large results that belong to no table."""
SEQ_BITS = 40
"""A shard numbers its rows from the number of the shard times 2^SEQ_BITS, so that no two rows have the same number."""
NOTHING_LOST = LossCheck("", dict, nothing_to_reread)
"""Looks for no lost records: that is the driver's work."""
Dealt = tuple[int, bytes]
"""A shard's number, and a pickled PartitionIntake or ShardRecords for it."""


@dataclass(frozen=True)
class ShardRecords:
    """The records of a source's partition in one shard, in order."""

    source: str
    partition: int
    records: pl.DataFrame


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every task of a batch needs.

    Attributes:
        stream: the stream.
        batch: the batch.
        was: the progress before the batch.
        sharding: how records are dealt out to shards.
        answers: the answers of brokers and table logs, the same for all tasks.
        versions: the driver's versions of packages, which a task must have, too.
        host: returns the name of the task's host.
        clock: the clock of that host, epoch ms.
    """

    stream: Stream
    batch: MicroBatch
    was: StreamProgress
    sharding: Sharding
    answers: BatchAnswers
    versions: Versions
    host: Callable[[], str] = node
    clock: Clock = wall_clock_ms

    @property
    def shards(self) -> int:
        """Returns the number of shards."""
        return self.stream.shards

    @property
    def folder(self) -> Path:
        """The folder for results that belong to no table, or that their table has in another form."""
        return self.stream.control / ROWS / str(self.batch.epoch)

    @property
    def copies(self) -> Path:
        """The folder with copies of joined tables that tasks cannot read."""
        return self.stream.control / COPIES / str(self.batch.epoch)

    def lay_out(self, name: str, rows: pa.Table) -> Files:
        """Writes *rows* as a file, in the folder of their table if they are appended to one as they are.

        *name* is the name that they have in a journal entry.
        """
        batch_id, operator, home = self.batch.batch_id, self.stream.topology.operators.get(name), self.stream.home
        folder_and_rows = appended(home, operator, name, rows, batch_id)
        if folder_and_rows is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Other rows are written to a file in the control folder, which the journal entry names.
            folder_and_rows = self.folder, rows
        return Files((write_file(*folder_and_rows, batch_id=batch_id),))

    def lay_out_large(self, tables: Mapping[str, pa.Table]) -> dict[str, Rows]:
        """Returns those of *tables* that have rows, and writes those with many rows as files."""
        laid_out: dict[str, Rows] = {}
        for name, rows in tables.items():
            if rows.num_rows:
                # The entry gets the rows of all shards, so each may keep a shard's part of MANY in it.
                is_large = rows.num_rows >= MANY // self.shards
                laid_out[name] = self.lay_out(name, rows) if is_large else rows
        return laid_out

    def tables(self, runs: Mapping[str, Run]) -> dict[str, pa.Table]:
        """Returns the rows of *runs*, by name as in a journal entry."""
        return RunTables(self.stream.topology, self.stream.sub).tables(self.batch, runs)

    def dealt(self, source: str, partition: int, records: pl.DataFrame) -> Iterator[Dealt]:
        """Yields, for each shard, its *records* of a *partition* of *source*, if it has any."""
        dealt = self.sharding.dealt(source, records, self.shards, partitions=self._partitions(source))
        for shard, shard_records in enumerate(dealt):
            if shard_records.height:
                yield shard, pickle.dumps(ShardRecords(source, partition, shard_records))

    def _partitions(self, name: str) -> int:
        """Returns how many partitions the source *name* has."""
        topology = self.stream.topology
        hop_of = topology.operators[name].hop_of
        return topology.repartition(hop_of).partitions if hop_of else self.answers.partitions(name)


@dataclass(frozen=True, kw_only=True)
class IntakeTask(Task):
    """Takes in the rows of one partition of a source.

    `late_up_to_ms` has, by source, the time up to which records are late. `hops` has the columns of each hop.
    """

    late_up_to_ms: Mapping[str, int]
    hops: Mapping[str, Mapping[str, pl.DataType]]

    def __call__(self, raw: pl.DataFrame) -> Iterator[Dealt]:
        """Takes in the rows *raw* of one partition, and yields what each shard gets.

        Each shard gets its records, and the counts, offsets and times of the partition. The first shard also gets the
        partition's rows for tables.
        """
        self.versions.refuse_others()
        started_at_ms = self.clock()
        name: str = raw["source"][0]
        source = self.stream.topology.operators[name]
        was = self.was.inputs.get(name, InputProgress())
        assert isinstance(source, Reading)
        match source:
            case HopSource():
                arrived, records = self._hop(source, raw, was)
            case Source():
                arrived, records = self._source(source, raw, was)
            case _:
                assert_never(source)
        arrived = replace(arrived, host=self.host(), started_at_ms=started_at_ms, finished_at_ms=self.clock())
        yield from self.dealt(name, arrived.partition, records)
        for shard in range(self.shards):
            # Rows of tables are needed once, so only shard 0 gets them.
            yield shard, pickle.dumps(arrived.numbers if shard else arrived)

    def left_to_driver(self) -> Iterator[Dealt]:
        """Yields, for each shard, that the driver must read the batch."""
        for shard in range(self.shards):
            yield shard, pickle.dumps(PartitionIntake(source="", is_left_to_driver=True))

    def _source(self, source: Source, raw: pl.DataFrame, was: InputProgress) -> tuple[PartitionIntake, pl.DataFrame]:
        source = source.with_topic_partitions(was.places)
        read_to = was.positions(raw["partition"].head(1))
        fresh = rows_in_order(source, raw, numbered_from=read_to.get(0, 0))
        intake = source_rows(
            source,
            fresh,
            # No record waits here: operators with `max_drift` have one shard.
            pl.DataFrame(schema=held_schema(record_schema(source.columns))),
            was,
            read_to=read_to,
            late_up_to_ms=self.late_up_to_ms.get(source.name),
            allowed_ms=None,
            window_ms=self.stream.topology.window_ms,
            decided_at_ms=self.batch.decided_at_ms,
        )
        number: int = fresh["partition"][0]
        waits = BatchWaits(self.stream.topology, self.stream.sub, promise_ms=self.stream.promise_ms)
        read = {source.name: intake.read}
        counted = waits.read(read, self.was, self.batch)
        records = intake.rows.on_time
        run = Run(intake.rows.on_time, times_of(intake.rows.measured), intake.counts, intake.tables)
        arrived = PartitionIntake(
            source=source.name,
            partition=number,
            seen=intake.seen[number],
            gap=bool(with_gaps(fresh, read_to)),
            writers=intake.writers.get(number, {}),
            counts=intake.counts,
            disorder=intake.disorder,
            windows=intake.windows,
            per_window=records_per_window(run.times, window_ms=self.stream.topology.window_ms),
            sample=intake.sample,
            tables=self.lay_out_large(self.tables({source.name: run})),
            reads={name: reads.rows for name, reads in counted.items()},
            passing=waits.passing(read),
            slow_keys=waits.slow_keys(read, self.batch),
        )
        return arrived, counted[source.name].beside(records) if counted else records

    def _hop(self, source: HopSource, raw: pl.DataFrame, was: InputProgress) -> tuple[PartitionIntake, pl.DataFrame]:
        rows = hop_arrivals(source, raw)
        repartition = self.stream.topology.repartition(source.repartition)
        records = hop_records(repartition, rows.rows, self.hops[source.name])
        times = times_of(records)
        waits = BatchWaits(self.stream.topology, self.stream.sub)
        counted = waits.read({source.name: records_of_hop(rows.rows, rows.order)}, self.was, self.batch)
        arrived = PartitionIntake(
            source=source.name,
            partition=raw["partition"][0],
            seen=seen_of_hop(records, rows.last_batch, was),
            counts=Counter(records_in=records.height, passed=records.height),
            windows=frozenset(rows.windows),
            per_window=records_per_window(times, window_ms=self.stream.topology.window_ms),
            watermark_ms=rows.watermark_ms,
            idle=rows.idle,
            idle_watermark_ms=rows.idle_watermark_ms,
            tables=self.lay_out_large(self.tables({source.name: Run(records, times, Counter())})),
            reads={name: reads.rows for name, reads in counted.items()},
        )
        return arrived, records.with_columns(rows.order)


@dataclass(frozen=True, kw_only=True)
class ShardTask(Task):
    """Runs the operators over a shard.

    Attributes:
        states: for each shard, the files with its state.
        schemas: the columns of the operators' outputs.
        references: the versions of joined Delta tables.
        slow_ms: by operator, how long it sleeps, in the first shard only. This is for tests.
        taken_in: the result of taking in the sources, if the driver has done that.
    """

    states: tuple[StateRuns, ...]
    schemas: Schemas
    references: Mapping[str, int]
    slow_ms: Mapping[str, int]
    taken_in: BatchIntake | None = None

    def __call__(self, number: int, dealt: Iterable[bytes]) -> ShardResult:
        """Runs shard *number* on the messages *dealt* that intake tasks sent to it."""
        self.versions.refuse_others()
        intakes: list[PartitionIntake] = []
        shard_records: list[ShardRecords] = []
        for message in map(pickle.loads, dealt):
            if isinstance(message, PartitionIntake):
                intakes.append(message)
            else:
                shard_records.append(message)
        if any(intake.is_left_to_driver for intake in intakes):
            return ShardResult(shard=number, is_doubtful=True)
        shard = Shard.after(self.was, self.stream, number, self.states[number], self.schemas)
        shard.read_versions(self.references, self.copies)
        # Shards run side by side, so one sleeping shard delays the batch as long as all would.
        slow_ms = {} if number else self.slow_ms
        decider = Decider.of(
            self.stream, shard.steps, self.answers, NOTHING_LOST, self.answers, self.clock, slow_ms=slow_ms
        )
        taken_in = self.taken_in or self._batch_intake(decider, intakes)
        if taken_in is None:
            return ShardResult(shard=number, is_doubtful=True)
        records = sum(tally.counts.get("records_in", 0) for tally in taken_in.tallies.values())
        # If nothing changes, the shard keeps its state, which the next batch finds as it was.
        if not decider.is_news(self.was, taken_in.now, self.batch, records):
            shard.keep()
            return ShardResult(shard=number, state=self.states[number], taken_in=None if number else taken_in)
        return self._run_operators(shard, number, decider, taken_in, shard_records)

    def _run_operators(
        self, shard: Shard, number: int, decider: Decider, taken_in: BatchIntake, shard_records: list[ShardRecords]
    ) -> ShardResult:
        steps, sources = shard.steps, names_in(self.stream.sub.sources)
        records = {name: _records(name, shard_records, steps) for name in sources}
        reads = decider.waits.dealt(taken_in.reads, records, self.was)
        numbered = decider.waits.with_row_numbers(records, reads)
        arrived = {name: self._run(source_records) for name, source_records in numbered.items()}
        moves, moment = Moves(), self._moment(number, decider.moment(self.was, taken_in.now, self.batch))
        runs = dict(decider.pipeline.run(arrived, moves, moment))
        # Rows that every shard computes alike are returned by the first shard only.
        for name in (*sources, *(self.stream.sub.table_inputs() if number else ())):
            runs.pop(name, None)
        results = decider.waits.results(reads, runs, self.batch)
        tables = {name: self._numbered(name, rows, number) for name, rows in self.tables(runs).items()}
        # The states go into the journal entry before the driver commits it; memory moves with the next batch.
        moved, state = shard.files.entry_states(steps.memory, self.was.batch_id, self.batch.batch_id, moves)
        shard.keep()
        return ShardResult(
            shard=number,
            is_news=True,
            taken_in=None if number else taken_in,
            host=self.host(),
            hot=self._hottest(shard_records),
            tallies=decider.tallies(runs),
            tables=self.lay_out_large(tables),
            results=results,
            state=state,
            moved=moved,
            state_bytes=steps.memory.bytes(),
        )

    def _batch_intake(self, decider: Decider, arrived: list[PartitionIntake]) -> BatchIntake | None:
        """Sums up what was taken in of all partitions; returns None if records of a topic may be lost."""
        progress: dict[str, InputProgress] = {}
        readings: dict[str, Mapping[int, PartitionReading]] = {}
        opened: dict[str, set[int]] = {}
        tallies: dict[str, Tally] = {}
        all_parts: list[PartitionIntake] = []
        for source in self.stream.sub.sources:
            parts = parts_of_source(source, arrived)
            reading = self._input(decider, source, parts)
            # Every shard has the numbers of all partitions, so all shards give up the batch alike.
            if reading is None:
                return None
            progress[source.name], readings[source.name] = reading.progress, reading.seen
            opened[source.name] = set[int]().union(*(part.windows for part in parts))
            tallies[source.name] = arrival(self.batch, parts)
            all_parts += parts
        tables = rows_by_name((part.tables for part in all_parts), self.lay_out)
        return BatchIntake(
            # So windows close in the batch that reaches their end, and not one batch later (decision 62).
            now=decider.progress(self.was, progress, opened, self.batch),
            seen=readings,
            tallies=tallies,
            tables={**tables, **_disorder(arrived)},
            reads=decider.waits.together([part.reads for part in all_parts]),
            passing=concatenated(part.passing for part in all_parts),
            slow_keys=concatenated(part.slow_keys for part in all_parts),
            task_runs=tuple(part.task_run for part in all_parts),
        )

    def _hottest(self, parts: list[ShardRecords]) -> tuple[str, float] | None:
        """Returns the most frequent key of the records of the shard, and its share of all of them, or None without one.

        A key consists of the columns by which records are dealt out to shards.
        """
        hottest_of_sources: list[tuple[int, str]] = []
        for source, columns in self.sharding.by.items():
            records = [part.records.select(columns) for part in parts if part.source == source]
            if columns and records:
                # Ties are broken by the key, so that the same batch names the same key again.
                counts = pl.concat(records).group_by(columns).len("_n").sort("_n", *columns, descending=True).head(1)
                hottest_of_sources.append(
                    (counts["_n"].item(), counts.select(value_text(columns, counts.schema)).item())
                )
        records_n, key = max(hottest_of_sources, default=(0, ""))
        return (key, records_n / sum(part.records.height for part in parts)) if records_n else None

    def _input(self, decider: Decider, source: Reading, arrived: list[PartitionIntake]) -> Input | None:
        """Returns how far *source* has been read, or None if records of its topic may be lost."""
        before = self.was.inputs.get(source.name, InputProgress())
        match source:
            case HopSource():
                return hop_input(before, arrived, self.batch)
            case Source():
                return self._outside_input(decider, source, arrived, before)
            case _:
                assert_never(source)

    def _outside_input(
        self, decider: Decider, source: Source, arrived: list[PartitionIntake], before: InputProgress
    ) -> Input | None:
        """Returns how far a *source* outside of the topology has been read."""
        batch = self.batch
        writers = {number: part.writers for number, part in before.partitions.items()}
        parts: dict[int, PartitionReading] = {}
        without_gap: set[int] = set()
        for part in arrived:
            writers[part.partition] = part.writers
            if part.seen:
                parts[part.partition] = part.seen
            if not part.gap:
                without_gap.add(part.partition)
        topic = decider.reader.topic(source)
        offsets = decider.reader.offsets(source, [part.partition for part in arrived], before, topic)
        read_to = before.positions(offsets)
        # A partition without records, or with a gap in them, is checked against the broker.
        doubtful = without_records(offsets, without_gap)
        ends = batch.ends.get(source.topic or "", {})
        if source.topic and any(_may_be_lost(number, doubtful, read_to, ends) for number in doubtful):
            return None
        if topic and any(topic.replaces(*read) for read in before.topic_ids.items()):
            return None
        # What is left of a deleted topic is judged by the driver, too.
        if source.reads_several and topic and not all(map(topic.has, {*before.partitions, *parts, *ends})):
            return None
        seen = with_left(seen_of(parts, read_to, offsets, ends, {}), source, is_last=batch.is_last)
        read = decider.reader.with_open_transactions(source, seen, topic)
        readings = dict(decider.reader.marked(source, before, read, batch))
        ids = ids_of(readings, topic, before)
        return Input(decider.reader.progress(source, before, readings, writers, ids, batch), readings)

    def _moment(self, number: int, moment: Moment) -> Moment:
        """Returns *moment* with only those reopened late records that belong to shard *number*."""
        shard_late_rows = {}
        for name, late in moment.reopened.items():
            operator = self.stream.topology.operators[name]
            assert isinstance(operator, Aggregate)
            # The shard of a record does not depend on its window, so any window does for the text of the key.
            windowed = late.with_columns(window_start=pl.lit(0, pl.Int64))
            keyed = windowed.with_columns(_state=key_text((*operator.key, "window_start"), windowed.schema))
            rows = self.sharding.in_shard(number, self.shards, name, keyed, "_state")
            shard_late_rows[name] = rows.select(late.columns)
        return replace(moment, reopened=shard_late_rows)

    def _run(self, records: pl.DataFrame) -> Run:
        times = pl.DataFrame(schema=dict(TIMES))
        # Operators downstream wait only for each other, so clocks of other hosts do not matter here.
        return Run(records, times, Counter(), finished_at_ms=self.clock())

    def _numbered(self, name: str, rows: pa.Table, number: int) -> pa.Table:
        """Returns *rows* with numbers (`seq`) that no other shard has, if they are rows of `changes` or of a hop."""
        operator = self.stream.topology.operators.get(name)
        if name != CHANGES.name and not (operator and operator.hop_table):
            return rows
        index = rows.column_names.index("seq")
        return rows.set_column(index, rows.schema.field(index), pc.add(rows["seq"], number << SEQ_BITS))


def _may_be_lost(number: int, offsets: Offsets, read_to: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Returns True if the topic of partition *number* was recreated, or has lost records after those that were read.

    Args:
        number: the partition.
        offsets: per partition, the earliest and latest offset of the topic.
        read_to: per partition, the offset up to which earlier batches read.
        ends: per partition, the offset up to which Spark planned the batch.
    """
    if number not in read_to:
        return False
    earliest, _ = offsets[number]
    # Offsets of a topic never go back: an end before what was read is that of another topic of the same name.
    return earliest > read_to[number] or ends.get(number, read_to[number]) < read_to[number]


def _disorder(arrived: Iterable[PartitionIntake]) -> dict[str, pa.Table]:
    """Returns how far the records of each source were behind the watermark, as tables of a journal entry."""
    by_source: dict[str, list[pl.DataFrame]] = {}
    for part in arrived:
        if part.disorder.height:
            by_source.setdefault(part.source, []).append(part.disorder)
    # Partitions of a source are added up: its bound is one for all of them.
    summed = {name: pl.concat(parts).group_by("bucket").agg(pl.sum("n")) for name, parts in by_source.items()}
    return {f"{DISORDER}{name}": counts.sort("bucket").to_arrow() for name, counts in summed.items()}


def _records(source: str, parts: Iterable[ShardRecords], steps: Steps) -> pl.DataFrame:
    """Returns the records of *source* among *parts*, in order, with the columns BESIDE if there are any."""
    source_parts = [part for part in parts if part.source == source]
    if not source_parts:
        return pl.DataFrame(schema=dict(steps.schemas[source]))
    # Tasks end in any order, and what they sent arrives in any order.
    source_parts.sort(key=lambda part: part.partition)
    rows = pl.concat(part.records for part in source_parts)
    # Rows of a hop have the order of their writer (`_batch`, `_seq`) across partitions.
    order = within(("_batch", "_seq"), rows.columns)
    return rows.sort(order, maintain_order=True) if order else rows
