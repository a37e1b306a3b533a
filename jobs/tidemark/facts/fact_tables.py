"""Reads the tables of one sub-topology as of an instant.

A batch counts from its `finished_at` on: that column is written when all other tables have the rows of the batch.
Instants in the frames are epoch ms.

Tables grow with each batch, and most questions are about the newest batches. So recent rows are read first, and all
rows only if the recent ones do not have the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache, cached_property
from pathlib import Path

import polars as pl
import polars.selectors as cs

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import BATCHES, Table
from tidemark.query.stored_tables import StoredTables

RECENT_MS = 2 * 86_400_000
"""Rows are recent up to this long before the instant, ms."""
BATCH_COLUMNS = ("batch_id", "decided_at", "started_at", "finished_at", "duration_ms", "epoch", "records_in")

Stored = StoredTables
"""Tables with their journals, each in the version in which it was first opened; `answers_over` asks them in SQL."""
Opener = Callable[[Table, str], pl.LazyFrame]
"""Opens the table of that name and returns its rows; a missing table has none."""


def stored_in(home: Path, stored: Stored | None = None) -> Opener:
    """Returns the opener of the tables and the journal of the stream in *home*.

    *stored* are those of the warehouse that were opened already; None opens them anew.
    """
    tables = stored or Stored()

    def open_table(table: Table, name: str) -> pl.LazyFrame:
        rows = tables.scan(home / name)
        return nothing_in(table) if rows is None else rows

    return open_table


@cache
def nothing_in(table: Table) -> pl.LazyFrame:
    """Returns *table* with its declared columns and without rows."""
    return pl.LazyFrame(schema=pl.Schema(arrow_schema(table)))


def has_rows(rows: pl.DataFrame) -> bool:
    """Returns True unless *rows* is empty."""
    return rows.height > 0


class FactTables:
    """The tables that *open_table* opens, as of *at_ms*, epoch ms.

    Rows of the last *recent_ms* before that are recent: `since_ms` is where they begin. With None all rows are recent.
    """

    def __init__(self, open_table: Opener, at_ms: int, *, recent_ms: int | None = None) -> None:
        self.at_ms, self._recent_ms, self.since_ms = at_ms, recent_ms, at_ms - (recent_ms or 0)
        self._open, self._opened = open_table, dict[str, pl.LazyFrame]()

    def scan(self, table: Table, name: str = "", *, where: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        """Returns the rows of *table*, those in the journal included, with instants in epoch ms.

        *where* are conditions on the columns as they are stored; files without such rows are not read. A table of a
        hop has another *name* than the declared table.
        """
        name = name or table.name
        if name not in self._opened:
            self._opened[name] = self._open(table, name)
        return self._opened[name].filter(*where).with_columns(cs.datetime().dt.epoch("ms"))

    def rows(self, table: Table, first: int = 0, *where: pl.Expr) -> pl.LazyFrame:
        """Returns the rows of *table* about batches that count, from the batch *first* on, that fulfil all of
        *where*.
        """
        rows = self.scan(table, where=[pl.col("batch_id").is_between(first, self.newest), *where])
        return rows.drop("topology", "sub_topology")

    def of_batches(
        self, table: Table, batches: pl.Series, *where: pl.Expr, columns: Collection[str] = ()
    ) -> pl.DataFrame:
        """Returns the rows of *table* about those of *batches* that count.

        Args:
            table: the table.
            batches: numbers of batches.
            where: conditions that the rows fulfil.
            columns: the columns to read; all if none is named.
        """
        rows = self.rows(table, self._first_of(batches)).filter(pl.col("batch_id").is_in(batches.implode()))
        rows = rows.select(columns) if columns else rows
        # Arrow compares no text of a table that delta-rs has rewritten, so these conditions come after it has read.
        read = rows.collect()
        return read.filter(*where) if read.height else read

    def recent_first(
        self, read: Callable[[int], pl.DataFrame], has_answer: Callable[[pl.DataFrame], bool] = has_rows
    ) -> pl.DataFrame:
        """Returns what *read* gives for recent batches; if that has no answer, what it gives for all batches.

        *read* gets the first batch to read.
        """
        recent = read(self.first)
        return recent if not self.first or has_answer(recent) else read(0)

    @cached_property
    def _counts(self) -> pl.Expr:
        """The condition that a batch counts: it had finished at the instant."""
        return pl.col("finished_at") <= self.at_ms

    @cached_property
    def first(self) -> int:
        """The first recent batch; 0 if all batches are read.

        The recent batches are read only if one of them is in the first half of the recent time. Then each batch of the
        second half has the batch before it among them.
        """
        if self._recent_ms is None:
            return 0
        are_recent = pl.col("finished_at").is_between(utc(self.since_ms), utc(self.at_ms))
        recent = self.scan(BATCHES, where=[are_recent]).select("batch_id", "finished_at").collect()
        is_known = (recent["finished_at"] <= self.since_ms + self._recent_ms // 2).any()
        return recent["batch_id"].min() if is_known else 0  # type: ignore[return-value]

    @cached_property
    def newest(self) -> int:
        """The newest batch that counts; -1 without one."""
        newest = self.batches["batch_id"].max()
        return newest if isinstance(newest, int) else -1

    @cached_property
    def recent_batches(self) -> pl.DataFrame:
        """The recent batches, with those that finished after the instant."""
        rows = self.scan(BATCHES, where=[pl.col("batch_id") >= self.first])
        return rows.select(BATCH_COLUMNS).sort("batch_id").collect()

    @cached_property
    def batches(self) -> pl.DataFrame:
        """The recent batches that count, oldest first; empty only if no batch counts at all."""
        return self.recent_batches.filter(self._counts)

    @cached_property
    def every_batch(self) -> pl.DataFrame:
        """All batches that count, oldest first."""
        if not self.first:
            return self.batches
        rows = self.scan(BATCHES).select(BATCH_COLUMNS).filter(self._counts)
        return rows.sort("batch_id").collect()

    @property
    def first_finished_ms(self) -> int | None:
        """When the oldest batch finished, epoch ms; None without a batch."""
        return next(iter(self.every_batch["finished_at"].head(1)), None)

    def batches_from(self, first: int) -> pl.DataFrame:
        """Returns the batches from *first* on, and perhaps earlier ones, oldest first."""
        return self.batches if first >= self.first else self.every_batch

    def batches_of(self, batches: pl.Series) -> pl.DataFrame:
        """Returns *batches*, and perhaps others, with the columns of `batches`, oldest first."""
        return self.batches_from(self._first_of(batches))

    def _first_of(self, batches: pl.Series) -> int:
        """Returns the first of *batches*; if there are none, the number after the newest batch."""
        first = batches.min()
        return first if isinstance(first, int) else self.newest + 1
