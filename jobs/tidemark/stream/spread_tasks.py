"""What executors do of a batch that is too large for the driver: take in partitions, then work on shares of the keys.

Purpose: the same readers, operators and states as on the driver, over a part of the records each.
How it works: `Arriving` takes in one partition of a source, writes its records down, dealt out, and sends back numbers.
`Working` runs the operators over one share of all records, with the states of its keys from the tables. Rows of tables
go into files where the tables lie, which see them once the driver commits them by name; only names and numbers come
back.
A task that Spark runs twice writes files twice, and the driver hears of one of them.
Known limitation: a share, with the states of its keys, has to fit into the memory of an executor's Python.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import wall_clock_ms
from tidemark.delta import Reference
from tidemark.files import File, write_file
from tidemark.kernels.arrivals import hop_arrivals, rows_in_order
from tidemark.kernels.facts import TIMES as TIME_COLUMNS
from tidemark.kernels.facts import records_per_window, times_of
from tidemark.kernels.loss import with_gaps
from tidemark.kernels.schemas import record_schema
from tidemark.kernels.values import key_text
from tidemark.object_path import ObjectPath
from tidemark.place import location, new_file
from tidemark.semantics.event_time import Seen
from tidemark.semantics.progress import InputProgress, Sent, StreamProgress
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Aggregate, HopSource, Repartition, Sink, Source
from tidemark.spec.tables import CHANGES
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.batch import Moment
from tidemark.stream.commit import appended, sink_rows
from tidemark.stream.decision import ForTables, Tally
from tidemark.stream.intake import seen_of_hop, taken
from tidemark.stream.load import load_memory
from tidemark.stream.pipeline import Pipeline
from tidemark.stream.sharing import Sharing
from tidemark.stream.state import Moves
from tidemark.stream.steps import Run, Steps

SEQ_BITS = 40
"""A share numbers its rows from its own number times 2 to this power."""

Written = Mapping[str, File]
"""By name as in a journal entry: the file with the rows."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every task of a batch is told. *folder* is for files that are no table's; *shares* is how many there are."""

    topology: Topology
    sub: SubTopology
    layout: Layout
    folder: Path
    batch_id: int
    was: StreamProgress
    sharing: Sharing
    shares: int

    def written(self, tables: Mapping[str, pa.Table]) -> Written:
        """The rows of *tables*, by name as in a journal entry, in files."""
        found: dict[str, File] = {}
        for name, rows in tables.items():
            if rows.num_rows:
                folder, shown = self._place(name, rows)
                found[name] = write_file(folder, shown, batch_id=self.batch_id)
        return found

    @property
    def home(self) -> Path:
        """The folder of the tables."""
        return self.layout.stream(self.topology.name, self.sub.name)

    def _place(self, name: str, rows: pa.Table) -> tuple[Path, pa.Table]:
        """The folder that *rows* belong into, and what is written there."""
        operator = self.topology.operators.get(name)
        if (place := appended(self.home, operator, name, rows, self.batch_id)) is not None:
            return place
        if isinstance(operator, Sink) and operator.table:
            return self.folder, sink_rows(operator, rows, self.batch_id, self.home)
        return self.folder, rows


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """What came in of one partition of a source, in numbers.

    `gap`: offsets are missing; `writers` as in the partition's progress; `disorder` is counted by bucket; `windows` are
    the starts of those opened, `per_window` all records per window; `records` is the file in which they are dealt out.
    """

    source: str
    partition: int = 0
    seen: Seen | None = None
    gap: bool = False
    writers: Mapping[str, Sent] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    disorder: pl.DataFrame = field(default_factory=pl.DataFrame)
    windows: frozenset[int] = frozenset()
    per_window: Mapping[int, int] = field(default_factory=dict)
    watermark_ms: int | None = None
    idle: bool | None = None
    records: str = ""
    files: Written = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Arriving(Task):
    """Takes in the rows of one partition of a source; a record at or before *late_up_to_ms* of its source is late."""

    late_up_to_ms: Mapping[str, int]
    decided_at_ms: int

    def __call__(self, raw: pl.DataFrame) -> Arrived:
        """What the rows *raw*, all of one partition, are."""
        name: str = raw["source"][0]
        source = self.topology.operators[name]
        was = self.was.inputs.get(name, InputProgress())
        if isinstance(source, HopSource):
            return self._hop(source, raw, was)
        assert isinstance(source, Source)
        return self._source(source, raw, was)

    def _source(self, source: Source, raw: pl.DataFrame, was: InputProgress) -> Arrived:
        read_to = {number: part.until_offset for number, part in was.partitions.items()}
        fresh = rows_in_order(source, raw, numbered_from=read_to.get(0, 0))
        told = taken(
            source,
            fresh,
            pl.DataFrame(schema=record_schema(source.columns)),  # nobody waits: no work with max_drift is shared
            was,
            read_to=read_to,
            late_up_to_ms=self.late_up_to_ms.get(source.name),
            allowed_ms=None,
            window_ms=self.topology.window_ms,
            decided_at_ms=self.decided_at_ms,
        )
        number: int = fresh["partition"][0]
        times = times_of(told.rows.measured)
        run = Run(told.rows.on_time, times, told.counts, told.tables)
        return Arrived(
            source=source.name,
            partition=number,
            seen=told.seen[number],
            gap=bool(with_gaps(fresh, read_to)),
            writers=told.writers.get(number, {}),
            counts=told.counts,
            disorder=told.disorder,
            windows=told.windows,
            per_window=records_per_window(times, window_ms=self.topology.window_ms),
            records=self._dealt(source.name, told.rows.on_time),
            files=self.written(ForTables(self.topology, self.sub).tables(self.batch_id, {source.name: run})),
        )

    def _hop(self, source: HopSource, raw: pl.DataFrame, was: InputProgress) -> Arrived:
        steps = Steps(self.topology, Reference(self.layout.warehouse))
        rows = hop_arrivals(source, raw)
        records = steps.hop_records(source, rows.rows)
        run = Run(records, times_of(records), Counter())
        return Arrived(
            source=source.name,
            partition=raw["partition"][0],
            seen=seen_of_hop(records, rows.last_batch, was),
            counts=Counter(records_in=records.height, passed=records.height),
            windows=frozenset(rows.windows),
            per_window=records_per_window(run.times, window_ms=self.topology.window_ms),
            watermark_ms=rows.watermark_ms,
            idle=rows.idle,
            records=self._dealt(source.name, records.with_columns(rows.order)),
            files=self.written(ForTables(self.topology, self.sub).tables(self.batch_id, {source.name: run})),
        )

    def _dealt(self, source: str, records: pl.DataFrame) -> str:
        """A file with *records*, a record batch for each share."""
        path = self.folder / f"{source}-{uuid.uuid4().hex}.arrow"
        schema = records.clear().to_arrow().schema
        made = new_file(path) if isinstance(path, ObjectPath) else nullcontext(str(path))
        with made as sink, pa.ipc.new_file(sink, schema) as file:
            for part in self.sharing.dealt(source, records, self.shares):
                file.write_batch(_one_batch(part.to_arrow()))
        return str(path)


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What the operators made of one share: numbers per operator, and the files with the rows."""

    tallies: Mapping[str, Tally]
    files: Written


@dataclass(frozen=True, kw_only=True)
class Working(Task):
    """Runs the operators over a share. *records* are the files of each source, in the order of partitions.

    *versions* are those of Delta tables that are joined; *slow_ms* makes operators sleep, in the first share alone.
    """

    moment: Moment
    records: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, int]
    slow_ms: Mapping[str, int]

    def __call__(self, number: int) -> Worked:
        """What becomes of share *number*."""
        steps = Steps(self.topology, Reference(self.layout.warehouse, self.versions))
        load_memory(steps, self.sub, self.home, self.was, share=partial(self.sharing.share, number, self.shares))
        slow_ms = {} if number else self.slow_ms
        pipeline = Pipeline(self.sub, steps, wall_clock_ms, slow_ms=slow_ms, sleep_ms=lambda ms: time.sleep(ms / 1_000))
        sources = [o.name for o in self.sub.operators if isinstance(o, Source | HopSource)]
        arrived = {name: self._run(self._records(name, number, steps)) for name in sources}
        runs = pipeline.run(arrived, Moves(), self._moment(number))
        # What every share has whole is the first one's to tell.
        others = {*sources, *(self.sub.table_inputs() if number else ())}
        runs = {name: run for name, run in runs.items() if name not in others}
        tables = ForTables(self.topology, self.sub).tables(self.batch_id, runs)
        in_turn = {name: self._numbered(name, rows, number) for name, rows in tables.items()}
        tallies = {name: Tally.of(run, window_ms=self.topology.window_ms) for name, run in runs.items()}
        return Worked(tallies=tallies, files=self.written(in_turn))

    def _records(self, source: str, number: int, steps: Steps) -> pl.DataFrame:
        """The records of *source* that are in share *number*, in order."""
        place = number if source in self.sharing.by else 0
        parts = [pl.DataFrame(_read(path, place)) for path in self.records.get(source, ())]
        if not parts:
            return pl.DataFrame(schema=dict(steps.schemas[source]))
        rows = pl.concat(parts)
        order = [c for c in ("_batch", "_seq") if c in rows.columns]
        return rows.sort(order, maintain_order=True).drop(order) if order else rows

    def _moment(self, number: int) -> Moment:
        """The moment of share *number*: it takes the late records of its keys in again."""
        found = {}
        for name, late in self.moment.reopened.items():
            operator = self.topology.operators[name]
            assert isinstance(operator, Aggregate)
            in_any = late.with_columns(window_start=pl.lit(0, pl.Int64))  # no window is dealt out by itself
            keyed = in_any.with_columns(_state=key_text((*operator.key, "window_start"), in_any.schema))
            found[name] = self.sharing.share(number, self.shares, name, keyed, "_state").select(late.columns)
        return replace(self.moment, reopened=found)

    def _run(self, records: pl.DataFrame) -> Run:
        times = pl.DataFrame(schema=dict(TIME_COLUMNS))
        # The operators behind it wait for nobody but each other: no clock of another host comes into that.
        return Run(records, times, Counter(), finished_at_ms=wall_clock_ms())

    def _numbered(self, name: str, rows: pa.Table, number: int) -> pa.Table:
        """*rows* with a `seq` that no other share has, in the order of the share."""
        if name != CHANGES.name and not isinstance(self.topology.operators.get(name), Repartition):
            return rows
        place = rows.column_names.index("seq")
        return rows.set_column(place, rows.schema.field(place), pc.add(rows["seq"], number << SEQ_BITS))


def _read(path: str, batch: int) -> pa.Table:
    place = location(path)
    source = place.open("rb") if isinstance(place, ObjectPath) else pa.memory_map(path)
    with pa.ipc.open_file(source) as file:
        return pa.Table.from_batches([file.get_batch(batch)])
