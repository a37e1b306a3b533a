"""Answers questions about one stream as of an instant, from its tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from tidemark.facts.fact_tables import FactTables
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.outcome_facts import LATELY, OutcomeFacts
from tidemark.facts.planned_facts import PlannedFacts
from tidemark.facts.read_facts import PLACE, ReadFacts
from tidemark.kernels.reports.operator_tasks import measured_tasks
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import (
    BATCHES,
    CHANGES,
    COMPLETENESS,
    DEAD_LETTERS,
    HOP,
    HOP_MARK,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    SCHEMA_CHANGES,
    STATE_CHANGES,
)
from tidemark.selection import present
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.idleness import Activity

EARLY = 1_000
"""A first latency is looked for in this many batches before all others are read."""
MOVING = ("watermark", "newest_timestamp", "activity")
MARK_COLUMNS = (*MOVING, "blocked_by", "topic_partition")


@dataclass(frozen=True)
class NewestWatermark:
    """The newest watermark of a partition, of a source, or of all sources of a stream; record times in epoch ms.

    `blocked_by` names the partition or source that holds the watermark back. If a source has several topics,
    `topic_partition` is the topic and partition that people know. `unread` is how many records the newest batch left
    unread, when the broker was last asked.
    """

    watermark_ms: int | None
    max_timestamp_ms: int | None
    activity: Activity | None
    blocked_by: str | None
    topic_partition: str | None = None
    unread: int | None = None


ACTIVITIES = {word.value: word for word in Activity}
"""By their words in tables; programs of others may have written other words."""


class StreamFacts:
    """All facts of a stream as of an instant.

    Args:
        tables: the tables of the stream as of that instant.
        home: the folder of these tables.
        control: the control folder of the stream.
        trigger_ms: the trigger of the topology, ms.
    """

    def __init__(self, tables: FactTables, home: Path, control: Path, trigger_ms: int) -> None:
        self.tables, self.home, self.control = tables, home, control
        self.at_ms = tables.at_ms
        self.driver = HeartbeatFacts(tables, home, control, trigger_ms)
        self.outcomes, self.reads = OutcomeFacts(tables), ReadFacts(tables)
        self.planned = PlannedFacts(tables, control)

    @property
    def has_finished(self) -> bool:
        """True if a batch had finished, even if its facts are not written yet."""
        return self.tables.batches.height > 0 or self.driver.has_finished

    @property
    def records_behind(self) -> int | None:
        """How many records of its topics the stream has not read; None if it reads none.

        If the newest heartbeat estimates when all will be read, this is the number from which that was estimated.
        Otherwise it is the number of the newest batch, which may be newer than the heartbeat.
        """
        beat = self.driver.beat
        unread = [*present(mark.unread for (_, number), mark in self.marks.items() if number is not None)]
        if unread and (beat is None or beat.eta_at_ms is None):
            return sum(unread)
        return beat.records_behind if beat else None

    @cached_property
    def marks(self) -> dict[tuple[str | None, int | None], NewestWatermark]:
        """The newest watermarks by source and partition; the one that moved last is at the end.

        A source as a whole has the partition None, and the watermark over all sources has None for both.
        """
        watermarks: dict[tuple[str | None, int | None], NewestWatermark] = {}
        for source, partition, watermark_ms, newest_ms, word, *others in self._newest_marks().iter_rows():
            watermarks[source, partition] = NewestWatermark(watermark_ms, newest_ms, ACTIVITIES.get(word), *others)
        return watermarks

    def _newest_marks(self) -> pl.DataFrame:
        """Returns the newest row of each source and partition, however old it is, as `newest_marks` does."""
        tables, first = self.tables, self.tables.first
        recent = newest_marks(tables.rows(PARTITION_BATCHES, first)).collect()
        if not first:
            return recent
        # Nearly all partitions have a row in a recent batch. To find the others, only names are read of older rows.
        older = tables.rows(PARTITION_BATCHES, 0, pl.col("batch_id") < first)
        names = older.select(PLACE).unique().collect()
        missing = names.join(recent, on=PLACE, how="anti", nulls_equal=True)
        if missing.is_empty():
            return recent
        of_missing = older.join(missing.lazy(), on=PLACE, how="semi", nulls_equal=True)
        return pl.concat([newest_marks(of_missing).collect(), recent])

    def reached_ms(self, sources: Collection[str], watermark_ms: int) -> int | None:
        """Returns when one of *sources* first had the watermark *watermark_ms*: the end of that batch, epoch ms.

        Recent batches are searched first, and older ones only if no recent batch had it. None if no batch had it.
        """
        has_reached = pl.col("source").is_in(list(sources)), pl.col("watermark") >= utc(watermark_ms)

        def read(first: int) -> pl.DataFrame:
            return self.tables.rows(PARTITION_BATCHES, first, *has_reached).select(pl.col("batch_id").min()).collect()

        batch = self.tables.recent_first(read, lambda recent: recent["batch_id"].null_count() == 0)["batch_id"]
        finished_ms = self.tables.batches_of(batch).filter(pl.col("batch_id").is_in(batch.implode()))["finished_at"]
        return finished_ms.item() if finished_ms.len() else None

    def completions(self, operator: str) -> pl.DataFrame:
        """Returns the rows of `completeness` about *operator*, oldest first."""
        rows = self.tables.rows(COMPLETENESS, 0, pl.col("operator") == operator)
        return rows.sort("batch_id", maintain_order=True).collect()

    @cached_property
    def _field_changes(self) -> pl.DataFrame:
        """The newest change of each field of each source."""
        changes = self.tables.rows(SCHEMA_CHANGES).sort("batch_id", maintain_order=True)
        return changes.unique(["source", "field"], keep="last", maintain_order=True).collect()

    def field_changes(self, source: str) -> pl.DataFrame:
        """Returns the newest change of each field of *source*."""
        return self._field_changes.filter(pl.col("source") == source)

    @cached_property
    def batches_with_records(self) -> pl.DataFrame:
        """The recent batches with records, and at least the last LATELY of them, oldest first."""

        def read(first: int) -> pl.DataFrame:
            return self.tables.batches_from(first).filter(pl.col("records_in") > 0)

        return self.tables.recent_first(read, lambda recent: recent.height >= LATELY)

    @cached_property
    def newest_batches_of_query(self) -> pl.DataFrame:
        """The last LATELY batches with records, with the columns `watermark`, `wrong_times` and `phases`.

        Batches of a query of a team's own job tell what is wrong with it by these columns.
        """
        last = self.batches_with_records.tail(LATELY)
        of_query = self.tables.of_batches(BATCHES, last["batch_id"]).select(
            "batch_id", "watermark", "wrong_times", "phases"
        )
        return last.join(of_query, on="batch_id", how="left", maintain_order="left")

    def late_records(self, operator: str, batches: pl.Series) -> pl.DataFrame:
        """Returns the late records of *operator* in *batches*."""
        is_late = pl.col("kind") == DeadLetterKind.LATE
        return self.tables.of_batches(DEAD_LETTERS, batches, is_late, pl.col("operator") == operator)

    def latencies(self, operator: str, batches: pl.Series) -> pl.DataFrame:
        """Returns for each input partition and batch of *batches* the smallest latency of *operator*, `min_ms`.

        `negative_n` is the number of negative latencies.
        """
        columns = ["batch_id", "operator", "finished_at", "tasks"]
        rows = self.tables.of_batches(OPERATOR_BATCHES, batches, pl.col("operator") == operator, columns=columns)
        partition = pl.col("partition").cast(pl.Int64)
        return measured_tasks(rows).select("batch_id", "min_ms", "negative_n", "finished_at", partition)

    def first_latency_ms(self, operators: Collection[str], *, since: int) -> int | None:
        """Returns the mean latency of *operators*, ms, in the first batch from *since* on that measured one; else
        None.
        """
        rows = self.tables.scan(OPERATOR_BATCHES, where=[pl.col("batch_id") >= since, pl.col("n") > 0])
        measured = rows.filter(pl.col("operator").is_in(operators)).select("batch_id", "sum_ms", "n")
        # Most streams have a latency soon after their first batch, so a long history need not be read.
        known = self.tables.every_batch["batch_id"]
        early = max(since, known[0] if known.len() else 0) + EARLY
        first = measured.filter(pl.col("batch_id") < early).collect()
        if first.is_empty() and self.tables.newest >= early:
            first = measured.filter(pl.col("batch_id") >= early).collect()
        of_batch = first.filter(pl.col("batch_id") == pl.col("batch_id").min())
        return None if of_batch.is_empty() else round(int(of_batch["sum_ms"].sum()) / int(of_batch["n"].sum()))

    def key_ahead(self, partition: int, batches: pl.Series, *, by_more_than_ms: int) -> str | None:
        """Returns the key whose records of *partition* were furthest ahead of the clock in *batches*; None without one.

        Only changes count whose timestamp is more than *by_more_than_ms* after the end of their batch.
        """
        rows = self.tables.of_batches(CHANGES, batches, pl.col("source_partition") == partition)
        ahead = pl.col("timestamp") - pl.col("finished_at") > by_more_than_ms
        keys = rows.join(self.tables.batches_of(batches), on="batch_id").filter(ahead).sort("timestamp")["key"]
        return keys[-1] if keys.len() else None

    def held_windows(self, operator: str) -> pl.DataFrame:
        """Returns the windows whose results *operator* holds.

        The columns are `key`, `window_start`, `window_end`, and the `batch_id` of their newest update.
        """
        columns = ("batch_id", "key", "held", "window_start", "window_end")
        states = self.tables.rows(STATE_CHANGES, 0, pl.col("operator") == operator).select(columns)
        newest = states.sort("batch_id", maintain_order=True).unique("key", keep="last", maintain_order=True)
        return newest.filter("held").drop("held").collect()

    def sent_on(self, repartition: str, first: int) -> pl.Series:
        """Returns the batches from *first* on in which *repartition* sent updates to its hop, and not only a
        watermark.
        """
        between = pl.col("batch_id").is_between(first, self.tables.newest)
        hop = self.tables.scan(HOP, f"hop_{repartition}", where=[between])
        is_update = pl.all_horizontal(pl.col(*HOP_MARK).is_null())
        return hop.filter(is_update).select(pl.col("batch_id").unique().sort()).collect()["batch_id"]


def newest_marks(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Returns the newest row of each source and partition; the one whose watermark moved last is at the end."""
    unread = (pl.col("latest_offset") - pl.col("until_offset")).drop_nulls().last()
    has_moved = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in MOVING)
    moved_in = pl.col("batch_id").filter(has_moved).last()
    in_order = rows.sort("batch_id", maintain_order=True).group_by(PLACE, maintain_order=True)
    newest = in_order.agg(pl.col(MARK_COLUMNS).last(), unread=unread, moved_in=moved_in)
    return newest.sort("moved_in", maintain_order=True).drop("moved_in")
