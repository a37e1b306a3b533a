"""Reads the facts (measurements and proofs) that are in a journal and not yet in their tables.

Purpose: a batch costs one journal entry and no commit for its facts. A driver moves the facts of many batches to their
tables together, in a flush (`flushing.py`). Whoever reads facts has to read the tables and the journal.

How it works: the tables that are decided with a batch (LEDGERS) are in its own entry. The measurements of its commit
are in the entry of the next batch (FACTS), or in a file of their own, `<batch>.facts.zip`, if a flush came first. The
newest transaction of a table tells which batches it has. Readers read the journal before they open a table: rows that
are removed from the journal meanwhile are in the table by then.
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

from tidemark.errors import UnreadableFile
from tidemark.model.tables.catalog import (
    COMPLETENESS,
    DEAD_LETTERS,
    SCHEMA_CHANGES,
    STATE_CHANGES,
    SUPPRESSED,
    TOPOLOGY_CHANGES,
)
from tidemark.selection import names_in
from tidemark.storage.delta.datasets import frame_of, open_to_read
from tidemark.storage.delta.snapshots import Snapshot
from tidemark.storage.files import Rows, frames
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.layout import FACTS_TABLES, journal_of, journal_with_facts, newest_batch

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
"""Prefix of an entry's tables with measurements of the batch before."""
ByBatch = Mapping[int, Rows]


@dataclass(frozen=True)
class UnflushedRows:
    """The rows that may not be in their tables yet, by table and batch.

    `flushed` is the newest batch that all tables are known to have: the rows are of later batches.
    """

    flushed: int = -1
    rows: Mapping[str, ByBatch] = field(default_factory=dict)

    def of(self, path: Path, table: DeltaTable | Snapshot | None = None) -> tuple[int, ByBatch]:
        """Returns the newest batch that the table at *path* has, and the rows of later batches.

        The batch is -1 if the table has none. *table* is the table if it is open already.
        """
        if path.name not in self.rows:
            return -1, {}
        newest = newest_batch(path, table or open_to_read(path))
        return newest, _after(newest, self.rows[path.name])

    def scan(self, path: Path, snapshot: Snapshot | None = None) -> pl.LazyFrame:
        """Returns the rows of the table at *path*, followed by those that it does not have yet.

        *snapshot* is the table if it is open already.
        """
        table = open_to_read(path, snapshot)
        flushed = frame_of(table)
        later = _after(newest_batch(path, table), self.rows.get(path.name, {}))
        return pl.concat([flushed, pl.DataFrame(as_table(later)).lazy()], how="diagonal_relaxed") if later else flushed


NOTHING_UNFLUSHED = UnflushedRows()


class ComingRows:
    """Follows the journal of the stream whose tables lie in *home*, and reads new rows of the table *name* once.

    Damaged entries are left out.
    """

    def __init__(self, home: Path, name: str) -> None:
        self._journal, self._only = journal_of(home), (name, f"{FACTS}{name}")
        self._read_to = {"data": -1, "facts": -1}

    def take(self) -> pa.Table | None:
        """Returns the rows of the entries that were written since the last call, or None if there are none.

        The rows may have been flushed to the table meanwhile.
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
    """Returns the rows of the table of facts at *path*, with those that only the journal has yet.

    Raises UnreadableFile if an entry of the journal is damaged, and an error of delta-rs if there is no table.
    """
    journal = journal_with_facts(path.parent)
    return (NOTHING_UNFLUSHED if journal is None else unflushed(journal)).scan(path)


class ReadsEntry(Protocol):
    """A function that reads an entry of a journal."""

    def __call__(self, journal: Journal, number: int, /, *, only: tuple[str, ...]) -> Entry | None:
        """Returns the entry of the batch *number* with the tables that begin with *only*; None if it is gone."""


def unflushed(journal: Path, read: ReadsEntry = Journal.read) -> UnflushedRows:
    """Returns the rows in a *journal* that may not be in their tables yet. Entries are read by *read*.

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
    in_order = (by_batch[number] for number in sorted(by_batch))
    tables = [rows if isinstance(rows, pa.Table) else as_frame(rows).to_arrow() for rows in in_order]
    return pa.concat_tables(tables, promote_options="permissive")


def readable(journal: Journal, number: int, /, *, only: tuple[str, ...]) -> Entry | None:
    """Returns the entry of the batch *number* with the tables that begin with *only*.

    The result is None if the entry is gone, or if it is damaged, which is logged.
    """
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
