"""Answers questions about what batches read of input partitions, and what they left unread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cache, partial

import polars as pl

from tidemark.facts.fact_tables import FactTables
from tidemark.facts.outcome_facts import LATELY
from tidemark.kernels.reports.reads import partition_reads
from tidemark.model.tables.catalog import DEAD_LETTERS, PARTITION_BATCHES
from tidemark.semantics.dead_letters import DeadLetterKind

IS_READ = pl.col("n") > 0
IS_BAD = pl.col("kind") == DeadLetterKind.QUARANTINED
PLACE = ("source", "partition")


class ReadFacts:
    """What each batch read of each input partition, in the order of batches.

    `partition_reads` explains the columns.
    """

    def __init__(self, tables: FactTables) -> None:
        self._tables = tables
        self._since, self._partitions_since = cache(partial(_reads, tables)), cache(self._by_partition)
        # Several rules ask the same of a partition or a source.
        self.of_partition, self.newest = cache(self._of_partition), cache(self._newest)

    def of_source(self, source: str, has_answer: Callable[[pl.DataFrame], bool]) -> pl.DataFrame:
        """Returns the recent reads of *source*; if these do not have the answer, all of them."""
        is_asked = pl.col("source") == source
        return self._tables.recent_first(lambda first: self._since(first).filter(is_asked), has_answer)

    def _of_partition(self, source: str, partition: int) -> pl.DataFrame:
        """Returns the reads of one partition, with the number of quarantined records, `bad`.

        The reads go back at least to the last LATELY batches with records of the partition, and to its last usable one.
        """

        def read(first: int) -> pl.DataFrame:
            reads = self._partitions_since(first)
            return reads.of.get((source, partition), reads.none)

        def has_answer(recent: pl.DataFrame) -> bool:
            read = recent.filter(IS_READ)
            return read.height >= LATELY and bool((read["n"] > read["bad"]).any())

        return self._tables.recent_first(read, has_answer)

    def _by_partition(self, first: int) -> _PartitionReads:
        """Returns the reads of each partition in the batches from *first* on, with the number of `bad` records."""
        reads, bad = self._since(first), _bad(self._tables, first)
        with_bad = reads.join(bad, on=["batch_id", *PLACE], how="left", nulls_equal=True, maintain_order="left")
        counted = with_bad.with_columns(pl.col("bad").fill_null(0).cast(pl.Int64))
        frames = counted.partition_by(PLACE, maintain_order=True) if counted.height else []
        by_partition = {(frame["source"][0], frame["partition"][0]): frame for frame in frames}
        return _PartitionReads(by_partition, counted.clear())

    def of_batches(self, batches: pl.Series) -> pl.DataFrame:
        """Returns the reads of *batches*, of which there is at least one."""
        reads = _reads(self._tables, batches.min())  # type: ignore[arg-type]
        return reads.filter(pl.col("batch_id").is_in(batches.implode()))

    @property
    def newest_batch(self) -> int | None:
        """The newest batch that read a record of any source; None if none did."""
        reads = self._tables.recent_first(lambda first: self._since(first).filter(IS_READ))
        return reads["batch_id"].max()  # type: ignore[return-value]

    def _newest(self, source: str, batches: int = 1) -> pl.DataFrame:
        """Returns the reads with records of *source* in the last *batches* batches that read records of it."""
        rows = self.of_source(source, lambda recent: recent.filter(IS_READ)["batch_id"].n_unique() >= batches)
        read = rows.filter(IS_READ)
        last = read["batch_id"].unique().sort().tail(batches)
        return read.filter(pl.col("batch_id").is_in(last.implode()))

    def last_read_ms(self, partitions: Set[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Returns when a record of each partition was last read, epoch ms, by source and number.

        The result has at least the *partitions* of which a record was ever read.
        """

        def read(first: int) -> pl.DataFrame:
            reads = self._since(first).lazy().filter(IS_READ)
            return reads.group_by(PLACE).agg(pl.col("finished_at").max()).collect()

        def has_answer(recent: pl.DataFrame) -> bool:
            return partitions <= {*recent.select(PLACE).iter_rows()}

        rows = self._tables.recent_first(read, has_answer).iter_rows()
        return {(source, partition): at_ms for source, partition, at_ms in rows}

    def left_behind(self) -> dict[str, int]:
        """Returns how many records of each source have waited for more than one batch, most first.

        A stream that keeps up also leaves records unread, which came after the batch was planned. So the newest batch
        must have left records that the batch before had left, too (`BatchRead.leaves_of`).
        """
        until, unread = pl.col("until_offset"), pl.col("unread")
        had_waited = until.last() < (until + unread).slice(-2, 1).first()

        asked = self._since(self._tables.first).drop_nulls("unread")
        last = asked.group_by(PLACE).agg(unread.last(), waits=(pl.len() > 1) & had_waited).filter("waits")
        by_source = last.group_by("source").agg(unread.sum())
        return dict(by_source.sort(-unread, "source").iter_rows())

    def quarantined(self, source: str, batches: pl.Series) -> pl.DataFrame:
        """Returns the quarantined records of *source* in *batches*."""
        return self._tables.of_batches(DEAD_LETTERS, batches, IS_BAD, pl.col("operator") == source)


@dataclass(frozen=True)
class _PartitionReads:
    """The reads of each source and partition; `none` has the same columns and no rows."""

    of: Mapping[tuple[str, int | None], pl.DataFrame]
    none: pl.DataFrame


@dataclass(frozen=True)
class Unread:
    """The records of a partition that its newest look left unread.

    Attributes:
        n: how many of them no planned batch reads.
        in_batch: how many of them a planned batch reads that does not count yet.
        seen_ms: when the batch finished that first saw the n records (or all of them, if n is 0), epoch ms.
        is_left: a batch that was planned later has left the n records unread again.
    """

    n: int
    in_batch: int
    seen_ms: int
    is_left: bool


def unread_of(reads: pl.DataFrame, planned_until: Callable[[], int | None]) -> Unread | None:
    """Returns what the newest of *reads* of one partition left unread; None if it left nothing, or nobody knows.

    *planned_until* returns the end offset of a batch that was planned later, None without one. It is called only if
    records were left.
    """
    asked = reads.drop_nulls("unread")
    left = int(asked["unread"].tail(1).sum())
    if not left:
        return None
    until, later_until = asked["until_offset"][-1], planned_until()
    in_batch = min(left, max(0, (later_until or 0) - until))
    # If a planned batch reads all of the records, the search below is for the first of all.
    read_to = until if in_batch == left else until + in_batch
    saw_it = asked.select(pl.col("until_offset") + pl.col("unread") > read_to).to_series().reverse().cast(pl.Int64)
    looks = int(saw_it.cum_prod().sum())
    is_left = looks > 1 or later_until is not None
    return Unread(left - in_batch, in_batch, asked["finished_at"][-looks], is_left)


def _reads(tables: FactTables, first: int) -> pl.DataFrame:
    """Returns the reads of the batches that count, from *first* on."""
    finished = tables.batches_from(first).select("batch_id", "finished_at")
    columns = ("batch_id", *PLACE, "until_offset", "n", "unread")
    reads = partition_reads(tables.rows(PARTITION_BATCHES, first)).select(columns).collect()
    in_order = reads.sort("batch_id", maintain_order=True).join(finished, on="batch_id", maintain_order="left")
    return in_order.select("batch_id", *PLACE, "finished_at", "until_offset", "n", "unread")


def _bad(tables: FactTables, first: int) -> pl.DataFrame:
    """Returns the number of quarantined records by batch and partition, in the batches from *first* on."""
    rows = tables.rows(DEAD_LETTERS, first, IS_BAD).rename({"operator": "source"})
    return rows.group_by("batch_id", *PLACE).agg(bad=pl.len()).collect()
