"""Opens tables and journals once for all queries of one page or command.

Purpose: SQL and frames of one page are about the same versions of the tables and the same entries of the journals.
How it works: a table is seen in the version that it had when it was first asked for, and with the facts that only the
journal of its stream had before that. A process keeps what it has read of a log and of a journal, so that later it
reads only newer commits and entries: their files never change.
Queries of the command line mostly open tables whose facts have all left the journal. Importing the code that reads
entries takes longer than such a query, so this module imports it where it is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from tidemark.storage.delta.snapshots import ReadLog, Snapshot, read_log
from tidemark.storage.object_path import ObjectPath
from tidemark.storage.warehouse import is_table
from tidemark.stream.journal.layout import FACTS_TABLES, journal_with_facts

if TYPE_CHECKING:
    import polars as pl

    from tidemark.stream.journal.entries import Entry, Journal
    from tidemark.stream.journal.unflushed import UnflushedRows

Kept = TypeVar("Kept")
LOGS, JOURNALS = 1_000, 100
"""The most logs and journals of which a process keeps what it read; the one that was not asked for longest goes first.

A log takes some 10 kB, and a journal the facts of about ten seconds.
"""


class _Keep(Generic[Kept]):
    """Keeps what was read at the *most* paths that were asked for last, for all threads of the process."""

    def __init__(self, most: int) -> None:
        self._most, self._kept, self._lock = most, OrderedDict[Path, Kept](), Lock()

    def get(self, path: Path) -> Kept | None:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
            return self._kept.get(path)

    def put(self, path: Path, read: Kept) -> None:
        with self._lock:
            self._kept[path] = read
            self._kept.move_to_end(path)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)


EntryFile = tuple[str, int, int]
"""Name, inode and time (ns) of an entry's file. A journal that was created again has other files of the same names."""
_LOGS, _ENTRIES = _Keep[ReadLog](LOGS), _Keep[Mapping[EntryFile, "Entry | None"]](JOURNALS)


def newest_snapshot(path: Path) -> Snapshot | None:
    """Returns what `snapshot_of` does, but reads only the commits that are newer than those this process knows."""
    if isinstance(path, ObjectPath):
        return None
    before = _LOGS.get(path)
    now = read_log(path, before)
    if now is not before and now.actions is not None:  # there may be no table
        _LOGS.put(path, now)
    return now.snapshot


class StoredTables:
    """The tables and journals of a warehouse, each as it was when it was first asked for."""

    def __init__(self) -> None:
        self._snapshots: dict[Path, Snapshot | None] = {}
        self._unflushed: dict[Path, UnflushedRows | None] = {}
        self._rows: dict[Path, pl.LazyFrame | None] = {}

    def snapshot(self, path: Path) -> Snapshot | None:
        """Returns the snapshot of the table at *path*, or None if only delta-rs can read it, or there is none."""
        # The journal is read before the table: facts that leave the journal in between are in the table then.
        self.unflushed(path)
        if path not in self._snapshots:
            self._snapshots[path] = newest_snapshot(path)
        return self._snapshots[path]

    def unflushed(self, path: Path) -> UnflushedRows | None:
        """Returns the facts that the stream which writes the table at *path* has only in its journal, or None."""
        home = path.parent
        if path.name not in FACTS_TABLES:
            return None
        if home not in self._unflushed:
            self._unflushed[home] = _unflushed_now(home)
        return self._unflushed[home]

    def scan(self, path: Path) -> pl.LazyFrame | None:
        """Returns all rows of the table at *path*, and those that only the journal has; None if there is no table."""
        if path not in self._rows:
            self._rows[path] = self._scan(path)
        return self._rows[path]

    def _scan(self, path: Path) -> pl.LazyFrame | None:
        unflushed, snapshot = self.unflushed(path), self.snapshot(path)
        if snapshot is None and not is_table(path):
            return None
        from deltalake.exceptions import TableNotFoundError

        from tidemark.stream.journal.unflushed import NOTHING_UNFLUSHED

        try:
            return (unflushed or NOTHING_UNFLUSHED).scan(path, snapshot)
        except TableNotFoundError:
            return None


def _unflushed_now(home: Path) -> UnflushedRows | None:
    """Returns the facts that the stream with its tables in *home* has only in its journal, or None."""
    journal = journal_with_facts(home, newest_snapshot)
    if journal is None:
        return None
    from tidemark.stream.journal.unflushed import readable, unflushed

    known, seen = _ENTRIES.get(journal) or {}, dict[EntryFile, "Entry | None"]()

    def read(entries: Journal, number: int, /, *, only: tuple[str, ...]) -> Entry | None:
        path = entries.path(number)
        if isinstance(path, ObjectPath):  # a request more, and it would tell less
            return readable(entries, number, only=only)
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        file = (path.name, status.st_ino, status.st_mtime_ns)
        seen[file] = known[file] if file in known else readable(entries, number, only=only)
        return seen[file]

    # A user who may not read the control folder gets nothing.
    with suppress(PermissionError):
        rows = unflushed(journal, read)
        _ENTRIES.put(journal, seen)
        return rows
    return None
