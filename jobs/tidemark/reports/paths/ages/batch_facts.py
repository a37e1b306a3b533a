"""Looks up facts about batches, for many windows at once.

They have the time of a batch, the records that it left unread, and the input that held the watermark back.

Instants are epoch ms, lengths ms; NaN: no value. Arrays have a value per window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs

from tidemark.kernels.reports.ages import PLACE, ClosingBatches
from tidemark.kernels.reports.paths import NONE, Floats, Mask, Places
from tidemark.kernels.reports.reads import partition_reads
from tidemark.kernels.reports.restarts import Restart, restarts
from tidemark.model.kinds.source import Source
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
        unread: by input partition, if they left records of it unread.
        is_unknown: it is not known if they left records unread.
        of_query: they are of a query of a job, without watermarks of partitions.
    """

    batch_id: Places
    started_ms: Floats
    finished_ms: Floats
    queued_ms: Floats
    queued_behind: pl.Series
    restart: Places
    unread: dict[InputPartition, Mask]
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


_NO_VALUES, _NO_PLACES = np.empty(0), np.empty(0, np.int64)
NO_RUNS = BatchRuns(
    _NO_PLACES, _NO_VALUES, _NO_VALUES, _NO_VALUES, pl.Series(dtype=pl.String()), _NO_PLACES, {}, _NO_PLACES > 0
)


class PartitionMarks(NamedTuple):
    """The decisions of batches about the time of a partition, in order."""

    batch_id: Places
    watermark_ms: Floats
    is_idle: Mask
    decided_ms: Floats


@dataclass(frozen=True)
class Blockers:
    """The partitions that let windows close last.

    Attributes:
        source: counts where no partition is known.
        partitions: sources with a partition.
        number: which of them it is; NONE: it is not known.
        ready_ms: the record time from which on it could let the window close.
    """

    source: Source
    partitions: Sequence[tuple[Source, int]]
    number: Places
    ready_ms: Floats

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
    def names(self) -> list[str | None]:
        """Source and partition of each number, as findings name them.

        The last is that of NONE.
        """
        return [*(f"{source.name} partition {partition}" for source, partition in self.partitions), None]


class BatchRows(NamedTuple):
    """Rows about the batches of one topology.

    `batches` are rows of `batches`, `beats` of `heartbeats`, `watermarks` of `watermarks`, and `latencies` those of
    `operator_latency` that are about sources.
    """

    batches: pl.DataFrame
    beats: pl.DataFrame
    watermarks: pl.DataFrame
    latencies: pl.DataFrame


class BatchFacts:
    """Facts about the batches of one topology.

    Restarts and standstills have numbers. *trigger_ms* is that of the topology.

    Attributes:
        restart_causes: for each of them, the place of its part of an age.
        restart_texts: driver and time of each of them, and the number of records that waited; the last is null.
    """

    def __init__(self, rows: BatchRows, *, trigger_ms: int) -> None:
        batches, beats, watermarks, latencies = (table.with_columns(cs.datetime().dt.epoch("ms")) for table in rows)
        times: list[Restart] = []
        texts: list[str | None] = []
        self._ran = defaultdict[str, BatchRuns](lambda: NO_RUNS)
        for (sub,), ran in batches.sort("batch_id").partition_by(["sub_topology"], as_dict=True).items():
            of_query, beats_of_sub = ran["epoch"].is_null().all(), beats.filter(pl.col("sub_topology") == sub)
            epochs = _epochs_by_beats(ran, beats_of_sub) if of_query else ran
            restarts_of_sub = restarts(epochs, beats_of_sub, trigger_ms=trigger_ms)
            if of_query:  # its beats do not say when it worked
                restarts_of_sub = [restart for restart in restarts_of_sub if not restart.stood_still]
            numbers = {restart.batch_id: len(times) + n for n, restart in enumerate(restarts_of_sub)}
            self._ran[sub] = _runs(epochs, numbers, of_query=of_query)
            times += restarts_of_sub
            texts += [f"driver of {sub}: {restart.seen}" for restart in restarts_of_sub]
        self.restart_texts = pl.Series([*texts, None], dtype=pl.String())
        self._stood_still = np.array([restart.stood_still for restart in times], np.bool_)
        causes = PLACE[AgeCause.BACKLOG], PLACE[AgeCause.DRIVER_RESTARTED]
        self.restart_causes = np.where(self._stood_still, *causes)
        self._from_ms, self._to_ms = (
            np.array([getattr(restart, end) for restart in times], np.float64) for end in ("from_ms", "to_ms")
        )
        self._marks: dict[str, dict[InputPartition, PartitionMarks]] = {}
        of_partitions = watermarks.drop_nulls(["partition", "source"]).sort("batch_id")
        input_partition = ["sub_topology", "source", "partition"]
        for (sub, source, partition), decisions in of_partitions.partition_by(input_partition, as_dict=True).items():
            marks = PartitionMarks(
                decisions["batch_id"].to_numpy(),
                _floats(decisions["watermark"]),
                decisions["activity"].eq_missing(Activity.IDLE).to_numpy(),
                _floats(decisions["decided_at"]),
            )
            self._marks.setdefault(sub, {})[source, partition] = marks
        # The record with the longest latency of a task is its oldest one.
        self._oldest_ms: dict[tuple[object, ...], tuple[Places, Floats]] = {}
        oldest_ms = pl.col("finished_at") - pl.col("max_ms")
        in_order = latencies.sort("batch_id").with_columns(oldest_ms=oldest_ms)
        for task, measured in in_order.partition_by(["sub_topology", "operator", "task_id"], as_dict=True).items():
            self._oldest_ms[task] = measured["batch_id"].to_numpy(), _floats(measured["oldest_ms"])

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
            is_unknown=self._is_unknown(sub_topology, batch_id),
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
        number, latest_ms = np.full(batch_id.size, NONE), np.full(batch_id.size, -np.inf)
        for n, (leader, partition) in enumerate(partitions):
            ready_ms = self._ready_ms(sub.name, leader, partition, batch_id, end_ms)
            # Names decide between partitions that were ready at the same instant: the last one counts.
            is_later = ready_ms >= latest_ms
            number, latest_ms = np.where(is_later, n, number), np.where(is_later, ready_ms, latest_ms)
        return Blockers(source, partitions, number, np.where(number == NONE, end_ms + source.bound_ms, latest_ms))

    def _ready_ms(self, sub: str, source: Source, partition: int, batch_id: Places, end_ms: Floats) -> Floats:
        """Returns since when a partition could let windows close.

        It let them close in the batches *batch_id*.
        NaN: it let the window close in an earlier batch, or has not yet.
        """
        marks = self._marks[sub][source.name, partition]
        place = np.searchsorted(marks.batch_id, batch_id)
        has_mark = np.append(marks.batch_id, NONE)[place] == batch_id
        watermark_ms, is_idle = np.append(marks.watermark_ms, np.nan), np.append(marks.is_idle, values=False)
        # A window is late when the watermark has reached its last millisecond.
        is_late, was_late = (end_ms - 1 <= watermark_ms[each] for each in (place, place - 1))
        has_let = (place > 0) & (is_idle[place - 1] | was_late)
        needed_ms = end_ms + source.bound_ms
        oldest_ms = self._oldest(sub, source.name, f"{sub}_{partition}", batch_id)
        by_record_ms = np.fmax(needed_ms, oldest_ms)
        by_silence_ms = np.where(is_idle[place], np.append(marks.decided_ms, np.nan)[place], np.nan)
        return np.where(has_mark & ~has_let, np.where(is_late, by_record_ms, by_silence_ms), np.nan)

    def _oldest(self, sub: str, operator: str, task_id: str, batch_id: Places) -> Floats:
        """Returns the time of a task's oldest record, by batch.

        NaN: it is not known.
        """
        batches, oldest_ms = self._oldest_ms.get((sub, operator, task_id), (np.empty(0, np.int64), np.empty(0)))
        place = np.searchsorted(batches, batch_id, side="right")
        is_known = np.insert(batches, 0, NONE)[place] == batch_id
        return np.where(is_known, np.insert(oldest_ms, 0, np.nan)[place], np.nan)


def _epochs_by_beats(batches: pl.DataFrame, beats: pl.DataFrame) -> pl.DataFrame:
    """Returns *batches* of a query with epochs.

    It is that of the newest beat before each.
    """
    newest = beats.drop_nulls("epoch").sort("at").select("at", pl.col("epoch").alias("of_beat"))
    in_time = batches.sort("started_at").join_asof(newest, left_on="started_at", right_on="at", coalesce=False)
    return in_time.with_columns(epoch="of_beat").select(batches.columns).sort("batch_id")


def _runs(batches: pl.DataFrame, restart_of: dict[int, int], *, of_query: bool) -> BatchRuns:
    """Returns the *batches* of a sub-topology, which are in order.

    *restart_of* has the numbers of their restarts. *of_query*: they are of a query of a job.
    """
    batch_id = batches["batch_id"].to_numpy()
    unread: dict[InputPartition, Mask] = {}
    for source, partition, batch in _unread(batches):
        unread.setdefault((source, partition), np.zeros(batch_id.size, np.bool_))[batch] = True
    restart = np.full(batch_id.size, NONE)
    for batch, number in restart_of.items():
        restart[batch_id == batch] = number
    instants = (_floats(batches["started_at"]), _floats(batches["finished_at"]))
    queued = (_floats(batches["queued_ms"].fill_null(0)), batches["queued_behind"])
    reads = partition_reads(batches.lazy().select("sources").with_row_index("batch"))
    unknown = reads.filter(pl.col("unread").is_null()).select("batch").collect()["batch"]
    is_unknown = np.isin(np.arange(batch_id.size), unknown.to_numpy())
    return BatchRuns(batch_id, *instants, *queued, restart, unread, is_unknown, of_query)


def _unread(batches: pl.DataFrame) -> Iterator[tuple[str, int, int]]:
    """Yields source, partition and place of the batch with unread records."""
    reads = partition_reads(batches.lazy().select("sources").with_row_index("batch")).filter(pl.col("unread") > 0)
    yield from reads.select("source", "partition", "batch").collect().iter_rows()


def _floats(values: pl.Series) -> Floats:
    """Returns *values*, NaN for null."""
    return values.cast(pl.Float64()).to_numpy()
