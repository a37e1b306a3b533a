"""Moves facts (measurements and proofs) from the journal to their tables, those of many batches at once: a flush.

How it works: the journal entry of each batch has the facts of the batch before it. If a flush comes before the next
entry, it writes the newest facts to a file of their own first, so that no clock is read again. Then each table gets one
commit for all batches that it lacks, `batches` last. The transaction of the commit names the newest of these batches.
So if a flush is interrupted, the next one completes it; a driver starts with a flush.

Tables that nobody reads together with other tables (SELDOM) are committed in one of six flushes, and at least once a
minute.

If no batch follows for a while, a flush comes early. Until then the facts of the newest batch are in no file: checks
would wait for them, and pages would lack them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from threading import RLock

import polars as pl
import pyarrow as pa

from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.updates.facts import add_up
from tidemark.model.tables.catalog import BATCHES, LATENCY_MINUTES, OPERATOR_BATCHES, PARTITION_BATCHES
from tidemark.storage.delta.compactor import FACTS_EVERY, REPLACED_FOR_S, Compactor
from tidemark.storage.delta.tables import Committer
from tidemark.storage.fence import NO_FENCE, Fence
from tidemark.storage.files import File, Files, Rows, write_file
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.layout import table_of
from tidemark.stream.journal.notes import EntryNotes, FactsNotes
from tidemark.stream.journal.unflushed import FACTS, LEDGERS, ByBatch, unflushed

WHOLES = (OPERATOR_BATCHES.name, BATCHES.name)
"""Tables that are committed last, in this order.

`operator_batches` follows the proofs that it counts. `batches`, which names a batch, is the last of all.
"""

SELDOM_MS = 60_000
"""Longest time between commits of SELDOM tables, and shortest between flushes in an object store, where they cost."""
SELDOM = frozenset({LATENCY_MINUTES.name, PARTITION_BATCHES.name})
IN_ONE_OF = 6
NEWEST_MS = 12_000
"""Longest time for which the facts of the newest batch are in no file.

A check waits 15 s for them. With a batch every ten seconds they are in the next entry by then. In an object store they
wait for the next flush.
"""


class Flusher:
    """Keeps the facts of a stream's batches until its tables have them. Batches and a timer may flush at the same time.

    Args:
        home: the folder of the tables.
        journal: the folder of the journal.
        facts: the files of facts in it.
        committer: commits to tables.
        every_ms: the time between two flushes.
        fence: reports each finished step, and repeats a write that a disk rejects.

    Attributes:
        flushed: the newest batch up to which all tables have all facts, or -1 if there is none.
        newest_batches: per table, the newest batch that it has.
    """

    def __init__(
        self,
        home: Path,
        journal: Path,
        facts: Journal,
        committer: Committer,
        *,
        every_ms: int,
        fence: Fence = NO_FENCE,
    ) -> None:
        self._home, self._journal, self._facts, self._committer = home, journal, facts, committer
        is_costly = isinstance(home, ObjectPath)
        self._every_ms = max(every_ms, SELDOM_MS) if every_ms and is_costly else every_ms
        self._newest_ms = self._every_ms if is_costly else min(self._every_ms, NEWEST_MS)
        self._seldom_ms = min(IN_ONE_OF * self._every_ms, SELDOM_MS)
        self._fence = fence
        self._compactor = Compactor(committer, every=FACTS_EVERY, replaced_for_s=REPLACED_FOR_S)
        self._lock = RLock()
        self._waiting: dict[str, dict[int, Rows]] | None = None  # to be read from the journal
        self._last: Entry | None = None  # facts of the newest batch, which are in no file yet
        self._is_broken_off = True  # a flush was interrupted, or may have been by a driver before
        self._flushed_at_ms: int | None = None
        self._whole_at_ms = 0  # of the last flush with SELDOM tables
        self._taken_at_ms: int | None = None  # of `_last`, when a flush was asked for the first time since
        self._carried_out = -1
        self.flushed = -1
        self.newest_batches: dict[str, int] = {}

    def begin(self, newest: Entry | None, now_ms: int) -> None:
        """Begins after the *newest* entry of the journal, which is carried out by now. *now_ms* is the clock."""
        files = self._facts.newest()
        of_entry = newest.notes.facts.newest_batches if newest and newest.notes.facts else {}
        of_files = (files.notes.newest_batches if files else None) or {}
        for newest_batches in (of_entry, of_files):
            for name, batch_id in newest_batches.items():
                self.newest_batches[name] = max(batch_id, self.newest_batches.get(name, -1))
        self._flushed_at_ms = self._whole_at_ms = now_ms
        self._is_broken_off = newest is not None
        self._carried_out = newest.batch_id if newest else -1

    def has_facts_of(self, entry: Entry) -> bool:
        """Returns True if a file has the facts of the batch of *entry*, which then was carried out."""
        # Facts are measured only after all commits of the batch.
        return entry.batch_id in self._facts.batches()

    def with_facts(self, entry: Entry) -> Entry:
        """Returns *entry* with the facts of the batch before it, unless a file has these."""
        last = self._last
        # So each batch costs only one write to the journal.
        tables = {f"{FACTS}{name}": rows for name, rows in last.tables.items()} if last else {}
        notes = FactsNotes(
            batch_id=last.batch_id if last else None,
            flushed=self.flushed,
            newest_batches=dict(self.newest_batches),
        )
        return Entry(entry.batch_id, {**entry.tables, **tables}, replace(entry.notes, facts=notes))

    def take(self, entry: Entry, facts: Mapping[str, pa.Table]) -> None:
        """Keeps the *facts* of the batch of *entry*, which was carried out; earlier facts are in the journal."""
        with self._lock:
            # Before the first flush, and after a failed one, nothing is kept here: the next flush reads the journal.
            if self._waiting is not None:
                if self._last is not None:
                    self._wait(self._last.batch_id, self._last.tables)
                self._wait(entry.batch_id, {name: entry.tables[name] for name in LEDGERS if name in entry.tables})
            self._last, self._carried_out = Entry(entry.batch_id, facts), entry.batch_id
            self._taken_at_ms = None

    def committed(self, name: str, batch_id: int) -> None:
        """Records that the table *name* got a commit up to *batch_id*."""
        self.newest_batches[name] = batch_id

    def committed_with_batch(self, name: str, batch_id: int) -> None:
        """Records that facts called *name* were committed with the batch *batch_id*, and not by a flush."""
        self.committed(name, batch_id)
        with self._lock:
            # Two threads may commit to the table, and only flushes compact it.
            self._compactor.committed(self._home / table_of(name))

    def flush_if_due(self, now_ms: int) -> None:
        """Flushes if the last flush is `every_ms` ago at *now_ms*, or the newest batch NEWEST_MS.

        If the clock was set back since the last flush, this flushes, too.
        """
        with self._lock:
            if self._flushed_at_ms is None:
                return
            if self._taken_at_ms is None:
                self._taken_at_ms = now_ms
            is_waiting = self._last is not None and _is_due(self._taken_at_ms, self._newest_ms, now_ms)
            if is_waiting or _is_due(self._flushed_at_ms, self._every_ms, now_ms):
                self._flushed_at_ms = self._taken_at_ms = now_ms
                is_whole = _is_due(self._whole_at_ms, self._seldom_ms, now_ms)
                if is_whole:
                    self._whole_at_ms = now_ms
                self.flush(is_whole=is_whole)

    def flush(self, *, is_whole: bool = True) -> None:
        """Commits all facts of batches that were carried out.

        Tables in SELDOM are left out unless the flush *is_whole*. Before `begin` there are no facts.
        """
        with self._lock:
            if self._flushed_at_ms is None:
                return
            try:
                self._flush(is_whole=is_whole)
            except BaseException:
                # It is unknown which commits succeeded: the next flush reads the journal and the tables.
                self._waiting = None
                raise

    def _flush(self, *, is_whole: bool) -> None:
        if self._waiting is None:
            self._waiting = self._read()
        if self._is_broken_off:
            # The flush that was interrupted has to be completed before another file of facts is written.
            self._commit_all(self._waiting)
        if self._last is not None:
            self._write_last(self._last, is_whole=is_whole)
        self._is_broken_off = True
        self._commit_all({*self._waiting} - (frozenset() if is_whole else SELDOM))
        self._is_broken_off = False
        if compacted := self._compactor.compact():
            self._fence.reached(f"compacted {compacted.name}")

    def _write_last(self, last: Entry, *, is_whole: bool) -> None:
        """Writes the facts of the newest batch to a file, which also says which batches tables have after the flush."""
        assert self._waiting is not None
        self._wait(last.batch_id, last.tables)
        names = self._waiting.keys() - (frozenset() if is_whole else SELDOM)
        # The next start compares the tables with what is promised here (startup/evidence.py).
        promised = {name: max(self._waiting[name]) for name in names}
        notes = EntryNotes(newest_batches={**self.newest_batches, **promised}, is_whole=is_whole)
        self._facts.write(Entry(last.batch_id, last.tables, notes), needed_after=self.flushed)
        self._last = None
        self._fence.reached("measured")

    def _read(self) -> dict[str, dict[int, Rows]]:
        """Returns the rows in the journal that tables lack, of batches that were carried out, by table and batch."""
        in_journal = unflushed(self._journal)
        self.flushed = max(self.flushed, in_journal.flushed)
        waiting = {name: in_journal.of(self._home / name)[1] for name in in_journal.rows}
        rows_by_table = {}
        for name, by_batch in waiting.items():
            carried_out = {number: rows for number, rows in by_batch.items() if number <= self._carried_out}
            if carried_out:
                rows_by_table[name] = carried_out
        return rows_by_table

    def _wait(self, batch_id: int, tables: Mapping[str, Rows]) -> None:
        assert self._waiting is not None
        for name, rows in tables.items():
            if rows.num_rows:
                self._waiting.setdefault(name, {})[batch_id] = rows

    def _commit_all(self, names: Collection[str]) -> None:
        assert self._waiting is not None
        # Tables in WHOLES come last, so that a row of `batches` shows that all facts of its batch are there.
        for name in sorted(names, key=lambda name: (name in WHOLES and WHOLES.index(name) + 1, name)):
            self._commit(name, self._waiting[name])
            del self._waiting[name]
        # Facts in `_last` are in no file yet, so their batch cannot count as flushed.
        newest = self._carried_out if self._last is None else self._last.batch_id - 1
        before_waiting = min((min(rows) - 1 for rows in self._waiting.values()), default=newest)
        self.flushed = max(self.flushed, min(before_waiting, newest))

    def _commit(self, name: str, by_batch: ByBatch) -> None:
        path, newest = self._home / name, max(by_batch)
        self._committer.commit(path, self._one_batch(path, by_batch), newest)
        self.committed(name, newest)
        self._compactor.committed(path)
        self._fence.reached(f"committed {name}")

    def _one_batch(self, path: Path, by_batch: ByBatch) -> Rows:
        """Returns the rows of all batches together: as files if the rows of any batch are files."""
        files: list[File] = []
        others: list[pa.Table] = []
        for _, rows in sorted(by_batch.items()):
            if isinstance(rows, Files):
                files += rows.files
            else:
                others.append(rows)
        if not others:
            return Files(tuple(files))
        if len(others) == 1 and not files:
            return others[0]
        table = pa.concat_tables(others)
        if path.name == LATENCY_MINUTES.name:
            # Latencies of one minute are added up, so that the table gets one row for a window and an operator.
            table = rows_of(LATENCY_MINUTES, add_up(pl.DataFrame(table)))
        if files:
            written = self._fence.until_written(lambda: write_file(path, table, batch_id=max(by_batch)))
            return Files((*files, written))
        return table


def _is_due(since_ms: int, every_ms: int, now_ms: int) -> bool:
    """Returns True if *every_ms* have passed since *since_ms*."""
    # A clock that was set back would otherwise stop all flushes until it catches up.
    return not 0 <= now_ms - since_ms < every_ms
