"""What Spark's tasks do of a batch in shards: take in partitions, then run the operators of a shard.

Purpose: the same readers, operators and states as in the driver, over a part of the records each.
How it works: `TakingIn` takes in one partition of a source, deals its records out, and tells every shard its numbers.
`Working` has the numbers of all partitions, and so knows how far time has come, as every other shard does; it runs the
operators over the records of its shard, with the states of its keys. Rows come back, many of them as files that lie in
the folders of their tables and belong to none until the driver commits them by name.
A task that Spark runs twice writes files twice, and the driver hears of one of them.
Known limitation: a shard, with the states of its keys, has to fit into the memory of an executor's Python.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from platform import node

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Clock, wall_clock_ms
from tidemark.files import Files, Rows, write_file
from tidemark.kernels.arrivals import hop_arrivals, rows_in_order
from tidemark.kernels.facts import TIMES, records_per_window, times_of
from tidemark.kernels.loss import with_gaps
from tidemark.kernels.schemas import record_schema, rows_of
from tidemark.kernels.steps import hop_records
from tidemark.kernels.values import key_text, value_text
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.operators import Aggregate, HopSource, Repartition, Sink, Source
from tidemark.spec.stream import Stream
from tidemark.spec.tables import CHANGES, DISORDER_BUCKETS
from tidemark.stream.batch import Batch, Moment
from tidemark.stream.commit import appended, sink_rows
from tidemark.stream.decision import Decider, ForTables, Tally
from tidemark.stream.distributed.answers import Answered
from tidemark.stream.distributed.shard import Shard
from tidemark.stream.distributed.sharding import Sharding
from tidemark.stream.distributed.totals import Arrived, Input, TakenIn, Worked, arrival, followed, of_source, together
from tidemark.stream.distributed.versions import Versions
from tidemark.stream.intact import Intact, nothing_to_reread
from tidemark.stream.intake import seen_of, seen_of_hop, taken, without_records
from tidemark.stream.journal import MANY
from tidemark.stream.operate.step import Run
from tidemark.stream.state import Moves
from tidemark.stream.state_files import StateRuns
from tidemark.stream.steps import Steps

ROWS = "rows"
"""The folder, among those of a driver, of rows of a batch that are no table's."""
SEQ_BITS = 40
"""A shard numbers its rows from its own number times 2 to this power."""
NOTHING_LOST = Intact("", dict, nothing_to_reread)
"""Tasks do not look for what a topic has lost."""
Dealt = tuple[int, bytes]
"""The number of a shard, and something for it, pickled: an Arrived or a Part."""


@dataclass(frozen=True)
class Part:
    """Records of one partition of a source that are in one shard, in order."""

    source: str
    partition: int
    records: pl.DataFrame


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every task of a batch is told.

    *was* is the progress made before; all tasks go by the same *answers*; *versions* are those of the driver; *clock*
    is read on the host of the task.
    """

    stream: Stream
    batch: Batch
    was: StreamProgress
    sharding: Sharding
    answers: Answered
    versions: Versions
    clock: Clock = wall_clock_ms

    @property
    def shards(self) -> int:
        """How many there are."""
        return self.stream.shards

    @property
    def folder(self) -> Path:
        """Where rows lie that are no table's, or not as they are."""
        return self.stream.control / ROWS / str(self.batch.epoch)

    def lay_out(self, name: str, rows: pa.Table) -> Files:
        """*rows*, which an entry has by this *name*, as a file in the folder of their table."""
        batch_id, operator, home = self.batch.batch_id, self.stream.topology.operators.get(name), self.stream.home
        place = appended(home, operator, name, rows, batch_id)
        if place is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            if isinstance(operator, Sink) and operator.table:
                rows = sink_rows(operator, rows, batch_id, home)
            place = self.folder, rows
        return Files((write_file(*place, batch_id=batch_id),))

    def laid_out(self, tables: Mapping[str, pa.Table]) -> dict[str, Rows]:
        """*tables* without those that have no rows; of those with many, files."""
        return {
            name: self.lay_out(name, rows) if rows.num_rows >= MANY // self.shards else rows
            for name, rows in tables.items()
            if rows.num_rows
        }

    def tables(self, runs: Mapping[str, Run]) -> dict[str, pa.Table]:
        """The rows of *runs*, by name as in a journal entry."""
        return ForTables(self.stream.topology, self.stream.sub).tables(self.batch.batch_id, runs)

    def dealt(self, source: str, partition: int, records: pl.DataFrame) -> Iterator[Dealt]:
        """*records* of a *partition* of *source*, for their shards."""
        parts = self.sharding.dealt(source, records, self.shards, partitions=self._partitions(source))
        for shard, part in enumerate(parts):
            if part.height:
                yield shard, pickle.dumps(Part(source, partition, part))

    def _partitions(self, name: str) -> int:
        """How many the source *name* has."""
        operators = self.stream.topology.operators
        source = operators[name]
        if not isinstance(source, HopSource):
            return self.answers.of_partitions[name]
        repartition = operators[source.repartition]
        assert isinstance(repartition, Repartition)
        return repartition.partitions


@dataclass(frozen=True, kw_only=True)
class TakingIn(Task):
    """Takes in the rows of one partition of a source; a record at or before *late_up_to_ms* of its source is late.

    *hops* are the columns of what each hop hands on.
    """

    late_up_to_ms: Mapping[str, int]
    hops: Mapping[str, Mapping[str, pl.DataType]]

    def __call__(self, raw: pl.DataFrame) -> Iterator[Dealt]:
        """What the rows *raw*, all of one partition, are to each shard."""
        self.versions.refuse_others()
        started_at_ms = self.clock()
        name: str = raw["source"][0]
        source = self.stream.topology.operators[name]
        was = self.was.inputs.get(name, InputProgress())
        if isinstance(source, HopSource):
            arrived, records = self._hop(source, raw, was)
        else:
            assert isinstance(source, Source)
            arrived, records = self._source(source, raw, was)
        arrived = replace(arrived, host=node(), started_at_ms=started_at_ms, finished_at_ms=self.clock())
        yield from self.dealt(name, arrived.partition, records)
        for shard in range(self.shards):
            yield shard, pickle.dumps(arrived.numbers if shard else arrived)

    def _source(self, source: Source, raw: pl.DataFrame, was: InputProgress) -> tuple[Arrived, pl.DataFrame]:
        read_to = {number: part.until_offset for number, part in was.partitions.items()}
        fresh = rows_in_order(source, raw, numbered_from=read_to.get(0, 0))
        told = taken(
            source,
            fresh,
            pl.DataFrame(schema=record_schema(source.columns)),  # nobody waits: what has max_drift has one shard
            was,
            read_to=read_to,
            late_up_to_ms=self.late_up_to_ms.get(source.name),
            allowed_ms=None,
            window_ms=self.stream.topology.window_ms,
            decided_at_ms=self.batch.decided_at_ms,
        )
        number: int = fresh["partition"][0]
        run = Run(told.rows.on_time, times_of(told.rows.measured), told.counts, told.tables)
        arrived = Arrived(
            source=source.name,
            partition=number,
            seen=told.seen[number],
            gap=bool(with_gaps(fresh, read_to)),
            writers=told.writers.get(number, {}),
            counts=told.counts,
            disorder=told.disorder,
            windows=told.windows,
            per_window=records_per_window(run.times, window_ms=self.stream.topology.window_ms),
            tables=self.laid_out(self.tables({source.name: run})),
        )
        return arrived, told.rows.on_time

    def _hop(self, source: HopSource, raw: pl.DataFrame, was: InputProgress) -> tuple[Arrived, pl.DataFrame]:
        rows = hop_arrivals(source, raw)
        repartition = self.stream.topology.operators[source.repartition]
        assert isinstance(repartition, Repartition)
        records = hop_records(repartition, rows.rows, self.hops[source.name])
        times = times_of(records)
        arrived = Arrived(
            source=source.name,
            partition=raw["partition"][0],
            seen=seen_of_hop(records, rows.last_batch, was),
            counts=Counter(records_in=records.height, passed=records.height),
            windows=frozenset(rows.windows),
            per_window=records_per_window(times, window_ms=self.stream.topology.window_ms),
            watermark_ms=rows.watermark_ms,
            idle=rows.idle,
            tables=self.laid_out(self.tables({source.name: Run(records, times, Counter())})),
        )
        return arrived, records.with_columns(rows.order)


@dataclass(frozen=True, kw_only=True)
class Working(Task):
    """Runs the operators over a shard.

    *states* tell of the state of each. *references* are the versions of Delta
    tables that are joined; *slow_ms* makes operators sleep, in the first shard alone. *taken_in* is what sources took
    in where the driver has done that.
    """

    states: tuple[StateRuns, ...]
    references: Mapping[str, int]
    slow_ms: Mapping[str, int]
    taken_in: TakenIn | None = None

    def __call__(self, number: int, dealt: Iterable[bytes]) -> Worked:
        """What becomes of the shard *number*, which was *dealt* so much."""
        self.versions.refuse_others()
        told = [pickle.loads(each) for each in dealt]
        shard = Shard.after(self.was, self.stream, number, self.states[number])
        shard.read_versions(self.references)
        slow_ms = {} if number else self.slow_ms
        decider = Decider.of(
            self.stream, shard.steps, self.answers, NOTHING_LOST, self.answers, self.clock, slow_ms=slow_ms
        )
        taken_in = self.taken_in or self._taken_in(decider, [each for each in told if isinstance(each, Arrived)])
        if taken_in is None:
            return Worked(shard=number, is_doubtful=True)
        records = sum(tally.counts.get("records_in", 0) for tally in taken_in.tallies.values())
        if not decider.is_news(self.was, taken_in.now, self.batch, records):
            shard.keep()
            return Worked(shard=number, state=self.states[number], taken_in=None if number else taken_in)
        parts = [each for each in told if isinstance(each, Part)]
        return self._worked(shard, number, decider, taken_in, parts)

    def _worked(self, shard: Shard, number: int, decider: Decider, taken_in: TakenIn, parts: list[Part]) -> Worked:
        steps, sources = shard.steps, [source.name for source in self.stream.sub.sources]
        arrived = {name: self._run(_records(name, parts, steps)) for name in sources}
        moves, moment = Moves(), self._moment(number, decider.moment(self.was, taken_in.now))
        runs = decider.pipeline.run(arrived, moves, moment)
        # What every shard has whole is the first one's to tell.
        others = {*sources, *(self.stream.sub.table_inputs() if number else ())}
        runs = {name: run for name, run in runs.items() if name not in others}
        in_turn = {name: self._numbered(name, rows, number) for name, rows in self.tables(runs).items()}
        moved = shard.files.noted(steps.memory, self.was.batch_id, self.batch.batch_id, moves)
        steps.take(moves, watermark_ms=taken_in.now.watermark_ms)
        shard.files.taken(steps.memory, self.batch.batch_id)
        shard.keep()
        return Worked(
            shard=number,
            is_news=True,
            taken_in=None if number else taken_in,
            host=node(),
            hot=self._hottest(parts),
            tallies={name: Tally.of(run, window_ms=decider.window_ms) for name, run in runs.items()},
            tables=self.laid_out(in_turn),
            state=shard.files.runs,
            moved=moved,
            state_bytes=steps.memory.bytes(),
        )

    def _taken_in(self, decider: Decider, arrived: list[Arrived]) -> TakenIn | None:
        """What all partitions that *arrived* come to; None when records of a topic may be gone."""
        parts = {source.name: of_source(source, arrived) for source in self.stream.sub.sources}
        inputs = {source.name: self._input(decider, source, parts[source.name]) for source in self.stream.sub.sources}
        known = {name: part for name, part in inputs.items() if part is not None}
        if len(known) < len(inputs):
            return None
        opened = {name: {start for part in of for start in part.windows} for name, of in parts.items()}
        tables = together((part.tables for of in parts.values() for part in of), self.lay_out)
        return TakenIn(
            now=decider.progress(self.was, {n: part.progress for n, part in known.items()}, opened, self.batch),
            seen={name: part.seen for name, part in known.items()},
            tallies={name: arrival(self.batch, of) for name, of in parts.items()},
            tables={**tables, DISORDER_BUCKETS.name: self._disorder(arrived)},
            task_runs=tuple(part.task_run for of in parts.values() for part in of),
        )

    def _hottest(self, parts: list[Part]) -> tuple[str, float] | None:
        """Return the key of most of the records in *parts*, by the columns that deal them out, and its part of them."""
        found: list[tuple[int, str]] = []
        for source, columns in self.sharding.by.items():
            records = [part.records.select(columns) for part in parts if part.source == source]
            if columns and records:
                counts = pl.concat(records).group_by(columns).len("_n").sort("_n", *columns, descending=True).head(1)
                found.append((counts["_n"].item(), counts.select(value_text(columns, counts.schema)).item()))
        records_n, key = max(found, default=(0, ""))
        return (key, records_n / sum(part.records.height for part in parts)) if records_n else None

    def _input(self, decider: Decider, source: Source | HopSource, arrived: list[Arrived]) -> Input | None:
        """How far *source* has come; None when records of its topic may be gone."""
        before, batch = self.was.inputs.get(source.name, InputProgress()), self.batch
        if isinstance(source, HopSource):
            return followed(before, arrived, batch)
        parts = {part.partition: part for part in arrived}
        read_to = {number: part.until_offset for number, part in before.partitions.items()}
        offsets = decider.reader.offsets(source, parts.keys(), read_to)
        doubtful = without_records(offsets, {number for number, part in parts.items() if not part.gap})
        ends = batch.ends.get(source.topic or "", {})
        if any(
            earliest > read_to[number] or ends.get(number, read_to[number]) < read_to[number]
            for number, (earliest, _) in doubtful.items()
            if number in read_to and source.topic
        ):
            return None
        seen = seen_of({n: part.seen for n, part in parts.items() if part.seen}, read_to, offsets, ends, {})
        seen = dict(decider.reader.marked(source, before, seen, batch))
        writers = {n: part.writers for n, part in before.partitions.items()}
        writers |= {n: part.writers for n, part in parts.items()}
        return Input(decider.reader.progress(source, before, seen, writers, batch), seen)

    def _disorder(self, arrived: Iterable[Arrived]) -> pa.Table:
        """How far records of each source were behind, over all its partitions."""
        parts = [part.disorder.with_columns(source=pl.lit(part.source)) for part in arrived if part.disorder.width]
        columns = {"source": pl.String(), "bucket": pl.Int16(), "n": pl.UInt32()}
        counts = pl.concat([pl.DataFrame(schema=columns), *parts], how="diagonal_relaxed")
        counts = counts.group_by("source", "bucket").agg(pl.col("n").sum()).sort("source", "bucket")
        same = {"topology": self.stream.topology.name, "sub_topology": self.stream.sub.name}
        rows = counts.with_columns(decided_at=self.batch.decided_at_ms)
        return rows_of(DISORDER_BUCKETS, rows, **same, batch_id=self.batch.batch_id)

    def _moment(self, number: int, moment: Moment) -> Moment:
        """The *moment* of the shard *number*: it takes the late records of its keys in again."""
        found = {}
        for name, late in moment.reopened.items():
            operator = self.stream.topology.operators[name]
            assert isinstance(operator, Aggregate)
            in_any = late.with_columns(window_start=pl.lit(0, pl.Int64))  # no window is dealt out by itself
            keyed = in_any.with_columns(_state=key_text((*operator.key, "window_start"), in_any.schema))
            found[name] = self.sharding.own(number, self.shards, name, keyed, "_state").select(late.columns)
        return replace(moment, reopened=found)

    def _run(self, records: pl.DataFrame) -> Run:
        times = pl.DataFrame(schema=dict(TIMES))
        # The operators behind it wait for nobody but each other: no clock of another host comes into that.
        return Run(records, times, Counter(), finished_at_ms=self.clock())

    def _numbered(self, name: str, rows: pa.Table, number: int) -> pa.Table:
        """*rows* with a `seq` that no other shard has, in the order of the shard."""
        if name != CHANGES.name and not isinstance(self.stream.topology.operators.get(name), Repartition):
            return rows
        place = rows.column_names.index("seq")
        return rows.set_column(place, rows.schema.field(place), pc.add(rows["seq"], number << SEQ_BITS))


def _records(source: str, parts: Iterable[Part], steps: Steps) -> pl.DataFrame:
    """The records of *source* among *parts*, in order."""
    of = sorted((part for part in parts if part.source == source), key=lambda part: part.partition)
    if not of:
        return pl.DataFrame(schema=dict(steps.schemas[source]))
    rows = pl.concat(part.records for part in of)
    order = [c for c in ("_batch", "_seq") if c in rows.columns]
    return rows.sort(order, maintain_order=True).drop(order) if order else rows
