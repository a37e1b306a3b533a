"""Reads facts of a journal that are not in their tables.

No other module knows their place.

Purpose: a batch costs one journal entry and no commit for its facts. A driver moves them to their tables together
(`flushing.py`); readers of facts read the tables and these facts.

How it works: the rows of a batch's LEDGERS are in its own entry. The measurements of its commit are in the entry of the
next batch (FACTS), or in a file of their own, `<batch>.facts.zip`, if a flush came first. The newest commit of a
table has the numbers of the batches that are in it. Readers read the journal before they open a table: rows that were
removed from the journal are in the table by then.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.collecting import names_in
from tidemark.errors import UnreadableFile
from tidemark.model.tables.catalog import (
    COMPLETENESS,
    DEAD_LETTERS,
    SCHEMA_CHANGES,
    STATE_CHANGES,
    SUPPRESSED,
    TOPOLOGY_CHANGES,
)
from tidemark.storage.delta.datasets import frame_of, open_to_read
from tidemark.storage.delta.snapshots import Snapshot
from tidemark.storage.files import Rows, frames
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.place import FACTS_TABLES, journal_of, journal_with_facts, newest_batch

log = logging.getLogger(__name__)

LEDGERS = tuple(
    names_in(
        (
            STATE_CHANGES,
            SUPPRESSED,
            DEAD_LETTERS,
            COMPLETENESS,
            SCHEMA_CHANGES,
            TOPOLOGY_CHANGES,
        )
    )
)
"""Tables of facts whose rows are decided with the batch."""
FACTS = "facts/"
"""Prefix of the tables with measurements of the batch before.

They are tables of a journal entry.
"""
ByBatch = Mapping[int, Rows]


@dataclass(frozen=True)
class UnflushedRows:
    """The unflushed rows of each table and batch.

    They are of batches after `flushed`, the newest one that all tables are known to have.
    """

    flushed: int = -1
    rows: Mapping[str, ByBatch] = field(default_factory=dict)

    def of(self, path: Path, table: DeltaTable | Snapshot | None = None) -> tuple[int, ByBatch]:
        """Returns the newest batch of a table, and later rows.

        The rows are those of later batches. The *table* at *path* is used as it was opened, or else opened now. -1: it
        has no batch.
        """
        if path.name not in self.rows:
            return -1, {}
        newest = newest_batch(path, table or open_to_read(path))
        return newest, _after(newest, self.rows[path.name])

    def scan(self, path: Path, snapshot: Snapshot | None = None) -> pl.LazyFrame:
        """Returns all rows of the table at *path*, of which the *snapshot* may be at hand.

        They are its own, and those of later batches.
        """
        table = open_to_read(path, snapshot)
        own = frame_of(table)
        later = _after(newest_batch(path, table), self.rows.get(path.name, {}))
        return pl.concat([own, pl.DataFrame(as_table(later)).lazy()], how="diagonal_relaxed") if later else own


NOTHING_UNFLUSHED = UnflushedRows()


class ComingRows:
    """Reads the rows of the table *name* that come to a stream's journal, each entry once.

    The tables of the stream lie in *home*. Damaged entries are left out.
    """

    def __init__(self, home: Path, name: str) -> None:
        self._journal, self._only = journal_of(home), (name, f"{FACTS}{name}")
        self._read_to = {"data": -1, "facts": -1}

    def take(self) -> pa.Table | None:
        """Returns the rows of the entries that were written since the last call; None: there are none.

        They may be in the table meanwhile.
        """
        rows: list[Rows] = []
        # A user who may not read the control folder gets nothing.
        with suppress(PermissionError):
            for kind, read_to in self._read_to.items() if self._journal.is_dir() else ():
                journal = Journal(self._journal, kind)
                numbers = journal.batches()
                for number in numbers:
                    if number > read_to and (entry := readable(journal, number, only=self._only)):
                        rows += entry.tables.values()
                self._read_to[kind] = max(numbers, default=read_to)
        return as_table(dict(enumerate(rows))) if rows else None


def scan_facts(path: Path) -> pl.LazyFrame:
    """Returns the rows of the table of facts at *path*.

    Rows that only the journal has are included. Raises an error when there is no table, and UnreadableFile if an entry
    of the journal is damaged.
    """
    journal = journal_with_facts(path.parent)
    return (NOTHING_UNFLUSHED if journal is None else unflushed(journal)).scan(path)


class ReadsEntry(Protocol):
    """Reads an entry of a journal, of its tables only some."""

    def __call__(self, journal: Journal, number: int, /, *, only: tuple[str, ...]) -> Entry | None:
        """Returns the entry of the batch *number*; None: it is gone, or left out."""


def unflushed(journal: Path, read: ReadsEntry = Journal.read) -> UnflushedRows:
    """Returns what is unflushed in a *journal*, whose entries *read* reads.

    Raises UnreadableFile if an entry is damaged, unless *read* leaves it out.
    """
    only = (*FACTS_TABLES, *(f"{FACTS}{name}" for name in FACTS_TABLES))
    decided, measured = Journal(journal, "data"), Journal(journal, "facts")
    # The folder is listed before any table is opened: what is removed meanwhile is in its table by then.
    numbers = decided.batches()
    newest = read(decided, numbers[-1], only=only) if numbers else None
    if newest is None:
        return NOTHING_UNFLUSHED
    flushed = flushed_before(newest)
    rows_of_tables: dict[str, dict[int, Rows]] = defaultdict(dict)
    for number in numbers:
        if number <= flushed:
            continue
        entry = newest if number == newest.batch_id else read(decided, number, only=only)
        for name, batch_id, rows in _facts_in(entry) if entry else ():
            rows_of_tables[name][batch_id] = rows
    for number in measured.batches():
        if number <= flushed:
            continue
        entry = read(measured, number, only=only)
        for name, rows in entry.tables.items() if entry else ():
            rows_of_tables[name][number] = rows
    return UnflushedRows(flushed, {name: _after(flushed, rows) for name, rows in rows_of_tables.items()})


def _facts_in(entry: Entry) -> Iterator[tuple[str, int, Rows]]:
    """Yields table, batch and rows of all facts in a decided *entry*."""
    notes = entry.notes.facts
    for name, rows in entry.tables.items():
        if name in LEDGERS:
            yield name, entry.batch_id, rows
        elif name.startswith(FACTS) and notes is not None and notes.batch_id is not None:
            yield name.removeprefix(FACTS), notes.batch_id, rows


def flushed_before(entry: Entry) -> int:
    """Returns the newest batch that all tables had before *entry*."""
    assert entry.notes.facts is not None
    return entry.notes.facts.flushed


def as_frame(rows: Rows) -> pl.DataFrame:
    """Returns all of *rows* in memory."""
    return reduce(pl.DataFrame.vstack, frames(rows))


def as_table(by_batch: ByBatch) -> pa.Table:
    """Returns the rows of all batches, oldest first."""
    parts = (by_batch[number] for number in sorted(by_batch))
    tables = [rows if isinstance(rows, pa.Table) else as_frame(rows).to_arrow() for rows in parts]
    return pa.concat_tables(tables, promote_options="permissive")


def readable(journal: Journal, number: int, /, *, only: tuple[str, ...]) -> Entry | None:
    """Returns the entry of the batch *number*, only with some tables; None: it is gone, or damaged, which is logged."""
    try:
        return journal.read(number, only=only)
    except UnreadableFile as error:
        _warn_once(f"its facts are left out: {error}")
        return None


@lru_cache(maxsize=1_000)
def _warn_once(problem: str) -> None:
    # Pages and metrics look every few seconds.
    log.warning("%s", problem)


def _after(batch_id: int, rows: ByBatch) -> ByBatch:
    return {number: rows[number] for number in sorted(rows) if number > batch_id and rows[number].num_rows}
