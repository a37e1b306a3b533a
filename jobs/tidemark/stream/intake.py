"""What a batch takes in at each source: records for the readers, rows set aside, offsets, and how far time has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from tidemark.clock import Clock
from tidemark.kernels.arrivals import Arrivals, arrivals, disorder, hop_arrivals, rows_in_order, with_future
from tidemark.kernels.facts import times_of, windows_of
from tidemark.kernels.headers import believed, told_apart
from tidemark.kernels.limits import Limits
from tidemark.kernels.loss import with_gaps
from tidemark.kernels.marks import with_marks
from tidemark.kernels.proofs import late_rows
from tidemark.kernels.tombstones import with_tombstone_times
from tidemark.kernels.values import value_text
from tidemark.semantics.event_time import Seen, advance, follow, processing_time
from tidemark.semantics.progress import InputProgress, PartitionProgress, Sent
from tidemark.spec.operators import HopSource, Sink, Source
from tidemark.spec.tables import DISORDER_BUCKETS, HELD_RECORDS, LATE_RECORDS, QUARANTINE
from tidemark.stream.batch import Batch
from tidemark.stream.broker import Answers
from tidemark.stream.intact import Intact
from tidemark.stream.operate.step import Run
from tidemark.stream.steps import Steps
from tidemark.stream.table_marks import NewestMarks


@dataclass(frozen=True)
class Intake:
    """One source in one batch; `windows` are the starts of the streaming windows that it opened.

    `waiting` are the records that a later batch will take.
    """

    run: Run
    progress: InputProgress
    seen: Mapping[int, Seen]
    windows: frozenset[int] = frozenset()
    waiting: pl.DataFrame = field(default_factory=pl.DataFrame)


class Reader:
    """Takes in a batch at *sources*; asks the *broker* for the offsets of every partition of a topic.

    Taking in is a source's work: it has finished when the *clock* is read after that.
    With *processing_time* the instant of a batch is the record time of all that it reads. Of each source at most
    *max_held* records wait for others (None: any number).
    """

    def __init__(
        self,
        sources: Iterable[Source],
        broker: Answers,
        steps: Steps,
        intact: Intact,
        clock: Clock,
        table_marks: NewestMarks,
        *,
        window_ms: int,
        processing_time: bool = False,
        max_held: int | None = None,
    ) -> None:
        self._clock, self._table_marks = clock, table_marks
        self._max_held = max_held
        self._broker, self._steps, self._intact, self._window_ms = broker, steps, intact, window_ms
        self._processing_time = processing_time
        self._partitions = {s.name: broker.partitions(s) if s.topic else 1 for s in sources}

    def limits(self, sinks: Iterable[Sink]) -> dict[str, Limits]:
        """What the topic of each of *sinks* takes now, by the sink's name."""
        return {sink.name: self._broker.limits(sink) for sink in sinks if sink.topic}

    def take(
        self,
        source: Source | HopSource,
        raw: pl.DataFrame,
        was: InputProgress,
        batch: Batch,
        *,
        late_up_to_ms: int | None,
        allowed_ms: int | None,
    ) -> Intake:
        """What *source* has among the rows *raw* that Spark read, after it had come as far as *was*.

        A record at or before *late_up_to_ms* is late and set aside (None: none is); what comes in a partition after a
        watermark above *allowed_ms* waits (None: nothing does).
        """
        if isinstance(source, HopSource):
            return self._hop(source, raw, was, batch)
        return self._source(source, raw, was, batch, late_up_to_ms=late_up_to_ms, allowed_ms=allowed_ms)

    def _source(
        self,
        source: Source,
        raw: pl.DataFrame,
        was: InputProgress,
        batch: Batch,
        *,
        late_up_to_ms: int | None,
        allowed_ms: int | None,
    ) -> Intake:
        read_to: Mapping[int, int] = {number: part.until_offset for number, part in was.partitions.items()}
        fresh = rows_in_order(source, raw, numbered_from=read_to.get(0, 0))
        offsets = self.offsets(source, set(fresh["partition"]), read_to)
        doubtful = without_records(offsets, set(fresh["partition"]) - {*with_gaps(fresh, read_to)})
        checked = self._intact.check(source, fresh, read_to, doubtful, batch)
        fresh, read_to = checked.rows, checked.read_to
        if self._processing_time:
            fresh = fresh.with_columns(timestamp_ms=pl.lit(batch.decided_at_ms, pl.Int64))
        waiting = self._steps.waiting(source)
        told = taken(
            source,
            fresh,
            waiting,
            was,
            read_to=read_to,
            late_up_to_ms=late_up_to_ms,
            allowed_ms=allowed_ms,
            window_ms=self._window_ms,
            decided_at_ms=batch.decided_at_ms,
            max_held=self._max_held,
        )
        read = seen_of(told.seen, read_to, offsets, batch.ends.get(source.topic or "", {}), checked.losses)
        seen = self.marked(source, was, read, batch)
        progress = self.progress(source, was, seen, told.writers, batch)
        run = self._run(batch, told.rows.on_time, told.rows.measured, told.counts)
        run.rows = dict(told.tables)
        if not self._processing_time:
            run.rows[DISORDER_BUCKETS.name] = told.disorder.with_columns(
                source=pl.lit(source.name), decided_at=batch.decided_at_ms
            )
        return Intake(run, progress, seen, told.windows, told.rows.held)

    def marked(self, source: Source, was: InputProgress, seen: Mapping[int, Seen], batch: Batch) -> Mapping[int, Seen]:
        """What was *seen* in *batch*, and what the commits of the table of *source* say of time.

        As of a record, time goes by them up to the decision time at most, and not at all beyond `max_ahead`.
        """
        told = None if self._processing_time else self._table_marks.newest(source, batch.versions)
        if told is None:
            return seen
        newest_ms = None if told.watermark_ms is None else told.watermark_ms + source.bound_ms + 1
        if newest_ms is not None and source.max_ahead_ms is not None:
            is_taken = newest_ms <= batch.decided_at_ms + source.max_ahead_ms
            newest_ms = min(newest_ms, batch.decided_at_ms) if is_taken else None
        before = was.partitions.get(0, PartitionProgress())
        return {number: part.marked(before, newest_ms=newest_ms, idle=told.idle) for number, part in seen.items()}

    def progress(
        self,
        source: Source,
        was: InputProgress,
        seen: Mapping[int, Seen],
        writers: Mapping[int, Mapping[str, Sent]],
        batch: Batch,
    ) -> InputProgress:
        """How far *source* has come after a *batch* that read what *seen* says of every partition."""
        if self._processing_time:
            progress = processing_time(was, seen, now_ms=batch.decided_at_ms)
        else:
            progress = advance(
                was,
                seen,
                bound_ms=source.bound_ms,
                idle_after_ms=source.idle_after_ms,
                idle_advances=source.idle_advances,
                now_ms=batch.decided_at_ms,
            )
        return progress.with_writers(believed(writers, source.written_by))

    def offsets(
        self, source: Source, read: Collection[int], read_to: Mapping[int, int]
    ) -> Mapping[int, tuple[int, int]]:
        """The earliest and latest offset of every partition of a topic; of other sources, of those not *read*."""
        known = sorted({*range(self._partitions[source.name]), *read_to})
        if source.topic is None:
            # What is no topic was read to its end where a batch found nothing more.
            return {number: (0, read_to.get(number, 0)) for number in known if number not in read}
        return self._broker.offsets(source, known)

    def earliest(self, source: Source, partitions: Sequence[int]) -> dict[int, int]:
        """The earliest offset of each of *partitions* of the topic of *source*."""
        return {number: first for number, (first, _) in self._broker.offsets(source, partitions).items()}

    def _hop(self, source: HopSource, raw: pl.DataFrame, was: InputProgress, batch: Batch) -> Intake:
        rows = hop_arrivals(source, raw)
        records = self._steps.hop_records(source, rows.rows)
        seen = seen_of_hop(records, rows.last_batch, was)
        progress = follow(was, seen, watermark_ms=rows.watermark_ms, idle=rows.idle, now_ms=batch.decided_at_ms)
        counts = Counter(records_in=records.height, passed=records.height)
        return Intake(self._run(batch, records, records, counts), progress, {0: seen}, frozenset(rows.windows))

    def _run(self, batch: Batch, records: pl.DataFrame, measured: pl.DataFrame, counts: Counter[str]) -> Run:
        times, started_at_ms = times_of(measured), batch.started_at_ms
        return Run(records, times, counts, started_at_ms=started_at_ms, finished_at_ms=self._clock())


@dataclass(frozen=True)
class Taken:
    """The rows of a source, or of some of its partitions, told apart.

    `counts` are those of the source, by outcome; `writers` as in its progress; `tables` get these rows; `disorder` is
    how far behind the watermark they are; `windows` are the starts of those that they open. `seen` is
    what was read of each partition that has rows.
    """

    rows: Arrivals
    counts: Counter[str]
    writers: dict[int, dict[str, Sent]]
    tables: dict[str, pl.DataFrame]
    disorder: pl.DataFrame
    windows: frozenset[int]
    seen: Mapping[int, Seen]


def taken(
    source: Source,
    fresh: pl.DataFrame,
    waiting: pl.DataFrame,
    was: InputProgress,
    *,
    read_to: Mapping[int, int],
    late_up_to_ms: int | None,
    allowed_ms: int | None,
    window_ms: int,
    decided_at_ms: int,
    max_held: int | None = None,
) -> Taken:
    """What the *fresh* rows of *source*, in offset order from *read_to*, are, after those *waiting*."""
    fresh, event_ms = with_tombstone_times(
        with_future(source, fresh, decided_at_ms),
        {n: part.newest_ms for n, part in was.partitions.items() if part.newest_ms is not None},
    )
    fresh, marks = with_marks(source, fresh, was)
    fresh = with_future(source, fresh, decided_at_ms)  # marks have their times now
    counts_up_to_ms = None if source.max_ahead_ms is None else decided_at_ms
    sent = {number: part.writers for number, part in was.partitions.items()}
    new, repeated, writers = told_apart(fresh, sent, source.written_by)
    newest_ms = {n: part.max_timestamp_ms for n, part in was.partitions.items() if part.max_timestamp_ms is not None}
    rows = arrivals(
        source,
        new,
        waiting,
        newest_ms,
        repeated=repeated,
        late_up_to_ms=late_up_to_ms,
        allowed_ms=allowed_ms,
        counts_up_to_ms=counts_up_to_ms,
        max_held=max_held,
    )
    rows = replace(rows, told_idle=marks.idle)
    counts = Counter(
        records_in=fresh.height,
        duplicate=repeated.height,
        held_before=waiting.height,
        passed=rows.on_time.height,
        held_after=rows.held.height,
        filtered=rows.alive.height,
        late=rows.late.height,
        quarantined=rows.bad.height,
        released_early=rows.released_early,
    )
    tables = {
        LATE_RECORDS.name: late_rows(source.name, rows.late, was.watermark_ms, was.held_by),
        QUARANTINE.name: _bad_rows(source, rows.bad),
        HELD_RECORDS.name: _held_rows(source, rows.held, read_to),
    }
    usable = new.filter(pl.col("reason").is_null(), pl.col("timestamp_ms").is_not_null())["timestamp_ms"]
    reached_ms = None if was.watermark_ms is None else was.watermark_ms + source.bound_ms + 1
    return Taken(
        rows,
        counts,
        writers,
        tables,
        disorder(usable, reached_ms),
        windows_of(rows.on_time, window_ms=window_ms),
        {
            n: replace(part, newest_ms=event_ms.get(n), went_back=n in marks.went_back)
            for n, part in rows.seen(read_to, counts_up_to_ms).items()
        },
    )


def without_records(offsets: Mapping[int, tuple[int, int]], read: Collection[int]) -> dict[int, tuple[int, int]]:
    """The *offsets* of partitions other than those *read* without a gap: only there records may have been lost."""
    return {number: ends for number, ends in offsets.items() if number not in read}


def seen_of(
    seen: Mapping[int, Seen],
    read_to: Mapping[int, int],
    offsets: Mapping[int, tuple[int, int]],
    ends: Mapping[int, int],
    losses: Mapping[int, tuple[int, int]],
) -> dict[int, Seen]:
    """What was *seen*, with the broker's latest *offsets* of every partition, also of those without rows."""
    found = dict(seen)
    for number, (earliest, latest) in offsets.items():
        at = read_to.get(number, earliest)
        silent = Seen(from_offset=at, until_offset=at)
        found[number] = replace(found.get(number, silent), latest_offset=latest)
    return {
        number: replace(part, until_offset=max(part.until_offset, ends.get(number, 0)), lost=losses.get(number))
        for number, part in sorted(found.items())
    }


def seen_of_hop(records: pl.DataFrame, last_batch: int | None, was: InputProgress) -> Seen:
    """What was seen of a hop, whose offsets are batches: its *records* up to *last_batch* (None: no row was read)."""
    read_to = was.partitions.get(0, PartitionProgress()).until_offset
    newest = records["_timestamp_ms"].max()
    return Seen(
        from_offset=read_to,
        until_offset=read_to if last_batch is None else last_batch + 1,
        max_timestamp_ms=newest if isinstance(newest, int) else None,
    )


def _bad_rows(source: Source, bad: pl.DataFrame) -> pl.DataFrame:
    return bad.select(
        "partition",
        "offset",
        "reason",
        "key",
        "value",
        source=pl.lit(source.name),
        topic=pl.lit(source.topic, pl.String),
    )


def _held_rows(source: Source, held: pl.DataFrame, read_to: Mapping[int, int]) -> pl.DataFrame:
    """The records that this batch read and does not send on; those that waited before have rows already."""
    read = pl.col("_partition").replace_strict(dict(read_to), default=0, return_dtype=pl.Int64)
    fresh = held.filter(pl.col("_offset") >= read)
    return fresh.select(
        source=pl.lit(source.name),
        partition="_partition",
        offset="_offset",
        key="_key",
        timestamp="_timestamp_ms",
        value=pl.when(~pl.col("_deleted")).then(value_text(list(source.columns), held.schema)),
        headers="_headers",
    )
