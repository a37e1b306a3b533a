"""Takes in the rows of a batch at each source.

The results are records for the operators behind the source, rows for the tables of rejected records, offsets, and how
far the source has come in record time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import polars as pl

from tidemark.clock import Clock
from tidemark.kernels.columns.values import value_text
from tidemark.kernels.formats.sampled_fields import field_sample
from tidemark.kernels.records.arrivals import (
    HELD_AS,
    Arrivals,
    arrivals,
    disorder,
    hop_arrivals,
    rows_in_order,
    with_future,
)
from tidemark.kernels.records.headers import split_repeated, traces_read, trusted_positions
from tidemark.kernels.records.limits import TopicLimits
from tidemark.kernels.records.loss import with_gaps
from tidemark.kernels.records.marks import with_marks
from tidemark.kernels.records.read_ages import SOURCE_RECORDS
from tidemark.kernels.records.tombstones import with_tombstone_times
from tidemark.kernels.updates.facts import times_of, windows_of
from tidemark.kernels.updates.proofs import late_rows
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.tables.catalog import DEAD_LETTERS, HELD_RECORD, STATE_CHANGES
from tidemark.selection import omit
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.event_time import PartitionReading, advance, follow, processing_time
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress, WriterPosition
from tidemark.semantics.schema_watch import NO_SAMPLE, FieldSample
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.checkpoint import Ends
from tidemark.stream.kafka.broker import Answers, TopicState
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.data_loss import LossCheck, Offsets
from tidemark.stream.read.table_marks import NewestMarks
from tidemark.stream.state.memory import WaitingMoves
from tidemark.stream.updates.step import Run


@dataclass(frozen=True)
class Intake:
    """What a source took in of a batch.

    Attributes:
        run: the records for downstream operators, the rows for tables, counts and clocks.
        progress: the source's progress after the batch.
        seen: by partition, what was read of it.
        windows: the starts of the streaming windows that its records are in, epoch ms.
        waiting: the changes to the records that wait for a later batch. None for a hop, whose records never wait.
        read: the records that were read, in the order of partition and offset, with the columns SOURCE_RECORDS of
            `kernels.records.read_ages` and their `key`. For a hop, partition and offset are those of the source record
            that caused the update, and the columns HOP_RECORDS come in addition.
        order: for a hop, the writer's batch and row of each record, as in `HopArrivals`.
    """

    run: Run
    progress: InputProgress
    seen: Mapping[int, PartitionReading]
    windows: frozenset[int] = frozenset()
    waiting: WaitingMoves | None = None
    read: pl.DataFrame = field(default_factory=SOURCE_RECORDS.to_frame)
    order: pl.DataFrame = field(default_factory=pl.DataFrame)


class Reader:
    """Takes in batches at *sources*.

    Taking in a batch counts as the source's work: the source has finished when the *clock* is read afterwards.

    Args:
        sources: the sources that read from outside of the topology.
        broker: answers questions about topics: partitions, offsets, limits.
        steps: the operators; they have the records that wait.
        intact: checks that no records were lost.
        clock: the driver's clock, epoch ms.
        table_marks: the newest mark of time in the log of a Delta table.
        window_ms: the length of a streaming window.
        processing_time: the decision time of a batch is the record time of all its records.
        max_held: the most records of a source that wait for other partitions; None for any number.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        broker: Answers,
        steps: Steps,
        intact: LossCheck,
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
        # A missing topic is found here, before the first batch; for a source of several topics, in the batch.
        for source in sources:
            if not source.reads_several:
                self.topic(source)

    def limits(self, sinks: Iterable[Sink]) -> dict[str, TopicLimits]:
        """Returns the limits of the topics of *sinks*, by sink."""
        return {sink.name: self._broker.limits(sink) for sink in sinks if sink.topic}

    def take(
        self,
        source: Reading,
        raw: pl.DataFrame,
        was: InputProgress,
        batch: MicroBatch,
        *,
        late_up_to_ms: int | None,
        allowed_ms: int | None,
    ) -> Intake:
        """Takes in the rows of *source* among the rows of a batch.

        Args:
            source: the source.
            raw: all rows that Spark read.
            was: the source's progress before the batch.
            batch: the batch.
            late_up_to_ms: a record at or before this time is late and set aside. If it is None, no record is late.
            allowed_ms: a partition whose watermark is above this time waits for others, with the records that follow.
                If it is None, no record waits.
        """
        match source:
            case HopSource():
                return self._hop(source, raw, was, batch)
            case Source():
                return self._source(source, raw, was, batch, late_up_to_ms=late_up_to_ms, allowed_ms=allowed_ms)
            case _:
                assert_never(source)

    def _source(
        self,
        source: Source,
        raw: pl.DataFrame,
        was: InputProgress,
        batch: MicroBatch,
        *,
        late_up_to_ms: int | None,
        allowed_ms: int | None,
    ) -> Intake:
        """Takes in the rows of *source*, as `take` does: looks for lost records, then sorts the rows by outcome."""
        source = source.with_topic_partitions(was.places)
        fresh = rows_in_order(source, raw, numbered_from=was.positions(()).get(0, 0))
        # The broker is asked after the rows were read, so they are of this topic or an earlier one.
        topic = self.topic(source)
        offsets = self.offsets(source, set(fresh["partition"].unique()), was, topic)
        anew = self._intact.read_anew(source, fresh, was, topic, offsets, batch)
        fresh, read_to = anew.rows, anew.read_to
        # Rows without a gap prove that nothing before them was lost, so the broker's answer counts for the others.
        doubtful = without_records(offsets, set(fresh["partition"].unique()) - {*with_gaps(fresh, read_to)})
        checked = self._intact.check(source, fresh, read_to, doubtful, batch)
        fresh, read_to, losses = checked.rows, checked.read_to, {**anew.losses, **checked.losses}
        gone: Offsets = {}
        if source.reads_several and topic is not None:
            held = self._steps.waiting(source)["_partition"].unique().to_list()
            gone, lost_with_topic = self._intact.deleted(source, fresh, was, topic, batch, held)
            losses |= lost_with_topic
            read_to = {**read_to, **{number: first for number, (first, _) in gone.items()}}
            offsets = {**offsets, **{number: (last, last) for number, (_, last) in gone.items()}}
        if self._processing_time:
            fresh = fresh.with_columns(timestamp_ms=pl.lit(batch.decided_at_ms, pl.Int64))
        waiting = self._steps.waiting(source)
        sorted_rows = source_rows(
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
        ends = {**batch.ends.get(source.topic or "", {}), **{number: last for number, (_, last) in gone.items()}}
        read = with_left(seen_of(sorted_rows.seen, read_to, offsets, ends, losses), source, is_last=batch.is_last)
        readings = self.marked(source, was, self.with_open_transactions(source, read, topic), batch)
        ids = {**ids_of(readings, topic, was), **anew.topic_ids}
        progress = self.progress(source, was, readings, sorted_rows.writers, ids, batch)
        run = self._run(batch, sorted_rows.rows.on_time, sorted_rows.rows.measured, sorted_rows.counts)
        run.rows, run.sample = dict(sorted_rows.tables), sorted_rows.sample
        # In processing time all records of a batch have one time, so there is no disorder to measure.
        if not self._processing_time:
            run.disorder = sorted_rows.disorder
        return Intake(run, progress, readings, sorted_rows.windows, sorted_rows.waiting, sorted_rows.read)

    def with_open_transactions(
        self, source: Source, readings: Mapping[int, PartitionReading], topic: TopicState | None
    ) -> Mapping[int, PartitionReading]:
        """Marks the silent partitions of *readings* that have records of an open transaction, and so are not idle."""
        silent = [n for n, part in readings.items() if part.silent and part.caught_up and topic and topic.has(n)]
        silent = silent if source.may_be_idle else []
        waiting = self._broker.open_transactions(source, silent) if silent else {}
        return {**readings, **{number: replace(readings[number], has_open_transaction=True) for number in waiting}}

    def marked(
        self, source: Source, was: InputProgress, readings: Mapping[int, PartitionReading], batch: MicroBatch
    ) -> Mapping[int, PartitionReading]:
        """Returns *readings* with the mark of time from the newest commit of *source*'s table, if there is one.

        A mark advances time like a record: up to the decision time of *batch* at most, and not at all if it is beyond
        `max_ahead`. *was* is the progress before the batch.
        """
        mark = None if self._processing_time else self._table_marks.newest(source, batch.versions)
        if mark is None:
            return readings
        # A record of this time has the mark's watermark: a record moves the watermark to its time - bound - 1 ms.
        newest_ms = None if mark.watermark_ms is None else mark.watermark_ms + source.bound_ms + 1
        if newest_ms is not None and source.max_ahead_ms is not None:
            # A mark advances time no further than the clock, as a record does.
            is_believed = newest_ms <= batch.decided_at_ms + source.max_ahead_ms
            newest_ms = min(newest_ms, batch.decided_at_ms) if is_believed else None
        before = was.partitions.get(0, PartitionProgress())
        return {number: part.marked(before, newest_ms=newest_ms, idle=mark.idle) for number, part in readings.items()}

    def progress(
        self,
        source: Source,
        was: InputProgress,
        readings: Mapping[int, PartitionReading],
        writers: Mapping[int, Mapping[str, WriterPosition]],
        topic_ids: Mapping[int, str | None],
        batch: MicroBatch,
    ) -> InputProgress:
        """Returns the progress of *source* after a batch.

        Args:
            source: the source.
            was: its progress before the batch.
            readings: by partition, what was read of it.
            writers: per partition, its writers that number their records, by name.
            topic_ids: per partition, the id of the topic that was read.
            batch: the batch.
        """
        if self._processing_time:
            progress = processing_time(was, readings, now_ms=batch.decided_at_ms)
        else:
            progress = advance(
                was,
                readings,
                bound_ms=source.bound_ms,
                idle_after_ms=source.idle_after_ms,
                idle_advances=source.idle_advances,
                now_ms=batch.decided_at_ms,
            )
        if source.reads_several:
            # If a topic is deleted later, this is all that is known about its end.
            progress = progress.with_latest_offsets({number: part.latest_offset for number, part in readings.items()})
        progress = progress.with_files(batch.files[source.name]) if source.name in batch.files else progress
        progress = progress.with_left({n: part.left_offset for n, part in readings.items()}, batch.batch_id)
        return progress.with_writers(trusted_positions(writers, source.written_by)).with_topic_ids(topic_ids)

    def topic(self, source: Source) -> TopicState | None:
        """Returns the topic of *source* as it is now, or None for a table or a folder.

        The topic may have got partitions since the last batch, or may have been recreated.
        """
        return self._broker.topic(source) if source.topic else None

    def offsets(
        self, source: Source, read: Collection[int], was: InputProgress, topic: TopicState | None
    ) -> Mapping[int, tuple[int, int]]:
        """Returns the earliest and latest offset of each partition of *source*.

        *was* is the progress of the source. Without a *topic* only partitions that are not in *read* have an entry.
        """
        if topic is None:
            # Tables and files have one partition. If a batch read nothing of it, it had been read to its end before.
            ends = {0: 0, **{number: part.until_offset for number, part in was.partitions.items()}}
            return {number: (0, end) for number, end in sorted(ends.items()) if number not in read}
        return self._broker.offsets(source, topic.numbers(was.topic_ids))

    def from_accepted(self, sources: Iterable[Source], was: StreamProgress, ends: Ends) -> StreamProgress:
        """Returns the progress *was*, in which each topic that was recreated has the accepted offset.

        The planned batch is cut into parts from there on. *ends* are the offsets up to which it was planned.
        """
        # At most starts no loss was accepted, so that no topic has to be looked at.
        if not self._intact.has_accepted:
            return was
        inputs = dict(was.inputs)
        for source in sources:
            before = inputs.get(source.name, InputProgress())
            source = source.with_topic_partitions(before.places)
            topic = self.topic(source)
            if not (starts := self._intact.accepted_starts(source, before, topic)):
                continue
            planned = ends.get(source.topic or "", {})
            offsets = self._broker.offsets(source, [*starts])
            # A batch that was planned on the earlier topic ends behind the new one, and reads nothing of it.
            if all(planned.get(number, 0) <= latest for number, (_, latest) in offsets.items()):
                inputs[source.name] = before.read_until(starts)
        return replace(was, inputs=inputs)

    def earliest(self, source: Source, partitions: Sequence[int]) -> dict[int, int]:
        """Returns the earliest offset of each of *partitions* of *source*; 0 if the topic was deleted."""
        existing = list(partitions)
        if source.reads_several and (topic := self.topic(source)):
            existing = [number for number in partitions if topic.has(number)]
        earliest = {number: first for number, (first, _) in self._broker.offsets(source, existing).items()}
        return {**dict.fromkeys(partitions, 0), **earliest}

    def absent(self, sources: Iterable[Source], was: StreamProgress, ends: Ends) -> dict[str, list[int]]:
        """Returns, by topics, the unread partitions that were deleted after the batch was planned.

        Args:
            sources: the sources that read several topics.
            was: the progress before the batch.
            ends: the offsets up to which the batch was planned.
        """
        absent: dict[str, list[int]] = {}
        for source in sources:
            before = was.inputs.get(source.name, InputProgress())
            planned = ends.get(source.topic or "", {})
            read_to = before.offsets_read
            unread = [number for number, end in planned.items() if end > read_to.get(number, 0)]
            topic = self.topic(source.with_topic_partitions(before.places)) if unread else None
            if topic and (gone := [number for number in unread if not topic.has(number)]):
                absent[source.topic or ""] = gone
        return absent

    def lost_of_hop(self, source: HopSource, was: InputProgress | None) -> tuple[int, int] | None:
        """Returns the range of batches after *was* that the hop of *source* lost, if that was accepted, or None.

        Raises:
            DataLost: the loss was not accepted.
        """
        partitions = was.partitions if was else {}
        return self._intact.lost_of_hop(source, partitions.get(0, PartitionProgress()).until_offset)

    def _hop(self, source: HopSource, raw: pl.DataFrame, was: InputProgress, batch: MicroBatch) -> Intake:
        # The upstream has judged these records: none is late, held or unreadable here.
        rows = hop_arrivals(source, raw)
        records = self._steps.hop_records(source, rows.rows)
        reading = seen_of_hop(records, rows.last_batch, was, lost=self.lost_of_hop(source, was))
        progress = follow(
            was,
            reading,
            watermark_ms=rows.watermark_ms,
            idle=rows.idle,
            idle_watermark_ms=rows.idle_watermark_ms,
            now_ms=batch.decided_at_ms,
        )
        counts = Counter(records_in=records.height, passed=records.height)
        run = self._run(batch, records, records, counts)
        read = records_of_hop(rows.rows, rows.order)
        return Intake(run, progress, {0: reading}, frozenset(rows.windows), read=read, order=rows.order)

    def _run(self, batch: MicroBatch, records: pl.DataFrame, measured: pl.DataFrame, counts: Counter[str]) -> Run:
        times, started_at_ms = times_of(measured), batch.started_at_ms
        return Run(records, times, counts, started_at_ms=started_at_ms, finished_at_ms=self._clock())


@dataclass(frozen=True)
class SourceRows:
    """The rows of a source by outcome: of all its partitions, or in a task of one.

    Attributes:
        rows: the rows by outcome.
        waiting: the changes to the records that wait.
        counts: numbers of rows by outcome.
        writers: per partition, its writers that number their records, as in the source's progress.
        tables: rows for tables, by table.
        disorder: how far the rows are behind the watermark.
        windows: the starts of the streaming windows that rows on time are in, epoch ms.
        seen: by partition, what was read of it; partitions without rows are left out.
        sample: the fields of the sampled rows.
        read: the usable rows, as `Intake.read`.
    """

    rows: Arrivals
    waiting: WaitingMoves
    counts: Counter[str]
    writers: dict[int, dict[str, WriterPosition]]
    tables: dict[str, pl.DataFrame]
    disorder: pl.DataFrame
    windows: frozenset[int]
    seen: Mapping[int, PartitionReading]
    sample: FieldSample
    read: pl.DataFrame


def source_rows(
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
) -> SourceRows:
    """Sorts the rows of *source* by outcome: on time, late, waiting, quarantined, repeated.

    Args:
        source: the source.
        fresh: the rows that the batch read, in offset order.
        waiting: rows of earlier batches that waited, with their keys.
        was: the source's progress before the batch.
        read_to: per partition, the offset from which the batch read.
        late_up_to_ms: a record at or before this time is late and set aside. If it is None, no record is late.
        allowed_ms: a partition whose watermark is above this time waits for others. If it is None, no record waits.
        window_ms: length of a streaming window.
        decided_at_ms: decision time of the batch, epoch ms.
        max_held: the most records that wait; None for any number.
    """
    newest_event_ms = {n: part.newest_ms for n, part in was.partitions.items() if part.newest_ms is not None}
    fresh, event_ms = with_tombstone_times(with_future(source, fresh, decided_at_ms), newest_event_ms)
    fresh, marks = with_marks(source, fresh, was)
    # Rows were checked for times in the future above, because the times of tombstones need that. Marks got their times
    # only after that, so they are checked here.
    fresh = with_future(source, fresh, decided_at_ms)
    counts_up_to_ms = None if source.max_ahead_ms is None else decided_at_ms
    sent = {number: part.writers for number, part in was.partitions.items()}
    new, repeated, writers = split_repeated(fresh, sent, source.written_by)
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
    late = late_rows(source.name, rows.late, was.watermark_ms, was.held_by)
    waiting_moves = WaitingMoves(
        held=rows.held.filter(pl.col(HELD_AS).is_null()),
        released=waiting[HELD_AS].filter(~waiting[HELD_AS].is_in(rows.held[HELD_AS].implode())),
        n=rows.held.height,
    )
    tables = {
        DEAD_LETTERS.name: pl.concat([late, _bad_rows(source, rows.bad)], how="diagonal"),
        STATE_CHANGES.name: _held_rows(source, waiting_moves.held),
    }
    usable = new.select(pl.col("timestamp_ms").filter(pl.col("reason").is_null()).drop_nulls()).to_series()
    # The watermark is 1 ms and the bound behind the newest time.
    reached_ms = None if was.watermark_ms is None else was.watermark_ms + source.bound_ms + 1
    disorder_rows = disorder(usable, reached_ms)
    windows = windows_of(rows.on_time, window_ms=window_ms)
    traces = traces_read(new) if source.traces else {}
    readings: dict[int, PartitionReading] = {}
    for n, part in rows.seen(read_to, counts_up_to_ms).items():
        went_back = n in marks.went_back
        readings[n] = replace(part, newest_ms=event_ms.get(n), went_back=went_back, traces=traces.get(n, ()))
    return SourceRows(
        rows,
        waiting_moves,
        counts,
        writers,
        tables,
        disorder_rows,
        windows,
        readings,
        field_sample(fresh["sampled"]) if "sampled" in fresh.columns else NO_SAMPLE,
        records_read(new),
    )


def records_read(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the usable ones of *rows* with their key, and with the time of their arrival where that is stamped."""
    stamps = [pl.lit(None, pl.Int64)]
    if "stamped_ms" in rows.columns:
        stamps.append(pl.col("stamped_ms"))
    if "written" in rows.columns:
        stamps.append(pl.col("written").struct.field("at_ms"))
    usable = rows.filter(pl.col("reason").is_null() & pl.col("timestamp_ms").is_not_null())
    return usable.select(
        pl.col("partition").cast(pl.Int32), "offset", "key", event_ms="timestamp_ms", arrived_ms=pl.coalesce(stamps)
    )


def records_of_hop(rows: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    """Returns the *rows* read from a hop with the columns of `Intake.read`; *order* is as in `HopArrivals`."""
    records = rows.select(
        partition=pl.col("_partition").fill_null(-1).cast(pl.Int32),
        offset=pl.col("_offset").fill_null(-1),
        event_ms="_newest_ms",
    )
    written = order.select(writer_batch="_batch", writer_row="_result")
    # Several updates of a hop may have the same cause.
    return records.hstack(written).sort("partition", "offset", "writer_batch", "writer_row")


def with_left(
    readings: Mapping[int, PartitionReading], source: Source, *, is_last: bool
) -> dict[int, PartitionReading]:
    """Returns *readings*, with the end of the unread records for each partition of which the plan left some behind.

    The broker was asked after the plan was made, so that there are newer records proves nothing. A plan counts as one
    that left records behind only if it was cut: by `max_records`, or into parts of which this one is not the last
    (*is_last*).
    """
    read = sum(part.until_offset - part.from_offset for part in readings.values())
    # Spark shares the limit out among partitions, and rounds.
    is_full = source.max_records is not None and read >= source.max_records - len(readings)
    if is_last and not is_full:
        return dict(readings)
    return {
        number: replace(part, left_offset=part.latest_offset)
        if part.latest_offset is not None and part.latest_offset > part.until_offset
        else part
        for number, part in readings.items()
    }


def without_records(offsets: Mapping[int, tuple[int, int]], read: Collection[int]) -> dict[int, tuple[int, int]]:
    """Returns the *offsets* of partitions that may have lost records: all but those *read* without a gap."""
    return omit(offsets, read)


def ids_of(numbers: Iterable[int], topic: TopicState | None, was: InputProgress) -> dict[int, str | None]:
    """Returns the topic id of each of the partitions *numbers*; if the topic was deleted, the id that *was* has."""
    ids: dict[int, str | None] = {}
    for number in numbers:
        exists = topic is not None and topic.has(number)
        ids[number] = topic.id_of(number) if topic and exists else was.topic_ids.get(number)
    return ids


def seen_of(
    readings: Mapping[int, PartitionReading],
    read_to: Mapping[int, int],
    offsets: Mapping[int, tuple[int, int]],
    ends: Mapping[int, int],
    losses: Mapping[int, tuple[int, int]],
) -> dict[int, PartitionReading]:
    """Completes *readings* with offsets, and with partitions without rows.

    Args:
        readings: what was read, by partition, for those with rows.
        read_to: per partition, the offset from which the batch read.
        offsets: per partition, the earliest and latest offset.
        ends: per partition, the offset up to which Spark reads.
        losses: per partition, the offsets that were lost and are skipped.
    """
    partitions = dict(readings)
    for number, (earliest, latest) in offsets.items():
        next_offset = read_to.get(number, earliest)
        silent = PartitionReading(from_offset=next_offset, until_offset=next_offset)
        partitions[number] = replace(partitions.get(number, silent), latest_offset=latest)
    whole: dict[int, PartitionReading] = {}
    for number, part in sorted(partitions.items()):
        # The last offsets of a topic may be markers of transactions, which are no rows: the plan's end is past them.
        until_offset = max(part.until_offset, ends.get(number, 0))
        whole[number] = replace(part, until_offset=until_offset, lost=losses.get(number))
    return whole


def seen_of_hop(
    records: pl.DataFrame, last_batch: int | None, was: InputProgress, *, lost: tuple[int, int] | None = None
) -> PartitionReading:
    """Returns what was read of a hop, whose offsets are batches.

    Args:
        records: the records that were read.
        last_batch: the last batch that was read, or None if no row was read.
        was: the source's progress before the batch.
        lost: batches that the hop lost and that are skipped.
    """
    read_to = lost[1] if lost else was.partitions.get(0, PartitionProgress()).until_offset
    newest = records["_timestamp_ms"].max()
    return PartitionReading(
        from_offset=read_to,
        until_offset=read_to if last_batch is None else last_batch + 1,
        lost=lost,
        max_timestamp_ms=newest if isinstance(newest, int) else None,
    )


def _bad_rows(source: Source, bad: pl.DataFrame) -> pl.DataFrame:
    detail = pl.col("detail") if "detail" in bad.columns else pl.lit(None, pl.String)
    return bad.select(
        "partition",
        "offset",
        "reason",
        _with_file_row(detail) if source.files else detail.alias("detail"),
        "key",
        "value",
        kind=pl.lit(DeadLetterKind.QUARANTINED.value),
        operator=pl.lit(source.name),
        topic=_topic_of(source),
    )


def _with_file_row(detail: pl.Expr) -> pl.Expr:
    """Returns *detail* with the file of the record and the row in it before it: "orders.csv, row 7: …"."""
    written = pl.col("written").struct
    name, row = written.field("file").str.split("/").list.last(), written.field("start")
    file_row = pl.when(row.is_null()).then(name).otherwise(pl.format("{}, row {}", name, row))
    return pl.concat_str(file_row, detail, separator=": ", ignore_nulls=True).alias("detail")


def _topic_of(source: Source) -> pl.Expr:
    """Returns the topic of each record of *source*, null for a table or a folder."""
    if not source.reads_several:
        return pl.lit(source.topic, pl.String)
    topics = {number: topic_partition.topic for number, topic_partition in enumerate(source.topic_partitions)}
    return pl.col("partition").replace_strict(topics, return_dtype=pl.String)


def _held_rows(source: Source, held: pl.DataFrame) -> pl.DataFrame:
    """Returns rows of `state_changes` for records that this batch has read and *held*."""
    return held.select(
        operator=pl.lit(source.name),
        kind=pl.lit(HELD_RECORD),
        key="_key",
        state=pl.when(~pl.col("_deleted")).then(value_text(list(source.columns), held.schema)),
        held=pl.lit(value=True),
        deleted="_deleted",
        headers="_headers",
        timestamp="_timestamp_ms",
        newest_timestamp="_newest_ms",
        repeated="_repeated",
        partition="_task",
        source_partition="_partition",
        source_offset="_offset",
    )
