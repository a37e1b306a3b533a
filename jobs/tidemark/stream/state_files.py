"""Keeps the state of a stream in files, so that a start reads no history.

What a batch moves lies in its journal entry (`moved/…`). Where it is much, or has become much, it is written to a run:
a file with the states of the keys that moved, and the keys that are gone. Now and then one run has all states. Runs
never change. The entry of a batch names the runs, and the batch after which they are the state. A start reads these,
and the entries since. If that cannot be read, or is of another version, the start reads the tables. Runs that no entry
names are removed with the next flush.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import polars as pl
import pyarrow as pa

from tidemark.disk import UntilWritten, at_once
from tidemark.place import put_once
from tidemark.stream.journal import Entry, Journal, packed, unpacked
from tidemark.stream.state import Memory, Moves, Tables

log = logging.getLogger(__name__)

FORMAT = 2
MOVED = "moved/"
"""Prefix of the tables of a journal entry that its batch moved."""
MOST_RUNS = 64
"""A start reads no more files than these; then one run takes their place."""


@dataclass(frozen=True)
class StateRun:
    """A file with so many states."""

    name: str
    rows: int


@dataclass(frozen=True)
class StateRuns:
    """The runs, oldest first, that are the state after batch `batch_id` (-1: there is none)."""

    batch_id: int = -1
    runs: tuple[StateRun, ...] = ()
    format: int = FORMAT

    @property
    def notes(self) -> dict[str, Any]:
        """What the journal has of it."""
        return asdict(self)

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> StateRuns | None:
        """The runs that the *notes* of a journal entry name; None where it names none, or is of another version."""
        noted = notes.get("state", {})
        if noted.get("format") != FORMAT:
            return None
        return cls(noted["batch_id"], tuple(StateRun(**run) for run in noted["runs"]))


class StateFiles:
    """The runs of one stream, in the folder *home*; the *journal* has what moved since.

    A run is written once *flush_keys* have moved, or *flush_batches* after the last one, if any key has.
    *check_lease* is called before each write, and *until_written* does it.
    """

    def __init__(
        self,
        home: Path,
        journal: Journal,
        *,
        flush_batches: int,
        flush_keys: int,
        check_lease: Callable[[], None] = lambda: None,
        until_written: UntilWritten = at_once,
    ) -> None:
        self._home, self._journal = home, journal
        self._flush_batches, self._flush_keys = flush_batches, flush_keys
        self._check_lease, self._until_written = check_lease, until_written
        self._runs = StateRuns()
        self._known_to = -1

    def load(self, memory: Memory, newest: Entry) -> int:
        """Fill the empty *memory* with the state after the *newest* entry; the batch after which it is that.

        That is an earlier one where executors worked on a batch, and -1 where it stayed empty.
        """
        runs = StateRuns.of(newest.notes)
        if runs is None:
            return -1
        try:
            tables = [_read(self._home / run.name) for run in runs.runs]
            since = [*self._since(runs, newest)]
            for each in (*tables, *since):
                _check(memory, each)
        except (OSError, BadZipFile, KeyError, ValueError, pa.ArrowException) as error:
            log.warning("%s: the state after batch %s is read from the tables: %r", self._home, runs.batch_id, error)
            return -1
        for each in tables:
            memory.put(each)
        memory.take_moved()
        for each in since:
            memory.put(each)
        memory.count_held()
        self._runs = runs
        self._known_to = newest.batch_id
        return self._known_to

    def _since(self, runs: StateRuns, newest: Entry) -> Iterator[Tables]:
        """What the batches after *runs* moved, up to that of the *newest* entry."""
        for batch_id in (n for n in self._journal.batches() if runs.batch_id < n <= newest.batch_id):
            entry = self._journal.read(batch_id)
            assert entry is not None
            yield {
                name.removeprefix(MOVED): pl.DataFrame(rows)
                for name, rows in entry.tables.items()
                if name.startswith(MOVED) and isinstance(rows, pa.Table)
            }

    def noted(self, entry: Entry, memory: Memory, before: int, moves: Moves) -> Entry:
        """*entry* with what its batch *moves*, and the runs that are the state before that; writes one where it is due.

        *memory* is the state after the batch *before* it.
        """
        older, keys, moved = self._runs, memory.moved_keys(), memory.tables(moves)
        runs = older
        rows = sum(frame.height for frame in moved.values())
        is_due = before > self._known_to or before - runs.batch_id >= self._flush_batches
        if rows >= self._flush_keys:
            runs = self._with_another(runs, memory, before, also=rows)
            runs = StateRuns(entry.batch_id, (*runs.runs, self._written(entry.batch_id, moved)))
            moved = {}
        elif is_due or keys >= self._flush_keys or not keys:
            runs = self._with_another(runs, memory, before)
        self._runs, self._known_to = runs, entry.batch_id
        if runs.runs != older.runs:
            self._remove_all_but({*runs.runs, *older.runs})
        tables = {f"{MOVED}{name}": frame.to_arrow() for name, frame in moved.items() if frame.height}
        return replace(entry, tables={**entry.tables, **tables}, notes={**entry.notes, "state": runs.notes})

    @property
    def needed_after(self) -> int:
        """The batch after which the journal has what moved since the newest run."""
        return self._runs.batch_id

    def taken(self, memory: Memory, batch_id: int) -> None:
        """*memory* has taken what the batch moved: if that is in a run, no other one will have it."""
        if self._runs.batch_id == batch_id:
            memory.take_moved()

    def _remove_all_but(self, named: Collection[StateRun]) -> None:
        """Remove every run that is not among those *named*: the newest entry there is names no other."""
        kept = {run.name for run in named}
        for file in self._home.iterdir():
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def _with_another(self, runs: StateRuns, memory: Memory, before: int, *, also: int = 0) -> StateRuns:
        """*runs* and what moved since, as *memory* has it after the batch *before*; *also* so many rows will come."""
        moved, older = memory.take_moved(), runs.runs
        rows = sum(frame.height for frame in moved.values())
        if older and (len(older) >= MOST_RUNS or sum(run.rows for run in older[1:]) + rows + also >= older[0].rows):
            return StateRuns(before, (self._written(before, memory.whole()),))
        return StateRuns(before, (*older, self._written(before, moved)) if rows else older)

    def _written(self, batch_id: int, tables: Tables) -> StateRun:
        run = StateRun(f"{batch_id:020d}-{uuid.uuid4().hex}.zip", sum(frame.height for frame in tables.values()))
        content = packed(Entry(batch_id, {name: frame.to_arrow() for name, frame in tables.items()}))
        self._home.mkdir(parents=True, exist_ok=True)
        self._until_written(lambda: put_once(self._home / run.name, content, check=self._check_lease))
        return run


def _read(path: Path) -> Tables:
    tables = unpacked(-1, path.read_bytes()).tables
    return {name: pl.DataFrame(rows) for name, rows in tables.items() if isinstance(rows, pa.Table)}


def _check(memory: Memory, tables: Tables) -> None:
    """Raises ValueError where *memory* keeps other columns by now than *tables* have."""
    wanted = {place: kept.schema for place, kept in memory.kept()}
    wanted |= {f"versions/{name}": dict(rows.schema) for name, rows in memory.versions.items()}
    for place, schema in wanted.items():
        if place in tables and dict(tables[place].schema) != schema:
            msg = f"{place} had the columns {dict(tables[place].schema)}, and has {schema} now"
            raise ValueError(msg)
