"""Decides one batch: what it takes in, what every operator makes of that, which windows it closes.

Nothing is written here. The result is a journal entry: the rows of every table, and notes with the progress made, the
clocks read and the counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from tidemark.clock import Clock
from tidemark.control import Control
from tidemark.files import Rows
from tidemark.kernels.facts import records_per_window
from tidemark.kernels.schemas import rows_of
from tidemark.semantics import skip_rate
from tidemark.semantics.alignment import max_allowed_ms
from tidemark.semantics.event_time import Seen, combined
from tidemark.semantics.progress import STREAMING, InputProgress, Marked, StreamProgress
from tidemark.semantics.skip_rate import Skips
from tidemark.semantics.watermark import Progress, is_window_late
from tidemark.spec.operators import Level, Repartition, Sink, Source, Time, emission_of, latency_level
from tidemark.spec.stream import Stream
from tidemark.spec.tables import HOP, TABLES
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.batch import Batch, Moment
from tidemark.stream.broker import Answers
from tidemark.stream.intact import Intact
from tidemark.stream.intake import Intake, Reader
from tidemark.stream.journal import Entry
from tidemark.stream.operate.step import Run
from tidemark.stream.pipeline import Pipeline
from tidemark.stream.reopenings import Reopenings
from tidemark.stream.state import Moves
from tidemark.stream.steps import Steps
from tidemark.stream.streaming_windows import ClosedWindow, StreamingWindows
from tidemark.stream.table_marks import NewestMarks

TIMES = "times_of_"
"""Prefix of the entry's tables that hold the record times of an operator whose latency is written."""


@dataclass(frozen=True)
class Decision:
    """A journal entry, the progress that it makes, and what the memory takes once it is committed.

    `moves` is None when the states are in shards; `state_bytes` are then what they take.
    """

    entry: Entry
    progress: StreamProgress
    moves: Moves | None
    state_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What one operator did in one batch, or in a part of it, in numbers.

    Updates by outcome; records finished per streaming window, by its start; suppressed updates per task; clocks, epoch
    ms: `queued_ms` is how long it had waited for a sibling branch before it began.
    """

    counts: Mapping[str, int]
    windows: Mapping[int, int]
    skipped: Mapping[int, int]
    started_at_ms: int
    finished_at_ms: int
    queued_ms: int

    @classmethod
    def of(cls, run: Run, *, window_ms: int) -> Tally:
        """That of *run*."""
        return cls(
            counts=dict(run.counts),
            windows=records_per_window(run.times, window_ms=window_ms),
            skipped=run.skipped,
            started_at_ms=run.started_at_ms,
            finished_at_ms=run.finished_at_ms,
            queued_ms=run.queued_ms,
        )

    @property
    def notes(self) -> dict[str, Any]:
        """What the journal has of it."""
        clocks = {
            "started_at_ms": self.started_at_ms,
            "finished_at_ms": self.finished_at_ms,
            "queued_ms": self.queued_ms,
        }
        return {**clocks, "counts": dict(self.counts)}


class ForTables:
    """Turns what the operators of *sub* did into the rows that tables get, and says which operators are measured."""

    def __init__(self, topology: Topology, sub: SubTopology) -> None:
        self._same = {"topology": topology.name, "sub_topology": sub.name}
        levels = {o.name: latency_level(o, sub.terminals()) for o in sub.operators}
        self._measured = [name for name, level in levels.items() if level and topology.level.includes(level)]
        self._committing = {o.name: o for o in sub.operators if isinstance(o, Repartition | Sink)}
        self.hops = [o.name for o in sub.operators if isinstance(o, Repartition)]

    def tables(self, batch_id: int, runs: Mapping[str, Run]) -> dict[str, pa.Table]:
        """The rows that *runs* have: for the tables of the design, for measuring, and of operators that hand them out.

        Of the tables of the design one without rows is left out.
        """
        same = {**self._same, "batch_id": batch_id}
        found: dict[str, list[pl.DataFrame]] = {}
        for run in runs.values():
            for name, rows in run.rows.items():
                if rows.height and name in TABLES:
                    found.setdefault(name, []).append(rows)
        tables = {
            name: rows_of(TABLES[name], pl.concat(parts, how="diagonal"), **same) for name, parts in found.items()
        }
        for name in self._measured:
            if name in runs:
                tables[f"{TIMES}{name}"] = runs[name].times.to_arrow()
        for name, operator in self._committing.items():
            if name in runs:
                rows = runs[name].rows[name]
                tables[name] = rows_of(HOP, rows, **same) if isinstance(operator, Repartition) else rows.to_arrow()
        return tables

    def mark(
        self, batch_id: int, was: StreamProgress, now: StreamProgress, closed: list[ClosedWindow], *, seq: int
    ) -> pa.Table:
        """What ends a hop's rows, where it is news: watermark, whether all is idle, and the windows it closes."""
        starts = sorted(window.start_ms for window in closed)
        time = {"watermark": now.watermark_ms, "idle": now.idle}
        row = {"seq": seq, "partition": 0, "value": json.dumps(starts), **time}
        set_back = batch_id in was.resets.values()
        news = closed or set_back or (now.watermark_ms, now.idle) != (was.watermark_ms, was.idle)
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
    ) -> None:
        self._sub, self.reader, self.pipeline, self._steps = sub, reader, pipeline, steps
        self.reopenings = reopenings
        self._max_drift_ms = topology.max_drift_ms
        self.window_ms = topology.window_ms
        self.windows = StreamingWindows(topology.window_ms, topology.max_outstanding_windows)
        self.for_tables = ForTables(topology, sub)
        self._table_inputs = sub.table_inputs()
        self.sources = sub.sources
        self._marking = [o for o in sub.operators if isinstance(o, Sink) and o.tells_time]
        self._leading = [o for o in sub.operators if isinstance(o, Source) and o.name not in self._table_inputs]
        self._tells_skips = topology.level.includes(Level.DEBUG)
        self._judging = {o.name for o in sub.operators if emission_of(o)}

    def late_up_to_ms(self, progress: StreamProgress) -> dict[str, int]:
        """Per strict source, the instant at or before which a record of the next batch is late; others have none."""
        return {
            source.name: watermark_ms - source.allowed_lateness_ms
            for source in self._leading
            if source.allowed_lateness_ms is not None
            and (watermark_ms := progress.inputs.get(source.name, InputProgress()).watermark_ms) is not None
        }

    def _allowed_ms(self, progress: StreamProgress) -> int | None:
        """The watermark above which a partition of the next batch waits for the others; None: none does."""
        if self._max_drift_ms is None:
            return None
        partitions = (
            Progress(watermark_ms=part.watermark_ms, activity=part.activity)
            for source in self._leading
            for part in progress.inputs.get(source.name, InputProgress()).partitions.values()
        )
        return max_allowed_ms(partitions, max_drift_ms=self._max_drift_ms)

    @classmethod
    def of(
        cls,
        stream: Stream,
        steps: Steps,
        broker: Answers,
        intact: Intact,
        table_marks: NewestMarks,
        clock: Clock,
        *,
        slow_ms: Mapping[str, int],
    ) -> Decider:
        """The one of *stream*; *slow_ms* makes operators sleep."""
        topology, sub, control = stream.topology, stream.sub, Control(stream.control)
        reader = Reader(
            [operator for operator in sub.operators if isinstance(operator, Source)],
            broker,
            steps,
            intact,
            clock,
            table_marks,
            window_ms=topology.window_ms,
            processing_time=topology.time is Time.PROCESSING,
            max_held=topology.max_held,
        )
        pipeline = Pipeline(sub, steps, clock, slow_ms=slow_ms, sleep_ms=lambda ms: time.sleep(ms / 1_000))
        return cls(topology, sub, reader, pipeline, steps, Reopenings(sub, stream.home, control, steps.schemas))

    def decide(self, raw: pl.DataFrame, batch: Batch, was: StreamProgress) -> Decision | None:
        """What becomes of the rows *raw* of *batch* after the progress that *was*; None when it changes nothing."""
        intakes = self.taken_in(raw, batch, was)
        now = self.with_intakes(was, intakes, batch)
        if not self.is_news(was, now, batch, sum(intake.run.counts["records_in"] for intake in intakes.values())):
            return None
        leading = {source.name for source in self._leading}
        moves = Moves(waiting={name: intake.waiting for name, intake in intakes.items() if name in leading})
        runs = self.pipeline.run({name: intake.run for name, intake in intakes.items()}, moves, self.moment(was, now))
        tallies = {name: Tally.of(run, window_ms=self.window_ms) for name, run in runs.items()}
        tables = self.for_tables.tables(batch.batch_id, runs)
        seen = {name: intake.seen for name, intake in intakes.items()}
        last = {name: tables[name].num_rows for name in self.for_tables.hops}
        return Decision(*self.concluded(batch, was, now, seen, tallies, tables, last, _joined), moves)

    def concluded(
        self,
        batch: Batch,
        was: StreamProgress,
        now: StreamProgress,
        seen: Mapping[str, Mapping[int, Seen]],
        tallies: Mapping[str, Tally],
        tables: Mapping[str, Rows],
        last: Mapping[str, int],
        join: Callable[[str, Rows, pa.Table], Rows],
    ) -> tuple[Entry, StreamProgress]:
        """The entry of *batch*, and the progress that it makes, when operators did what *tallies* and *tables* say.

        *seen* are the partitions of each source, *last* the `seq` of the mark that ends a hop; *join* adds it.
        """
        now, closed = self.counted(now, tallies)
        marks = self.marks(was, now, {name for name, rows in tables.items() if rows.num_rows})
        now = replace(now, marks={**was.marks, **marks})
        hops = {
            name: join(name, tables[name], self.for_tables.mark(batch.batch_id, was, now, closed, seq=seq))
            for name, seq in last.items()
        }
        notes = self.notes(batch, was, now, seen, tallies, closed, marks)
        return Entry(batch.batch_id, {**tables, **hops}, notes), now

    def with_intakes(self, was: StreamProgress, intakes: Mapping[str, Intake], batch: Batch) -> StreamProgress:
        """How far the stream has come with *intakes*."""
        inputs = {name: intake.progress for name, intake in intakes.items()}
        return self.progress(was, inputs, {name: intake.windows for name, intake in intakes.items()}, batch)

    def taken_in(self, raw: pl.DataFrame, batch: Batch, was: StreamProgress) -> dict[str, Intake]:
        """What each source takes in of the rows *raw* of *batch*."""
        late_up_to_ms, allowed_ms = self.late_up_to_ms(was), self._allowed_ms(was)
        leading = {source.name for source in self._leading}
        intakes: dict[str, Intake] = {}
        turn_ms = batch.read_at_ms
        for operator in self.sources:
            intake = intakes[operator.name] = self.reader.take(
                operator,
                raw,
                was.inputs.get(operator.name, InputProgress()),
                batch,
                late_up_to_ms=late_up_to_ms.get(operator.name),
                allowed_ms=allowed_ms if operator.name in leading else None,
            )
            intake.run.queued_ms = max(0, turn_ms - batch.read_at_ms)
            turn_ms = intake.run.finished_at_ms
        return intakes

    def is_news(self, was: StreamProgress, now: StreamProgress, batch: Batch, records: int) -> bool:
        """Whether *batch*, which reads so many *records*, changes anything."""
        asked = batch.batch_id in {*was.resets.values(), *was.reopened.values()}
        return bool(records or asked or not now.same_as(was) or self.marks(was, now) or self._is_due(was, batch))

    def marks(self, was: StreamProgress, now: StreamProgress, rows: Container[str] = ()) -> dict[str, Marked]:
        """The marks of time that sinks send in this batch: where it moved, and it is time for another one.

        To a table that gets *rows* they go with these.
        """
        assert now.decided_at_ms is not None
        mark = Marked(now.decided_at_ms, now.watermark_ms, now.idle)
        found = {}
        for sink in self._marking:
            last = was.marks.get(sink.name, Marked(now.decided_at_ms - sink.mark_every_ms, None, idle=False))
            is_due = mark[1:] != last[1:] and mark.at_ms - last.at_ms >= sink.mark_every_ms
            if is_due or (sink.table and sink.name in rows):
                found[sink.name] = mark
        return found

    def moment(self, was: StreamProgress, now: StreamProgress) -> Moment:
        """How far time has come *now*, and *was* before; what the topics of sinks take, and who is asked to reopen."""
        assert now.decided_at_ms is not None
        return Moment(
            was_watermark_ms=was.watermark_ms,
            watermark_ms=now.watermark_ms,
            held_by=was.held_by,
            was_decided_at_ms=was.decided_at_ms,
            decided_at_ms=now.decided_at_ms,
            limits=self.reader.limits([o for o in self._sub.operators if isinstance(o, Sink)]),
            stay_closed=was.stay_closed,
            ended=was.ended,
            reopened=self.reopenings.records(was, now.batch_id),
            forgotten=self.reopenings.forgotten(was),
        )

    def _is_due(self, was: StreamProgress, batch: Batch) -> bool:
        """Whether an operator has something to say although nothing came in."""
        skips = was.skipped_lately.values() if self._tells_skips else ()
        ended = (skip_rate.has_ended(of, now_ms=batch.decided_at_ms) for of in skips)
        due = (self._steps.is_due(o, was.decided_at_ms, batch.decided_at_ms) for o in self._sub.operators)
        return any(ended) or any(due)

    def progress(
        self,
        was: StreamProgress,
        inputs: Mapping[str, InputProgress],
        windows: Mapping[str, Iterable[int]],
        batch: Batch,
    ) -> StreamProgress:
        """How far the stream has come when its *inputs* have come so far, and opened *windows* (starts)."""
        leading = {name: part for name, part in inputs.items() if name not in self._table_inputs}
        time = combined(leading, previous_ms=was.watermark_ms)
        # A record that comes when its window was passed opens it for nobody.
        opened = {
            start
            for name in leading
            for start in windows[name]
            if not is_window_late(start + self.window_ms, was.watermark_ms)
        } - {start for start, _ in was.stay_closed.get(STREAMING, ())}
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

    def counted(self, now: StreamProgress, tallies: Mapping[str, Tally]) -> tuple[StreamProgress, list[ClosedWindow]]:
        """*now* with what the batch did counted, less the windows that its watermark closes, which come beside it."""
        now, closed = self.windows.counted(now, {name: tally.windows for name, tally in tallies.items()})
        skipped = {
            name: added(now.skipped.get(name, {}), tally.skipped)
            for name, tally in tallies.items()
            if name in self._judging
        }
        lately = self._skipped_lately(now, tallies)
        return replace(now, skipped={**now.skipped, **skipped}, skipped_lately=lately), closed

    def _skipped_lately(self, now: StreamProgress, tallies: Mapping[str, Tally]) -> dict[str, Skips]:
        assert now.decided_at_ms is not None
        return {
            name: skip_rate.lately(now.skipped_lately.get(name, ()), tally.skipped, now_ms=now.decided_at_ms)
            for name, tally in tallies.items()
            if name in self._judging
        }

    def notes(
        self,
        batch: Batch,
        was: StreamProgress,
        now: StreamProgress,
        seen: Mapping[str, Mapping[int, Seen]],
        tallies: Mapping[str, Tally],
        closed: Iterable[ClosedWindow],
        marks: Mapping[str, Marked],
    ) -> dict[str, Any]:
        """What the journal has beside rows; *seen* are the partitions of each source."""
        return {
            "marks": {name: {"watermark_ms": mark.watermark_ms, "idle": mark.idle} for name, mark in marks.items()},
            "batch": asdict(batch),
            "progress": now.to_json(),
            "was": was.without_windows().to_json(),
            "closed": [window.notes for window in closed],
            "sources": [
                {"source": name, "partition": number, **asdict(part)}
                for name, parts in seen.items()
                for number, part in parts.items()
            ],
            "operators": {name: tally.notes for name, tally in tallies.items()},
        }


def _joined(_: str, rows: Rows, more: pa.Table) -> Rows:
    assert isinstance(rows, pa.Table)
    return pa.concat_tables([rows, more])


K = TypeVar("K")


def added(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    """The sums of both, by key."""
    return {key: one.get(key, 0) + other.get(key, 0) for key in {*one, *other}}
