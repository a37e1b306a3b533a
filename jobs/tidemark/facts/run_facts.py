"""Reads what the drivers of a stream read and wrote, as tables tell."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import polars as pl

from tidemark.facts.fact_tables import FactTables, stored_in
from tidemark.facts.outcome_facts import GAVE
from tidemark.facts.stream_facts import newest_marks
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, OPERATOR_BATCHES, PARTITION_BATCHES
from tidemark.storage.delta.snapshots import AddedFiles, added_files

BEAT_COLUMNS = ("epoch", "beat_at", "state", "reason", "predecessor_killed_by")


class RunFacts:
    """The facts of the stream whose tables are in *home*, as of *now_ms*, epoch ms."""

    def __init__(self, home: Path, now_ms: int) -> None:
        self._home, self._tables = home, FactTables(stored_in(home), now_ms)

    @property
    def beats(self) -> pl.DataFrame:
        """The heartbeats of all drivers, with BEAT_COLUMNS."""
        return self._tables.scan(HEARTBEATS).select(BEAT_COLUMNS).collect()

    @cached_property
    def batches(self) -> pl.DataFrame:
        """The number, finish clock and watermark of each batch, oldest first."""
        rows = self._tables.scan(BATCHES).select("batch_id", "finished_at", "watermark")
        return rows.collect().sort("batch_id")

    def newest_ms(self, until_batch: int | None) -> int | None:
        """Returns the newest record time of all partitions after the batch *until_batch*; None if no record was
        read.
        """
        rows = self._tables.scan(PARTITION_BATCHES).filter(pl.col("batch_id") <= until_batch)
        marks = newest_marks(rows).select(pl.col("newest_timestamp").max())
        return marks.collect().item()  # type: ignore[no-any-return]

    def records_read(self, source: str, batches: Collection[int]) -> int:
        """Returns the number of records of *source* that *batches* read."""
        return self._sum_of(source, batches, pl.col("records_in"))

    def updates_given(self, operator: str, batches: Collection[int]) -> int:
        """Returns the number of updates that *operator* sent on in *batches*."""
        return self._sum_of(operator, batches, GAVE)

    def _sum_of(self, operator: str, batches: Collection[int], n: pl.Expr) -> int:
        of_operator = (pl.col("operator") == operator) & pl.col("batch_id").is_in([*batches])
        rows = self._tables.scan(OPERATOR_BATCHES).filter(of_operator)
        return rows.select(n.sum()).collect().item()  # type: ignore[no-any-return]

    def offsets_read(self, source: str, batches: Collection[int]) -> dict[str, int]:
        """Returns how many offsets of *source* the *batches* read, by topic."""
        is_read = (pl.col("source") == source) & pl.col("batch_id").is_in([*batches])
        rows = (pl.col("until_offset") - pl.col("from_offset")).sum()
        topic = pl.col("topic_partition").str.extract("^(.*)/", 1)
        by_topic = self._tables.scan(PARTITION_BATCHES).filter(is_read).group_by(topic=topic).agg(rows=rows)
        return dict(by_topic.drop_nulls("topic").collect().iter_rows())

    def files_added(self, table: str, batches: Collection[int]) -> AddedFiles | None:
        """Returns what the commits of *batches* added to *table*, as `added_files` does."""
        return added_files(self._home / table, batches)
