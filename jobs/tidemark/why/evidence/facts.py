"""Reads the tables of one sub-topology as of an instant.

A batch counts from its `finished_at` on, which is written with the last of its tables, and a heartbeat from its `at`
on. Instants in the frames are epoch ms.

Facts grow with each batch, and most questions are about the newest. So the recent rows are read first, and all rows
only if the recent ones do not have the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
import polars.selectors as cs
from deltalake.exceptions import TableNotFoundError

from tidemark.collecting import omit
from tidemark.control.folder import ALIVE, Control, Heartbeat, StreamState
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.kernels.reports.restarts import Restart, restarts
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import (
    BATCHES,
    CHANGES,
    COMPLETENESS,
    HEARTBEATS,
    HOP,
    LATE_RECORDS,
    OPERATOR_LATENCY,
    OPERATOR_STATE,
    OPERATOR_WINDOWS,
    OUTCOMES,
    QUARANTINE,
    SCHEMA_CHANGES,
    WATERMARKS,
    Table,
)
from tidemark.model.topology import SubTopology
from tidemark.semantics.idleness import Activity
from tidemark.stream.journal.unflushed import UnflushedRows, unflushed_of
from tidemark.stream.startup.unread import begun

RECENT_MS = 2 * 86_400_000
"""Rows of so long before the instant are recent, in ms."""
BATCH_COLUMNS = ("batch_id", "decided_at", "started_at", "finished_at", "duration_ms", "epoch", "records_in")
LATELY = 5
""""Lately" is the last so many batches with records."""

MISSED_MS = 3_000
"""After so many ms without a beat the driver's lease is checked.

A driver beats every second in its control folder.
"""
BEATS_WITHIN_MS = 60_000
"""A driver without a beat for longer is dead.

It is the length of four beats of 15 s.
"""
GAVE = pl.col("emitted") + pl.col("passed") + pl.col("repeated").fill_null(0)
"""Results that an operator sent on."""
ALL = pl.lit(value=True)
"""The condition that every row fulfils."""

_LOAD = (
    *("memory_bytes", "memory_free_bytes", "state_bytes"),
    *("records_behind", "arrival_per_s", "working_per_s"),
    pl.col("eta_at").alias("eta_at_ms"),
)
"""Columns of `heartbeats` about a driver's load, as fields of Beat."""


@dataclass(frozen=True)
class Beat:
    """The newest heartbeat of a driver."""

    state: StreamState
    at_ms: int
    batch_started_at_ms: int | None
    reason: str | None
    is_gone: bool = False
    """True if no driver holds the lease of the stream any more."""
    killed_for: str | None = None
    """The stream that hung and made its shared process be killed."""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    state_bytes: int | None = None
    records_behind: int | None = None
    arrival_per_s: float | None = None
    working_per_s: float | None = None
    eta_at_ms: int | None = None

    @property
    def is_short_of_memory(self) -> bool:
        """True if less than a tenth of the driver's memory is free."""
        if self.memory_bytes is None or self.memory_free_bytes is None:
            return False
        # Free memory is less than a tenth of the sum of used and free.
        return self.memory_free_bytes * 9 < self.memory_bytes


@dataclass(frozen=True)
class NewestWatermark:
    """The newest watermark of a partition, a source, or all of them.

    Record times, and the name of what holds it back. *topic_partition* is the place of a partition of several topics.
    """

    watermark_ms: int | None
    max_timestamp_ms: int | None
    activity: Activity | None
    held_by: str | None
    topic_partition: str | None = None


class StreamFacts:
    """The tables under *home* as of *at_ms*.

    A missing table has no rows.

    *control* is the control folder, *trigger_ms* the topology's trigger. Restarts are known that ended in the last half
    of *recent_ms*.
    """

    def __init__(
        self,
        home: Path,
        control: Path,
        at_ms: int,
        trigger_ms: int,
        *,
        recent_ms: int = RECENT_MS,
    ) -> None:
        self._home, self.control, self.at_ms, self._trigger_ms = home, control, at_ms, trigger_ms
        self._recent_ms = recent_ms
        self._opened: dict[str, pl.LazyFrame] = {}

    @cached_property
    def beat(self) -> Beat | None:
        """The newest heartbeat, from the control folder or from the table."""
        last = self._beats.tail(1)
        rows, loads = last.select("state", "at", "batch_started_at", "reason").rows(), last.select(_LOAD).to_dicts()
        load = loads[0] if loads else {}
        newest = Beat(StreamState(rows[0][0]), *rows[0][1:4], **load) if rows else None
        # The folder has the heartbeats of every second, the table those of every 15 s.
        live = self._live()
        if live is None or live.at_ms > self.at_ms or (newest and newest.at_ms > live.at_ms):
            return newest
        is_gone = live.state in ALIVE and self.at_ms - live.at_ms > MISSED_MS and not Control(self.control).is_held()
        began_ms = newest.batch_started_at_ms if newest else None
        killed_for = Control(self.control).killed_for(live.launch_id) if is_gone else None
        return Beat(live.state, live.at_ms, began_ms, live.reason, is_gone, killed_for, **load)

    def _live(self) -> Heartbeat | None:
        """The newest heartbeat of the control folder.

        None, too, for a user who may not read the folder.
        """
        with suppress(PermissionError):
            return Control(self.control).heartbeat()
        return None

    @cached_property
    def started_ms(self) -> int:
        """When the newest driver first beat."""
        live = self._live()
        if live is not None and live.state is StreamState.STARTING and live.at_ms <= self.at_ms:
            return live.since_ms or live.at_ms
        newest = self._beats["epoch"].max()
        if newest is None:
            return self.at_ms
        of_newest = pl.col("epoch") == newest
        rows = self._beats.filter(of_newest)
        if rows.height == self._beats.height:
            rows = self.scan(HEARTBEATS).filter(of_newest, pl.col("at") <= self.at_ms).select("at").collect()
        return int(rows["at"].min())  # type: ignore[arg-type]

    @cached_property
    def restart(self) -> Restart | None:
        """The newest recent restart that had begun; None: there was none."""
        # A restart that had begun counts with its end, even if that came later.
        recent = restarts(self._recent_batches, self._recent_beats, trigger_ms=self._trigger_ms)
        begun_restarts = [restart for restart in recent if restart.from_ms <= self.at_ms]
        return begun_restarts[-1] if begun_restarts else None

    @cached_property
    def _recent_beats(self) -> pl.DataFrame:
        """The heartbeats since the first recent batch, also later ones."""
        began_ms = min(self._recent_batches["started_at"].head(1).drop_nulls(), default=None)
        if self._first and began_ms is not None:
            recent = self.scan(HEARTBEATS, where=[pl.col("at") >= utc(began_ms)]).collect()
            # The newest heartbeat may be older.
            if (recent["at"] <= self.at_ms).any():
                return recent.sort("at", "epoch")
        return self.scan(HEARTBEATS).sort("at", "epoch").collect()

    @cached_property
    def _beats(self) -> pl.DataFrame:
        return self._recent_beats.filter(pl.col("at") <= self.at_ms)

    def reading(self, sub: SubTopology) -> str:
        """Returns records that the driver of *sub* had begun to read.

        They are not decided yet. The result is part of a sentence. It is empty if there are none, and for a user who
        may not read the control folder.
        """
        with suppress(PermissionError):
            return begun(self.control, sub)
        return ""

    @cached_property
    def batches(self) -> pl.DataFrame:
        """The recent batches, oldest first.

        There is none only if there is no batch at all.
        """
        return self._recent_batches.filter(pl.col("finished_at") <= self.at_ms)

    def batches_between(self, first: int, last: int) -> pl.DataFrame:
        """Returns the batches from *first* to *last*, oldest first."""
        batches = self.batches if first >= self._first else self._every_batch
        return batches.filter(pl.col("batch_id").is_between(first, last))

    @cached_property
    def first_finished_ms(self) -> int | None:
        """When the oldest batch finished; None: there is none."""
        oldest = self._every_batch["finished_at"].head(1)
        return oldest.item() if oldest.len() else None

    @property
    def records_in(self) -> int:
        """The number of records that all batches read."""
        return int(self._every_batch["records_in"].sum())

    @cached_property
    def worked_ms(self) -> int:
        """The driver's newest sign of work: a finished batch, or its heartbeat's."""
        beats = self._beats.select(pl.coalesce("batch_started_at", "since", "at"))
        live = self._live()
        live_ms = [] if live is None or live.at_ms > self.at_ms else [live.since_ms or live.at_ms]
        signs_ms = [*beats.to_series().tail(1), *self.batches["finished_at"].tail(1), *live_ms]
        return max(signs_ms, default=self.at_ms)

    def finished_after(self, at_ms: int) -> bool:
        """Returns True if a batch finished after the heartbeat of *at_ms*."""
        # Heartbeats in the table come every 15 s, so a batch may be newer.
        return bool((self.batches["finished_at"] > at_ms).any())

    @cached_property
    def _first(self) -> int:
        """The first recent batch; 0: all batches are read.

        In the first half of the time there must be a batch: the second half has the one before each of its batches.
        """
        since_ms = self.at_ms - self._recent_ms
        are_recent = pl.col("finished_at").is_between(utc(since_ms), utc(self.at_ms))
        recent = self.scan(BATCHES, where=[are_recent]).select("batch_id", "finished_at").collect()
        is_known = (recent["finished_at"] <= since_ms + self._recent_ms // 2).any()
        return recent["batch_id"].min() if is_known else 0  # type: ignore[return-value]

    @cached_property
    def _recent_batches(self) -> pl.DataFrame:
        """The recent batches, also later ones."""
        rows = self.scan(BATCHES, where=[pl.col("batch_id") >= self._first])
        return rows.select(BATCH_COLUMNS).sort("batch_id").collect()

    @cached_property
    def _every_batch(self) -> pl.DataFrame:
        """The batches, oldest first."""
        if not self._first:
            return self.batches
        rows = self.scan(BATCHES).select(BATCH_COLUMNS).filter(pl.col("finished_at") <= self.at_ms)
        return rows.sort("batch_id").collect()

    @cached_property
    def newest_batches_of_query(self) -> pl.DataFrame:
        """The last LATELY batches with records of a query of a job.

        They have `watermark` and `phases`.
        """
        is_read = pl.col("records_in") > 0
        last = self.batches.filter(is_read).tail(LATELY)
        last = last if last.height == LATELY else self._every_batch.filter(is_read).tail(LATELY)
        of_query = self._of_batches(BATCHES, last["batch_id"]).select("batch_id", "watermark", "phases")
        return last.join(of_query, on="batch_id", how="left", maintain_order="left")

    @cached_property
    def _recent_outcomes(self) -> pl.DataFrame:
        return self._outcomes(self._first)

    @cached_property
    def outcomes(self) -> pl.DataFrame:
        """Outcomes of updates, by batch and operator, oldest first.

        `gave` is the number of updates that were sent on.
        """
        return self._outcomes(0) if self._first else self._recent_outcomes

    def _outcomes(self, first: int) -> pl.DataFrame:
        batches = self._every_batch if first < self._first else self.batches
        rows = self._rows(OUTCOMES, first).with_columns(gave=GAVE).join(batches, on="batch_id")
        return rows.sort("batch_id", maintain_order=True)

    def _of_operator(self, operator: str, has_answer: Callable[[pl.DataFrame], bool]) -> pl.DataFrame:
        """Returns the recent rows of `outcomes` about *operator*.

        If these are not enough, it returns all rows.
        """
        is_asked = pl.col("operator") == operator
        recent = self._recent_outcomes.filter(is_asked)
        return recent if not self._first or has_answer(recent) else self.outcomes.filter(is_asked)

    def newest(self, operator: str, condition: pl.Expr = ALL, *, n: int = 1) -> pl.DataFrame:
        """Returns the newest *n* rows about *operator* with *condition*."""
        rows = self._of_operator(operator, lambda recent: recent.filter(condition).height >= n)
        return rows.filter(condition).tail(n)

    def since_last(self, operator: str, condition: pl.Expr) -> pl.DataFrame:
        """Returns the rows about *operator* after its newest with *condition*.

        Without such a row it returns all.
        """
        rows = self._of_operator(operator, lambda recent: recent.filter(condition).height > 0)
        last = rows.filter(condition)["batch_id"].max()
        return rows if last is None else rows.filter(pl.col("batch_id") > last)

    def since_last_result(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* after its newest batch with results."""
        return self.since_last(operator, pl.col("gave") > 0)

    def lately(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* of its last LATELY batches with records."""
        return self.newest(operator, pl.col("records_in") > 0, n=LATELY)

    @cached_property
    def marks(self) -> dict[tuple[str | None, int | None], NewestWatermark]:
        """The newest watermarks by source and partition.

        None and None are the keys of the watermark over all sources.
        """
        newest = self._rows(WATERMARKS).sort("batch_id", maintain_order=True)
        newest = newest.unique(["source", "partition"], keep="last", maintain_order=True)
        columns = ("source", "partition", "watermark", "max_timestamp", "activity", "held_by", "topic_partition")
        watermarks: dict[tuple[str | None, int | None], NewestWatermark] = {}
        for source, partition, watermark_ms, newest_ms, word, held_by, place in newest.select(columns).iter_rows():
            activity = Activity(word) if word else None
            watermarks[source, partition] = NewestWatermark(watermark_ms, newest_ms, activity, held_by, place)
        return watermarks

    def completions(self, operator: str) -> pl.DataFrame:
        """Returns the rows of `completeness` about *operator*, oldest first."""
        return self._rows(COMPLETENESS, 0, pl.col("operator") == operator).sort("batch_id", maintain_order=True)

    @cached_property
    def _field_changes(self) -> pl.DataFrame:
        """The newest change of each field of each source."""
        changes = self._rows(SCHEMA_CHANGES).sort("batch_id", maintain_order=True)
        return changes.unique(["source", "field"], keep="last", maintain_order=True)

    def field_changes(self, source: str) -> pl.DataFrame:
        """Returns the newest change of each field of *source*."""
        return self._field_changes.filter(pl.col("source") == source)

    @cached_property
    def _recent_reads(self) -> pl.DataFrame:
        return self._reads(self._first)

    @cached_property
    def reads(self) -> pl.DataFrame:
        """Reads by batch, source and partition: n, `bad` and `unread`.

        n counts the offsets that were read: where a topic has gaps, more than there were records. `unread` is null if
        the broker was not asked.
        """
        return self._reads(0) if self._first else self._recent_reads

    def _reads(self, first: int) -> pl.DataFrame:
        """Returns the rows of `reads` from the batch *first* on."""
        batches = self._every_batch if first < self._first else self.batches
        sources = self.scan(BATCHES, where=[pl.col("batch_id") >= first]).select("batch_id", "sources").collect()
        parts = batches.select("batch_id", "finished_at").join(sources, on="batch_id", maintain_order="left")
        parts = parts.explode("sources").filter(pl.col("sources").is_not_null()).unnest("sources")
        bad = self._rows(QUARANTINE, first).group_by("batch_id", "source", "partition").agg(bad=pl.len())
        return parts.join(bad, on=["batch_id", "source", "partition"], how="left", maintain_order="left").select(
            "batch_id",
            "source",
            "partition",
            "finished_at",
            "until_offset",
            # Where a topic has gaps, this is more than there were records.
            n=pl.col("until_offset") - pl.col("from_offset"),
            unread=pl.col("latest_offset") - pl.col("until_offset"),
            bad=pl.col("bad").fill_null(0).cast(pl.Int64),
        )

    def reads_of(self, source: str, has_answer: Callable[[pl.DataFrame], bool]) -> pl.DataFrame:
        """Returns the recent rows of `reads` about *source*.

        If these are not enough, it returns all rows.
        """
        is_asked = pl.col("source") == source
        recent = self._recent_reads.filter(is_asked)
        return recent if not self._first or has_answer(recent) else self.reads.filter(is_asked)

    def of_partition(self, source: str, partition: int) -> pl.DataFrame:
        """Returns the rows of `reads` about one partition.

        They go back to its last LATELY reads and its last usable record, at least.
        """
        is_asked = pl.col("partition") == partition

        def has_answer(recent: pl.DataFrame) -> bool:
            read = recent.filter(is_asked, pl.col("n") > 0)
            return read.height >= LATELY and bool((read["n"] > read["bad"]).any())

        return self.reads_of(source, has_answer).filter(is_asked)

    def reads_in(self, batches: pl.Series) -> pl.DataFrame:
        """Returns the rows of `reads` of *batches*, which are not empty."""
        return self._reads(batches.min()).filter(pl.col("batch_id").is_in(batches.implode()))  # type: ignore[arg-type]

    @property
    def newest_read_batch(self) -> int | None:
        """The newest batch that read records, of any source; None: none."""
        is_read = pl.col("n") > 0
        recent = self._recent_reads.filter(is_read)["batch_id"].max()
        return self.reads.filter(is_read)["batch_id"].max() if recent is None else recent  # type: ignore[return-value]

    def newest_reads(self, source: str, batches: int = 1) -> pl.DataFrame:
        """Returns the newest rows of `reads` with records of *source*.

        They are of its last *batches* with records.
        """
        is_read = pl.col("n") > 0
        rows = self.reads_of(source, lambda recent: recent.filter(is_read)["batch_id"].n_unique() >= batches)
        read = rows.filter(is_read)
        last = read["batch_id"].unique().sort().tail(batches)
        return read.filter(pl.col("batch_id").is_in(last.implode()))

    def quarantined(self, source: str, batches: pl.Series) -> pl.DataFrame:
        """Returns the unusable records of *source* in *batches*."""
        return self._of_batches(QUARANTINE, batches, pl.col("source") == source)

    def late_records(self, operator: str, batches: pl.Series) -> pl.DataFrame:
        """Returns the records behind the watermark of *operator*, of *batches*."""
        return self._of_batches(LATE_RECORDS, batches, pl.col("operator") == operator)

    def latencies(self, operator: str, batches: pl.Series) -> pl.DataFrame:
        """Returns the smallest latency of *operator* by input partition, of *batches*.

        It is in ms, with the number of negative latencies.
        """
        rows = self._of_batches(OPERATOR_LATENCY, batches, pl.col("operator") == operator)
        # A task is named SUB-TOPOLOGY_PARTITION.
        partition = pl.col("task_id").str.extract(r"_(\d+)$").cast(pl.Int64)
        return rows.select("batch_id", "min_ms", "negative_n", "finished_at", partition=partition)

    def key_ahead(self, partition: int, batches: pl.Series, *, by_more_than_ms: int) -> str | None:
        """Returns a key with a change too far ahead of its batch.

        The change is of records of *partition* in *batches*. None: no such key is known.
        """
        rows = self._of_batches(CHANGES, batches, pl.col("source_partition") == partition)
        ahead = pl.col("timestamp") - pl.col("finished_at") > by_more_than_ms
        finished = self._finished(batches)
        keys = rows.join(finished, on="batch_id").filter(ahead).sort("timestamp")["key"]
        return keys[-1] if keys.len() else None

    def _finished(self, batches: pl.Series) -> pl.DataFrame:
        """Returns the rows of *batches*."""
        least = batches.min()
        return self.batches_between(least, batches.max()) if isinstance(least, int) else self.batches.head(0)  # type: ignore[arg-type]

    @cached_property
    def busy(self) -> list[tuple[str, int, int]]:
        """The operators that used most of the trigger interval lately.

        That is in the last LATELY batches that closed windows. For each it has the name, and medians in ms: of its
        work on a batch, and of whole batches, which took longer than a trigger. The operator that worked longest comes
        first, of equal ones the first by name.
        """
        closing = self._rows(OPERATOR_WINDOWS, self._first)
        if self._first and closing["batch_id"].n_unique() < LATELY:
            closing = self._rows(OPERATOR_WINDOWS)
        last = closing["batch_id"].unique().sort().tail(LATELY)
        newest = closing.filter(pl.col("batch_id").is_in(last.implode())).unique(["batch_id", "operator"])
        works = newest.join(self._finished(last), on="batch_id")
        medians = works.group_by("operator").agg(
            work_ms=(pl.col("ewt_at") - pl.col("started_at")).median(), batch_ms=pl.col("duration_ms").median()
        )
        too_long = (pl.col("work_ms") > self._trigger_ms / 2) & (pl.col("batch_ms") > self._trigger_ms)
        busy = medians.filter(too_long).sort(-pl.col("work_ms"), "operator")
        return [(name, round(work_ms), round(batch_ms)) for name, work_ms, batch_ms in busy.iter_rows()]

    def held_windows(self, operator: str) -> pl.DataFrame:
        """Returns windows whose results *operator* holds.

        Columns are key, window_start, window_end, and the batch_id of their newest update.
        """
        states = self.scan(OPERATOR_STATE).filter(pl.col("operator") == operator, pl.col("batch_id") <= self._newest)
        columns = ["batch_id", "key", "held", "window_start", "window_end"]
        moved = states.select(columns).collect().sort("batch_id", maintain_order=True)
        return moved.unique("key", keep="last", maintain_order=True).filter("held").drop("held")

    def handed_on(self, repartition: str) -> int:
        """Returns the newest batch in which *repartition* sent rows on; −1: none."""
        for first in dict.fromkeys((self._first, 0)):
            between = pl.col("batch_id").is_between(first, self._newest)
            hop = self.scan(HOP, f"hop_{repartition}", where=[between])
            newest = hop.select("batch_id").collect()["batch_id"].max()
            if isinstance(newest, int):
                return newest
        return -1

    @cached_property
    def _newest(self) -> int:
        newest = self.batches["batch_id"].max()
        return newest if isinstance(newest, int) else -1

    @cached_property
    def _unflushed(self) -> UnflushedRows:
        """The journal as it was before a table was read."""
        # Read first: a flush in between would move rows from the journal into tables that were read before.
        return unflushed_of(self._home)

    def scan(self, table: Table, name: str = "", *, where: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        """Returns *table*'s rows of tables and journal, instants in epoch ms.

        *where* has conditions on its columns as they are stored: files without such rows are not read.
        """
        rows = self._opened.get(name or table.name)
        if rows is None:
            rows = self._opened[name or table.name] = self._open(table, self._home / (name or table.name))
        return rows.filter(*where).with_columns(cs.datetime().dt.epoch("ms"))

    def _open(self, table: Table, path: Path) -> pl.LazyFrame:
        none = pl.DataFrame(arrow_schema(table).empty_table()).lazy()
        unflushed = self._unflushed
        rows = none
        with suppress(TableNotFoundError):
            rows = unflushed.scan(path)
        # A table of an older version lacks columns until a driver of this version opens it.
        lacking = omit(none.collect_schema(), rows.collect_schema())
        return rows.with_columns(pl.lit(None).cast(kind).alias(column) for column, kind in lacking.items())

    def _rows(self, table: Table, first: int = 0, *where: pl.Expr) -> pl.DataFrame:
        """Returns the rows of batches that count, from *first* on.

        *where* is true for them.
        """
        rows = self.scan(table, where=[pl.col("batch_id").is_between(first, self._newest), *where])
        return rows.drop("topology", "sub_topology").collect()

    def _of_batches(self, table: Table, batches: pl.Series, *where: pl.Expr) -> pl.DataFrame:
        """Returns the rows of those of *batches* that count.

        *where* is true for them.
        """
        first = batches.min()
        rows = self._rows(table, first if isinstance(first, int) else self._newest + 1, *where)
        return rows.filter(pl.col("batch_id").is_in(batches.implode()))
