"""Looks up facts about batches, for many windows at once.

They have the time of a batch, the records that it left unread, and the input that held the watermark back.

Instants are epoch ms, lengths ms; NaN: no value. Arrays have a value per window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs

from tidemark.facts.topology_tables import BatchRows
from tidemark.kernels.reports.ages import PLACE, ClosingBatches
from tidemark.kernels.reports.arrays import NONE, Floats, Mask, Places
from tidemark.kernels.reports.reads import partition_reads
from tidemark.kernels.reports.record_times import first_records, record_times
from tidemark.kernels.reports.restarts import Restart, restarts
from tidemark.model.kinds.source import Source
from tidemark.model.settings.toml_keys import length_in_toml
from tidemark.model.topology import SubTopology
from tidemark.semantics.blame import AgeCause
from tidemark.semantics.idleness import Activity

InputPartition = tuple[str, int]
"""A source and the number of its partition."""


@dataclass(frozen=True)
class BatchRuns:
    """The batches of one sub-topology that ran, in order.

    Attributes:
        batch_id: their numbers.
        started_ms: when they started.
        finished_ms: when they finished.
        queued_ms: how long they waited for other streams of their process.
        queued_behind: the names of these streams, null: none.
        restart: number of the restart or standstill before them; NONE: none.
        decided_ms: when they were decided.
        unread: by input partition, if they left records of it unread.
        read: by input partition, if they read records of it; without a value they did not look at the partition.
        is_unknown: it is not known if they left records unread.
        of_query: they are of a query of a job, without watermarks of partitions.
    """

    batch_id: Places
    started_ms: Floats
    finished_ms: Floats
    queued_ms: Floats
    queued_behind: pl.Series
    restart: Places
    decided_ms: Floats
    unread: dict[InputPartition, Mask]
    read: dict[InputPartition, Places]
    is_unknown: Mask
    of_query: bool = False

    def place(self, batch_id: Places) -> Places:
        """Returns the places of batches, or where they would be."""
        return np.searchsorted(self.batch_id, batch_id)

    def has(self, batch_id: Places) -> Mask:
        """Returns True for batches that ran."""
        place = self.place(batch_id)
        is_before_end = place < self.batch_id.size
        is_there: Mask = np.append(self.batch_id, NONE)[place] == batch_id
        return is_before_end & is_there

    def silent_since(self, partition: InputPartition, batch_id: Places) -> Floats:
        """Returns when records of *partition* were last read, by batch up to which it is asked.

        It is the decision time of that batch, or of the first one known that looked at the partition and found none.
        NaN: no batch did.
        """
        read = self.read.get(partition)
        if read is None:
            return np.full(batch_id.size, np.nan)
        places = np.arange(self.batch_id.size)
        last = np.maximum.accumulate(np.where(read == _RECORDS_READ, places, NONE))
        looks = np.flatnonzero(read != _NOT_LOOKED)
        first = np.where(places >= looks[0], looks[0], NONE)
        since = np.where(last == NONE, first, last)
        newest = np.searchsorted(self.batch_id, batch_id, side="right")
        since_ms: Floats = np.append(self.decided_ms, np.nan)[np.insert(since, 0, NONE)[newest]]
        return since_ms

    def restart_before(self, partition: InputPartition) -> Places:
        """Returns the restart for which unread records of *partition* waited, by batch.

        A new driver may take several batches to read what came before its first one to the partition.
        """
        places = np.arange(self.batch_id.size)
        last = np.maximum.accumulate(np.where(self.restart != NONE, places, NONE))
        # The newest batch before each one that left no record of the partition unread.
        read = np.maximum.accumulate(np.where(self.unread[partition], NONE, places))
        read = np.concatenate([[NONE], read[:-1]])
        return np.where((last != NONE) & (last > read), self.restart[last], NONE)


_NOT_LOOKED, _LOOKED, _RECORDS_READ = range(3)
_NO_VALUES, _NO_PLACES = np.empty(0), np.empty(0, np.int64)
NO_RUNS = BatchRuns(
    _NO_PLACES, _NO_VALUES, _NO_VALUES, _NO_VALUES, pl.Series(dtype=pl.String()), _NO_PLACES, _NO_VALUES, {}, {},
    _NO_PLACES > 0,
)  # fmt: skip


class Marks(NamedTuple):
    """The decisions of batches about the time of a partition, or of a whole source, in order.

    `newest_ms` is the timestamp of the newest record; NaN: none yet, or of a source.
    """

    batch_id: Places
    watermark_ms: Floats
    newest_ms: Floats
    is_idle: Mask
    decided_ms: Floats

    @classmethod
    def of(cls, decisions: pl.DataFrame) -> Marks:
        """Returns the marks in rows of `partition_batches`, which are in order."""
        return cls(
            decisions["batch_id"].to_numpy(),
            _floats(decisions["watermark"]),
            _floats(decisions["newest_timestamp"]),
            decisions["activity"].eq_missing(Activity.IDLE).to_numpy(),
            _floats(decisions["decided_at"]),
        )

    def place(self, batch_id: Places) -> tuple[Places, Mask]:
        """Returns the places of decisions in batches, and if these decided anything."""
        place = np.searchsorted(self.batch_id, batch_id)
        return place, np.append(self.batch_id, NONE)[place] == batch_id

    def has_passed(self, place: Places, end_ms: Floats) -> Mask:
        """Returns True where the watermark has passed the end of a window."""
        # A window is late when the watermark has reached its last millisecond.
        passed: Mask = end_ms - 1 <= np.append(self.watermark_ms, np.nan)[place]
        return passed

    def newest_until(self, batch_id: Places) -> Floats:
        """Returns the timestamp of the newest record after batches; -inf: none is known."""
        place = np.searchsorted(self.batch_id, batch_id, side="right")
        return np.nan_to_num(np.insert(self.newest_ms, 0, np.nan)[place], nan=-np.inf)


class Silence(IntEnum):
    """Why silence of a partition let the watermark advance."""

    NONE = 0
    """It did not: a record came."""
    ENDED = 1
    """It counted as idle before `idle_after` had passed, as its writer said, or its topic was deleted."""
    IDLE_AFTER = 2
    """It was silent for longer than `idle_after`."""
    IDLE_ADVANCES = 3
    """While every partition is idle, the watermark advances with the clock."""


class Passing(NamedTuple):
    """How partitions let windows close.

    Attributes:
        number: the number of the partition in `Blockers`.
        ready_ms: the instant from which on it could let the window close; NaN: it did not in this batch.
        silence: the Silence that let it.
        is_known: the record that let it has a known timestamp.
    """

    number: Places
    ready_ms: Floats
    silence: Places
    is_known: Mask

    def or_later(self, other: Passing) -> Passing:
        """Returns, by window, what was ready later; of equals the *other*."""
        is_later = ~np.isnan(other.ready_ms) & ~(other.ready_ms < self.ready_ms)
        return Passing(*(np.where(is_later, theirs, ours) for ours, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Blockers:
    """The partitions that let windows close last.

    Attributes:
        source: counts where no partition is known.
        partitions: sources with a partition.
        number: which of them it is; NONE: it is not known.
        ready_ms: the instant from which on it could let the window close.
        silence: the Silence that let it close.
        is_known: a record with a known timestamp let it close.
    """

    source: Source
    partitions: Sequence[tuple[Source, int]]
    number: Places
    ready_ms: Floats
    silence: Places
    is_known: Mask

    @property
    def bound_ms(self) -> Floats:
        """The bound of its source."""
        return np.array([*(source.bound_ms for source, _ in self.partitions), self.source.bound_ms], np.float64)[
            self.number
        ]

    @property
    def idle_after_ms(self) -> Floats:
        """The silence after which its source is idle; 0: never."""
        sources = [*(source for source, _ in self.partitions), self.source]
        return np.array([source.idle_after_ms or 0 for source in sources], np.float64)[self.number]

    @property
    def names(self) -> pl.Series:
        """Source and partition, as findings name them; null: they are not known."""
        return self._texts([f"{source.name} partition {partition}" for source, partition in self.partitions])

    @property
    def silent(self) -> pl.Series:
        """Source and partition with the setting that makes its silence count; null: they are not known."""
        settings: list[str] = []
        for source, _ in self.partitions:
            settings.append(f', idle_after = "{length_in_toml(source.idle_after_ms)}"' if source.idle_after_ms else "")
        by_setting = pl.Series(self.silence >= Silence.IDLE_AFTER)
        in_steps = pl.Series(self.silence == Silence.IDLE_ADVANCES)
        return pl.select(
            pl.concat_str(
                self.names,
                pl.when(by_setting).then(self._texts(settings)).otherwise(pl.lit("")),
                pl.when(in_steps).then(pl.lit(", idle_advances = true")).otherwise(pl.lit("")),
            ).alias("silent")
        ).to_series()

    def _texts(self, texts: Sequence[str]) -> pl.Series:
        """Returns the text of the partition of each window; null without one."""
        return pl.Series([*texts, None], dtype=pl.String()).gather(self.number % (len(texts) + 1))


class BatchFacts:
    """Facts about the batches of one topology.

    Restarts and standstills have numbers. *trigger_ms* is that of the topology. *of_jobs*: its queries are recorded
    from jobs.

    Attributes:
        restart_causes: for each of them, the place of its part of an age.
        restart_texts: driver and time of each of them, and the number of records that waited; the last is null.
    """

    def __init__(self, rows: BatchRows, *, trigger_ms: int, of_jobs: bool = False) -> None:
        batches, beats, partitions = (table.with_columns(cs.datetime().dt.epoch("ms")) for table in rows[:3])
        times: list[Restart] = []
        texts: list[str | None] = []
        self._ran = defaultdict[str, BatchRuns](lambda: NO_RUNS)
        reads = partition_reads(partitions.lazy()).collect()
        for (sub,), ran in batches.sort("batch_id").partition_by(["sub_topology"], as_dict=True).items():
            # `measured` alone writes batches without an epoch.
            of_query = of_jobs or ran["epoch"].is_null().all()
            restarts_of_sub = restarts(ran, beats.filter(pl.col("sub_topology") == sub), trigger_ms=trigger_ms)
            if of_query:  # its beats do not say when it worked
                restarts_of_sub = [restart for restart in restarts_of_sub if not restart.stood_still]
            numbers = {restart.batch_id: len(times) + n for n, restart in enumerate(restarts_of_sub)}
            self._ran[sub] = _runs(ran, reads.filter(pl.col("sub_topology") == sub), numbers, of_query=of_query)
            times += restarts_of_sub
            texts += [f"driver of {sub}: {restart.seen}" for restart in restarts_of_sub]
        self.restart_texts = pl.Series([*texts, None], dtype=pl.String())
        self._stood_still = np.array([restart.stood_still for restart in times], np.bool_)
        causes = PLACE[AgeCause.BACKLOG], PLACE[AgeCause.DRIVER_RESTARTED]
        self.restart_causes = np.where(self._stood_still, *causes)
        self._from_ms, self._to_ms = (
            np.array([getattr(restart, end) for restart in times], np.float64) for end in ("from_ms", "to_ms")
        )
        self._marks: dict[str, dict[InputPartition, Marks]] = {}
        in_order = partitions.drop_nulls("source").sort("batch_id")
        of_partitions = in_order.drop_nulls("partition")
        input_partition = ["sub_topology", "source", "partition"]
        for (sub, source, partition), decisions in of_partitions.partition_by(input_partition, as_dict=True).items():
            self._marks.setdefault(sub, {})[source, partition] = Marks.of(decisions)
        self._source_marks: dict[tuple[object, ...], Marks] = {}
        of_sources = in_order.filter(pl.col("partition").is_null())
        for key, decisions in of_sources.partition_by(input_partition[:2], as_dict=True).items():
            self._source_marks[key] = Marks.of(decisions)
        task = ["sub_topology", "operator", "task_id"]
        self._record_times = record_times(rows.latencies).partition_by(task, as_dict=True)

    def before(self, sub_topology: str, batch_id: Places) -> tuple[Floats, Floats]:
        """Returns when the batch before each one started and finished."""
        ran = self._ran[sub_topology]
        place = ran.place(batch_id)
        started_ms, finished_ms = (np.insert(ms, 0, np.nan)[place] for ms in (ran.started_ms, ran.finished_ms))
        return started_ms, finished_ms

    def queued(self, sub_topology: str, batch_id: Places) -> tuple[Floats, pl.Series]:
        """Returns the waits of batches for other streams.

        They are streams of their process; their names are the second value.
        """
        ran = self._ran[sub_topology]
        place = np.where(ran.has(batch_id), ran.place(batch_id), ran.batch_id.size)
        behind = pl.concat([ran.queued_behind, pl.Series([None], dtype=pl.String())])
        return np.append(ran.queued_ms, 0)[place], behind.gather(place)

    def closing(
        self, sub_topology: str, batch_id: Places, blockers: Blockers, *, began_ms: Floats, skew_ms: Floats
    ) -> ClosingBatches:
        """Describes batches as those that closed windows.

        Args:
            sub_topology: that ran them.
            batch_id: of the batches.
            blockers: the partitions that let the windows close last.
            began_ms: when the batches began, by the clock of all hosts.
            skew_ms: what to add to instants of the driver's clock for that clock.
        """
        started_ms, finished_ms = self.before(sub_topology, batch_id)
        is_first = self._ran[sub_topology].place(batch_id) == 0
        restart = np.where(is_first, NONE, self.restart(sub_topology, batch_id, blockers))
        stood_still, from_ms = (
            np.append(self._stood_still, values=False)[restart],
            np.append(self._from_ms, np.nan)[restart],
        )
        return ClosingBatches(
            began_ms=began_ms,
            before_began_ms=started_ms + skew_ms,
            before_ended_ms=finished_ms + skew_ms,
            is_unread=is_first | self._is_unread(sub_topology, batch_id, blockers),
            is_unknown=~blockers.is_known | self._is_unknown(sub_topology, batch_id),
            by_silence=blockers.silence != Silence.NONE,
            has_restarted=(restart != NONE) & ~stood_still,
            still_from_ms=np.where(stood_still, from_ms + skew_ms, np.nan),
        )

    def _is_unread(self, sub_topology: str, batch_id: Places, blockers: Blockers) -> Mask:
        """Returns True where records of the blocking partition were left unread.

        The batch before left them.
        """
        ran, is_unread = self._ran[sub_topology], np.zeros(batch_id.size, np.bool_)
        place = ran.place(batch_id)
        for number, (source, partition) in enumerate(blockers.partitions):
            unread = ran.unread.get((source.name, partition))
            if unread is not None:
                is_blocking = (blockers.number == number) | ran.of_query
                is_unread |= is_blocking & np.insert(unread, 0, values=False)[place]
        return is_unread

    def _is_unknown(self, sub_topology: str, batch_id: Places) -> Mask:
        """Returns True where the batch before may have left records unread."""
        ran = self._ran[sub_topology]
        is_unknown: Mask = np.insert(ran.is_unknown & ran.of_query, 0, values=False)[ran.place(batch_id)]
        return is_unknown

    def restart(self, sub_topology: str, batch_id: Places, blockers: Blockers | None = None) -> Places:
        """Returns the number of the restart or standstill that delayed each batch.

        Records that the batch read had waited for it; NONE: they had not.
        """
        ran = self._ran[sub_topology]
        cause = np.append(ran.restart, NONE)[np.where(ran.has(batch_id), ran.place(batch_id), NONE)]
        if blockers is None:
            return cause
        is_unread, place = self._is_unread(sub_topology, batch_id, blockers), ran.place(batch_id)
        for number, (source, partition) in enumerate(blockers.partitions):
            waited = is_unread & (blockers.number == number) & (cause == NONE)
            if waited.any():
                cause[waited] = ran.restart_before((source.name, partition))[place[waited] - 1]
        return np.where(blockers.ready_ms >= np.append(self._to_ms, np.nan)[cause], NONE, cause)

    def blockers(self, sub: SubTopology, source: Source, batch_id: Places, end_ms: Floats) -> Blockers:
        """Returns the partitions that let windows close last.

        Args:
            sub: the sub-topology that closed the windows.
            source: that counts if no partition is known.
            batch_id: the batches that closed them.
            end_ms: ends of the windows.
        """
        # A source that only feeds the tables of joins closes no window.
        leading = {o.name: o for o in sub.outside_sources if o.name not in sub.table_inputs()}
        marks = self._marks.get(sub.name, {})
        partitions = [(leading[name], partition) for name, partition in sorted(marks) if name in leading]
        nothing = np.zeros(batch_id.size, np.int64)
        last = Passing(nothing + NONE, np.full(batch_id.size, np.nan), nothing + Silence.NONE, nothing > 0)
        # Names decide between partitions that were ready at the same instant: the last one counts.
        for number in range(len(partitions)):
            last = last.or_later(self._passing(sub.name, partitions, number, batch_id, end_ms))
        for leader in leading.values():
            if leader.idle_advances and leader.idle_after_ms:
                last = last.or_later(self._in_silence(sub.name, leader, partitions, batch_id, end_ms))
        ready_ms = np.where(last.number == NONE, end_ms + source.bound_ms, last.ready_ms)
        return Blockers(source, partitions, last.number, ready_ms, last.silence, last.is_known)

    def _passing(
        self, sub: str, partitions: Sequence[tuple[Source, int]], number: int, batch_id: Places, end_ms: Floats
    ) -> Passing:
        """Returns how a partition let windows close in the batches *batch_id*."""
        source, partition = partitions[number]
        marks = self._marks[sub][source.name, partition]
        place, has_mark = marks.place(batch_id)
        is_idle = np.append(marks.is_idle, values=False)
        # It may have let the window close in an earlier batch, or not yet.
        has_let = (place > 0) & (is_idle[place - 1] | marks.has_passed(place - 1, end_ms))
        by_record = has_mark & ~has_let & marks.has_passed(place, end_ms)
        by_silence = has_mark & ~has_let & ~by_record & is_idle[place]
        needed_ms = end_ms + source.bound_ms
        record_ms = self._record_ms(sub, source.name, f"{sub}_{partition}", batch_id, needed_ms)
        decided_ms = np.append(marks.decided_ms, np.nan)[place]
        idle_after_ms = source.idle_after_ms or np.nan
        due_ms = self._ran[sub].silent_since((source.name, partition), batch_id) + idle_after_ms + 1
        silent_ms = np.fmin(due_ms, decided_ms)
        ready_ms = np.where(by_record, record_ms, np.where(by_silence, silent_ms, np.nan))
        silence = np.where(decided_ms >= due_ms, Silence.IDLE_AFTER, Silence.ENDED)
        return Passing(
            np.full(batch_id.size, number),
            np.where(by_record | by_silence, np.fmax(needed_ms, ready_ms), np.nan),
            np.where(by_silence, silence, Silence.NONE),
            by_record & ~np.isnan(record_ms),
        )

    def _in_silence(
        self, sub: str, source: Source, partitions: Sequence[tuple[Source, int]], batch_id: Places, end_ms: Floats
    ) -> Passing:
        """Returns how time that advances in silence let windows close in the batches *batch_id*.

        The partition is the last one of *source* that had a record: the silence has lasted since then.
        """
        own = [number for number, (leader, _) in enumerate(partitions) if leader == source]
        marks = self._source_marks.get((sub, source.name))
        none = np.full(batch_id.size, np.nan)
        if marks is None or not own or not source.idle_after_ms:
            return Passing(np.full(batch_id.size, NONE), none, np.full(batch_id.size, Silence.NONE), none > 0)
        place, has_mark = marks.place(batch_id)
        was_passed = (place > 0) & marks.has_passed(place - 1, end_ms)
        of_own = [(source.name, partitions[number][1]) for number in own]
        newest_ms = np.max([self._marks[sub][each].newest_until(batch_id) for each in of_own], axis=0)
        needed_ms = end_ms + source.bound_ms
        # No record of any partition has passed the end, so time did.
        has_advanced = has_mark & marks.has_passed(place, end_ms) & ~was_passed & (newest_ms < needed_ms)
        since_ms = np.stack([self._ran[sub].silent_since(each, batch_id) for each in of_own])
        latest = np.nan_to_num(since_ms, nan=-np.inf)
        # Of equally silent partitions the last by name counts, as everywhere.
        number = np.array(own)[len(own) - 1 - latest[::-1].argmax(axis=0)]
        # Time advances by idle_after, twice that, four times, and so on: the first of these that reaches the window.
        behind_ms = np.where(np.isfinite(newest_ms), needed_ms - newest_ms, 0)
        times = np.maximum(1, behind_ms / source.idle_after_ms)
        step_ms = np.maximum(source.idle_after_ms * 2.0 ** np.ceil(np.log2(times)), source.idle_after_ms + 1)
        due_ms = latest.max(axis=0) + step_ms
        decided_ms = np.append(marks.decided_ms, np.nan)[place]
        ready_ms = np.fmax(needed_ms, np.where(np.isfinite(due_ms), np.fmin(due_ms, decided_ms), decided_ms))
        return Passing(
            number,
            np.where(has_advanced, ready_ms, np.nan),
            np.full(batch_id.size, Silence.IDLE_ADVANCES),
            np.zeros(batch_id.size, np.bool_),
        )

    def _record_ms(self, sub: str, source: str, task_id: str, batch_id: Places, needed_ms: Floats) -> Floats:
        """Returns the timestamp of the oldest record of a task at or beyond *needed_ms*, by batch.

        NaN: none is known.
        """
        times = self._record_times.get((sub, source, task_id))
        if times is None:
            return np.full(batch_id.size, np.nan)
        asked = pl.DataFrame({"batch_id": batch_id, "needed_ms": needed_ms}).with_columns(
            sub_topology=pl.lit(sub), operator=pl.lit(source), task_id=pl.lit(task_id)
        )
        return _floats(first_records(asked, times))


def _runs(
    batches: pl.DataFrame, reads_of_sub: pl.DataFrame, restart_of: dict[int, int], *, of_query: bool
) -> BatchRuns:
    """Returns the *batches* of a sub-topology, which are in order.

    *reads_of_sub* has what they read, and *restart_of* the numbers of their restarts. *of_query*: they are of a query
    of a job.
    """
    batch_id = batches["batch_id"].to_numpy()
    reads = reads_of_sub.join(batches.select("batch_id").with_row_index("batch"), on="batch_id")
    unread: dict[InputPartition, Mask] = {}
    for source, partition, batch in _of_each(reads.filter(pl.col("unread") > 0)):
        unread.setdefault((source, partition), np.zeros(batch_id.size, np.bool_))[batch] = True
    read: dict[InputPartition, Places] = {}
    for source, partition, batch in _of_each(reads):
        read.setdefault((source, partition), np.full(batch_id.size, _NOT_LOOKED))[batch] = _LOOKED
    for source, partition, batch in _of_each(reads.filter(pl.col("n") > 0)):
        read[source, partition][batch] = _RECORDS_READ
    restart = np.full(batch_id.size, NONE)
    for batch, number in restart_of.items():
        restart[batch_id == batch] = number
    instants = (_floats(batches["started_at"]), _floats(batches["finished_at"]))
    queued = (_floats(batches["queued_ms"].fill_null(0)), batches["queued_behind"])
    unknown = reads.filter(pl.col("unread").is_null())["batch"]
    is_unknown = np.isin(np.arange(batch_id.size), unknown.to_numpy())
    decided_ms = _floats(batches["decided_at"])
    return BatchRuns(batch_id, *instants, *queued, restart, decided_ms, unread, read, is_unknown, of_query)


def _of_each(reads: pl.DataFrame) -> Iterator[tuple[str, int, int]]:
    """Yields source, partition and place of the batch of *reads*."""
    yield from reads.select("source", "partition", "batch").iter_rows()


def _floats(values: pl.Series) -> Floats:
    """Returns *values*, NaN for null."""
    return values.cast(pl.Float64()).to_numpy()
