"""Runs batches without Spark, over rows written by hand.

All else is the real thing: the engine, its journal, and Delta tables.
"""

from __future__ import annotations

import platform
import shutil
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
from deltalake import DeltaTable

from support.quiet_broker import Row, Silence
from support.views import table_or_view
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import TASKS
from tidemark.model.topology import EVERY, Topology, parse
from tidemark.selection import names_in
from tidemark.semantics.segments import NEXT, SegmentOwner
from tidemark.storage.delta.tables import scan
from tidemark.storage.disk import WriteRepeater, at_once
from tidemark.storage.fence import Fence
from tidemark.stream.decide.waits import LooksBefore
from tidemark.stream.driver.heartbeats import ClockOffsets, Heartbeats
from tidemark.stream.engine import Engine
from tidemark.stream.journal.batch import NOT_QUEUED, QueueWait
from tidemark.stream.journal.checkpoint import Ends
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.read.data_loss import Reread, nothing_to_reread
from tidemark.stream.read.parts import BatchPart, RecordsByTopic, passed_over_rows
from tidemark.stream.shards.shards import Executors
from tidemark.stream.wiring import build_engine
from tidemark.stream.write.measurement import Host
from tidemark.testing.rows import rows_of_hop, rows_schema

NOON = 1_399_982_400_000
"""2014-05-13 12:00 UTC: the times of a play are seconds after it."""

BOOTED_MS = NOON - 3_600_000
"""The host of a play was started an hour before NOON."""

CLOCKS = {
    "epoch", "started_at", "batch_started_at", "finished_at", "duration_ms", "queued_ms", "ewt_at", "ewt_adjusted_at",
    "recovered", "started_boot_ms", "looked_boot_ms", "excluded_boot_ms", "phases", "phases_boot_ms",
    "finished_boot_ms", "finished_epoch",
}  # fmt: skip
"""Columns that differ from run to run: times and writers."""
MEASURED = CLOCKS | {"min_ms", "max_ms", "sum_ms", "negative_n"}
"""Columns with clock times and writers."""
OF_A_RUN = {"started_at", "finished_at", "min_ms", "max_ms", "sum_ms", "negative_n", "host", "skew_ms", "skew_error_ms"}
"""Fields of `operator_batches.tasks` that differ from run to run."""


def without_clocks(rows: pl.DataFrame, measured: Collection[str] = MEASURED) -> pl.DataFrame:
    """Returns *rows* of a table without columns and fields that are *measured*."""
    rows = rows.drop(measured, strict=False)
    if "tasks" not in rows.columns:
        return rows
    kept = [name for name in names_in(TASKS) if name not in OF_A_RUN]
    decided = pl.struct([pl.element().struct.field(name) for name in kept])
    return rows.with_columns(pl.col("tasks").list.eval(decided))


class Play:
    """A topology in the warehouse *home*, with offsets and batches counted up.

    Offsets count per source and partition, batches per sub-topology.

    Facts are in their tables with each batch, unless *facts_every_ms* says otherwise.

    Its clock stands still within a batch, unless each reading of it takes `reading_ms`, or each write of a journal
    entry, a table or a topic takes `write_ms`, or each commit of changes or of an output takes `output_ms`. The wall
    clock of its hosts was set by `set_ms`, which the boot clock does not show.
    """

    def __init__(
        self,
        toml: str,
        home: Path,
        *,
        partitions: int = 1,
        change: Callable[[Topology], Topology] = lambda topology: topology,
        facts_every_ms: int = 0,
    ) -> None:
        self.toml, self.partitions = toml, partitions
        parsed = replace(parse(tomllib.loads(toml), file="play.toml"), facts_every_ms=facts_every_ms)
        self.topology = change(parsed)
        self.home, self.broker = home, Silence(partitions)
        self._offsets: dict[tuple[str, int], int] = defaultdict(int)
        self._batches: dict[str, int] = defaultdict(int)
        self._engines: dict[str, Engine] = {}
        self._timelines = defaultdict[str, Timeline](lambda: Timeline(lambda: self.now_ms - BOOTED_MS))
        self.now_ms = 0
        self.executors: Callable[[pl.DataFrame], Executors] | None = None
        self.slow_ms: dict[str, int] = {}
        self.hosts: dict[str, Host] = {}
        self.clock_offsets = ClockOffsets()
        self.queued: Callable[[int], QueueWait] = lambda since_ms: NOT_QUEUED
        self.reading_ms = self.write_ms = self.output_ms = self.set_ms = 0
        self.reread: Reread = nothing_to_reread
        self.looks: LooksBefore = lambda at_ms, source: ()
        self.promise_ms: int | None = None

    def in_shards(self, n: int, executors: Callable[[pl.DataFrame], Executors]) -> Play:
        """Makes later drivers run operators in *n* shards on *executors*."""
        self.topology = replace(self.topology, shards={EVERY: n})
        self.executors = executors if n > 1 else None
        return self

    @property
    def sub(self) -> str:
        """The name of the first sub-topology."""
        return self.topology.sub_topologies[0].name

    @property
    def control(self) -> Control:
        """The control folder of the first sub-topology."""
        return Control(Layout(self.home).control(self.topology.name, self.sub))

    def copy(self, home: Path) -> Play:
        """Copies the play so far to *home*, with drivers of its own."""
        play = Play(self.toml, home, partitions=self.partitions, facts_every_ms=self.topology.facts_every_ms)
        play._offsets, play._batches = self._offsets.copy(), self._batches.copy()
        return play

    def copied_to(self, home: Path) -> Play:
        """Copies the play so far, its warehouse and its broker to *home*."""
        shutil.copytree(self.home, home)
        play = self.copy(home)
        play.broker = self.broker.copy()
        return play

    def resume(self, batches: Mapping[str, int], offsets: Mapping[tuple[str, int], int]) -> None:
        """Continues other drivers' streams at these batches and offsets.

        Hops: at these batches of the upstream.
        """
        self._batches.update(batches)
        self._offsets.update(offsets)
        for (source, partition), offset in offsets.items():
            operator = self.topology.operators[source]
            assert isinstance(operator, Source)
            if operator.topic:
                self.broker.have(operator.topic, [{"partition": partition, "offset": offset - 1}])

    def row(self, source: str, at_ms: int, *, partition: int = 0, key: str | None = "k", **fields: Any) -> Row:
        """Returns a usable record of *source*; missing fields are null.

        Its time fills the field `timestamp` unless given.

        What is declared as `timestamp` is a datetime, or epoch ms.
        """
        operator = self.topology.operators[source]
        assert isinstance(operator, Source)
        offset = self._offsets[source, partition]
        self._offsets[source, partition] += 1
        stamp = {operator.timestamp: at_ms} if operator.timestamp not in {None, *fields} else {}
        values = dict.fromkeys(operator.columns) | fields | stamp
        in_ms = [c for c, kind in operator.columns.items() if kind == "timestamp" and isinstance(values[c], int)]
        values |= {column: utc(values[column]) for column in in_ms}
        return {
            "source": source, "partition": partition, "offset": offset, "key": key and key.encode(), "deleted": False,
            "timestamp_ms": at_ms, source: values,
        }  # fmt: skip

    def batch(self, rows: Sequence[Row] = (), *, at_ms: int, sub: str | None = None, now_ms: int | None = None) -> None:
        """Runs the next batch of *sub*, decided at *at_ms* while the clock is at *now_ms* (None: the same).

        It is the first sub-topology unless named.
        """
        name = sub or self.sub
        self.process(self._batches[name], rows, at_ms=at_ms, sub=name, now_ms=now_ms)
        self._batches[name] += 1

    def hop(self, sub: str, *, at_ms: int, now_ms: int | None = None) -> None:
        """Runs the next batch of *sub* over new rows of its upstreams; see `batch`."""
        name = f"{sub}/hop"
        rows: list[Row] = []
        for source in self.topology.sub_topology(sub).operators:
            if isinstance(source, HopSource):
                path = Layout(self.home).hop(self.topology.name, source.upstream, source.repartition)
                written = scan(path).filter(pl.col("batch_id") >= self._batches[name]).collect()
                rows += rows_of_hop(source, written).to_dicts()
        self._batches[name] = max([self._batches[name], *(row["offset"] + 1 for row in rows)])
        self.batch(rows, at_ms=at_ms, sub=sub, now_ms=now_ms)

    def process(
        self,
        batch_id: int,
        rows: Sequence[Row],
        *,
        at_ms: int,
        sub: str | None = None,
        now_ms: int | None = None,
        passed_over: RecordsByTopic | None = None,
        ends: Ends | None = None,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        """Runs batch *batch_id* of *sub*, planned at *at_ms*.

        The clock is at *now_ms* then (None: the same). *ends* and *versions* are those of its plan; None: of the end of
        all topics and tables.
        """
        sub = sub or self.sub
        if sub not in self._engines:
            self.start(sub)
        timeline = self._timelines[sub]
        self.now_ms = at_ms if now_ms is None else now_ms
        timeline.begin(SegmentOwner.ENGINE, batch_id=NEXT)
        frame = self.frame(rows, sub)
        for source in self.topology.sub_topology(sub).operators:
            if isinstance(source, Source) and source.topic:
                self.broker.have(source.topic, [row for row in rows if row["source"] == source.name])
        executors = self.executors(frame) if self.executors else None
        self._engines[sub].process(
            batch_id, lambda: frame, self.broker.read_to() if ends is None else ends, executors, planned_at_ms=at_ms,
            versions=self._versions(sub) if versions is None else versions,
            read_part=lambda part: self._part(frame, part), passed_over=passed_over,
        )  # fmt: skip
        # Until the next one the query waits for its trigger; a play has no look or plan that takes time.
        timeline.begin(SegmentOwner.TRIGGER, batch_id=NEXT)

    def frame(self, rows: Sequence[Row], sub: str | None = None) -> pl.DataFrame:
        """Returns *rows* as the readers of *sub* have them."""
        return pl.DataFrame(rows, schema=self._schema(sub or self.sub))

    def _part(self, rows: pl.DataFrame, part: BatchPart) -> tuple[Callable[[], pl.DataFrame], Executors | None]:
        """Returns the reader of *part* of the *rows* of a batch."""
        topics = {o.name: o.topic for o in self.topology.operators.values() if isinstance(o, Source) and o.topic}

        def is_in(source: str, partition: int, offset: int) -> bool:
            if source not in topics:
                return part.is_first
            start, end = part.ranges[topics[source]].get(partition, (0, 0))
            return start + (partition in part.passed_over.get(topics[source], ())) <= offset < end

        mask = [is_in(*place) for place in rows.select("source", "partition", "offset").iter_rows()]
        skipped = passed_over_rows(self.topology.operators.values(), part)
        frame = pl.concat([rows.filter(pl.Series(mask, dtype=pl.Boolean)), skipped], how="diagonal")
        return lambda: frame, self.executors(frame) if self.executors else None

    def _versions(self, sub: str) -> dict[str, int]:
        """Returns the first unread version of each table that *sub* reads.

        By the id of the table.
        """
        places = {
            self.home / o.delta for o in self.topology.sub_topology(sub).operators if isinstance(o, Source) and o.delta
        }
        tables = [DeltaTable(str(path)) for path in places if DeltaTable.is_deltatable(str(path))]
        return {str(table.metadata().id): table.version() + 1 for table in tables}

    def start(
        self,
        sub: str | None = None,
        reached: Callable[[str], None] = lambda step: None,
        epoch: int = 1,
        check_lease: Callable[[], None] = lambda: None,
        until_written: WriteRepeater = at_once,
    ) -> None:
        """Starts a new driver for *sub* (the first one unless named)."""
        sub = sub or self.sub
        outputs = {o.appends_to or o.name for o in self.topology.sub_topology(sub).handing_out}

        def step(name: str) -> None:
            if name.removeprefix("committed ") in {"changes", *outputs}:
                self.now_ms += self.output_ms
            reached(name)

        self._timelines.pop(sub, None)
        self._engines[sub] = build_engine(
            self.stream(sub), self.broker, thread_id="t", epoch=epoch, slow_ms=self.slow_ms,
            fence=Fence(lambda: self._writes(check_lease), until_written, step, self._clock),
            host=self.hosts.get(sub, Host(platform.node())),
            clock_offsets=self.clock_offsets, queued=self.queued, reread=self.reread,
            timeline=self._timelines[sub], looks=self.looks,
        )  # fmt: skip

    def settle(self) -> None:
        """Ends drivers regularly: tables with current rows are merged."""
        for engine in self._engines.values():
            engine.settle()

    def stream(self, sub: str) -> Stream:
        """The stream *sub*."""
        return Stream(self.topology, self.topology.sub_topology(sub), Layout(self.home), self.promise_ms)

    def engine(self, sub: str) -> Engine:
        """The newest driver's of *sub*."""
        return self._engines[sub]

    def timeline(self, sub: str) -> Timeline:
        """What the newest driver of *sub* does."""
        return self._timelines[sub]

    def _clock(self) -> int:
        self.now_ms += self.reading_ms
        return self.now_ms + self.set_ms

    def _writes(self, check_lease: Callable[[], None]) -> None:
        self.now_ms += self.write_ms
        check_lease()

    def rows(self, table: str, sub: str | None = None) -> list[Row]:
        """Returns one table's rows of *sub* by batch, or those of a view, instants as epoch ms.

        Within a batch they keep their order.
        """
        frame = table_or_view(table, lambda name: scan(self.table(name, sub)).collect())
        frame = frame.with_columns(cs.datetime().dt.epoch("ms"))
        order = [c for c in ("batch_id", "seq") if c in frame.columns]
        return frame.sort(order, maintain_order=True).to_dicts()

    def tasks(self, sub: str | None = None) -> list[Row]:
        """Returns the tasks in `operator_batches` of *sub* by batch and operator, instants as epoch ms.

        Each has the fields of the task, and of its row `batch_id`, `operator`, `kind`, `level`, `thread_id` and
        `decided_at`; `operator_finished_at` is when the operator had finished.
        """
        own = ["batch_id", "operator", "kind", "level", "thread_id", "decided_at"]
        rows = scan(self.table("operator_batches", sub)).select(*own, "tasks", operator_finished_at="finished_at")
        tasks = rows.explode("tasks").drop_nulls("tasks").unnest("tasks").collect()
        return tasks.with_columns(cs.datetime().dt.epoch("ms")).sort("batch_id", maintain_order=True).to_dicts()

    def reads(self, sub: str | None = None) -> dict[int, list[Row]]:
        """Returns the rows about what batches of *sub* read of partitions, by batch."""
        reads: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows("partition_batches", sub):
            if row["until_offset"] is not None:
                reads[row["batch_id"]].append(row)
        return reads

    def table(self, name: str, sub: str | None = None) -> Path:
        """Where the table *name* of *sub* (the first one unless named) is."""
        return Layout(self.home).stream_table(self.topology.name, sub or self.sub, name)

    def tables(self) -> dict[str, list[str]]:
        """Returns the first sub-topology's rows as sorted text without MEASURED columns."""
        return {
            path.name: sorted(str(row) for row in without_clocks(scan(path).collect()).rows())
            for path in sorted(Layout(self.home).stream(self.topology.name, self.sub).iterdir())
            if path.name != "latency_minutes"
        }

    def _schema(self, sub: str) -> dict[str, pl.DataType]:
        return rows_schema(self.topology.sub_topology(sub))


def ms(seconds: float) -> int:
    return NOON + round(seconds * 1_000)


def record(at_s: float, key: str = "a", amount: float | None = 1.0, *, part: int = 0) -> Callable[[Play], Row]:
    """A record of that time."""
    return lambda play: play.row("events", ms(at_s), partition=part, key=key, id=key, amount=amount)


def bad(reason: str, value: bytes = b"\xff", *, part: int = 0) -> Callable[[Play], Row]:
    """A record that cannot be used."""
    unusable = {"source": "events", "partition": part, "value": value, "reason": reason}
    return lambda play: {**unusable, "offset": play.row("events", NOON, partition=part)["offset"]}


def tell(
    history: Heartbeats,
    at_s: float,
    state: StreamState = StreamState.RUNNING,
    reason: str | None = None,
    *,
    batch_s: float | None = None,
    epoch: int = 1,
    **load: object,
) -> None:
    """Writes a driver's heartbeat at *at_s*, in a batch since *batch_s*.

    None: no batch is running. *load* has further columns.
    """
    beat = Heartbeat(state=state, epoch=epoch, launch_id="", at_ms=ms(at_s), pid=1, reason=reason)
    began_ms = None if batch_s is None else ms(batch_s)
    history.write_if_due(beat, thread_id="t", batch_started_at_ms=began_ms, usage=lambda: load)
