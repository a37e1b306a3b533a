"""Keeps the state of a stream in files, so that a start does not read the history of its tables.

A state run is a file with the states of the keys that moved since the run before it, and the keys that are gone. Now
and then one run has all states. Runs never change. The journal entry of a batch names the runs, and the batch after
which they are the state. A start reads these, and from the tables only what later batches wrote. If a run cannot be
read, or is of another version, the start reads the tables whole. Runs that no entry names are removed with the next
flush.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import polars as pl
import pyarrow as pa

from tidemark.disk import UntilWritten, at_once
from tidemark.place import put_once
from tidemark.stream.journal import Entry, packed, unpacked
from tidemark.stream.keyed_rows import KeyedRows
from tidemark.stream.state import Memory

log = logging.getLogger(__name__)

FORMAT = 1
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
    def of(cls, notes: Mapping[str, Any]) -> StateRuns:
        """The runs that the *notes* of a journal entry name; none where that is of another version."""
        noted = notes.get("state", {})
        if noted.get("format") != FORMAT:
            return cls()
        return cls(noted["batch_id"], tuple(StateRun(**run) for run in noted["runs"]))


class StateFiles:
    """The runs of one stream, in the folder *home*.

    A run is written once *flush_keys* have moved, or *flush_batches* after the last one, if any key has.
    *check_lease* is called before each write, and *until_written* does it.
    """

    def __init__(
        self,
        home: Path,
        *,
        flush_batches: int,
        flush_keys: int,
        check_lease: Callable[[], None] = lambda: None,
        until_written: UntilWritten = at_once,
    ) -> None:
        self._home, self._flush_batches, self._flush_keys = home, flush_batches, flush_keys
        self._check_lease, self._until_written = check_lease, until_written
        self.runs = StateRuns()

    def load(self, memory: Memory, runs: StateRuns) -> int:
        """Fill the empty *memory* from *runs*; the batch after which it is that, -1 if it stayed empty."""
        if not runs.runs:
            return -1
        try:
            files = [_read(self._home / run.name) for run in runs.runs]
            parts = [part for tables in files for part in _checked(memory, tables)]
        except (OSError, BadZipFile, KeyError, ValueError, pa.ArrowException) as error:
            log.warning("%s: the state after batch %s is read from the tables: %r", self._home, runs.batch_id, error)
            return -1
        for kept, rows, gone in parts:
            kept.drop(gone)
            kept.put(rows)
        for name, schema in {name: rows.schema for name, rows in memory.versions.items()}.items():
            nothing = pl.DataFrame(schema=schema)
            memory.add_versions(name, pl.concat([tables.get(f"versions/{name}", nothing) for tables in files]))
        memory.count_held()
        memory.take_moved()
        self.runs = runs
        return runs.batch_id

    def flushed(self, memory: Memory, batch_id: int) -> StateRuns:
        """The runs that an entry is to name when *memory* is the state after *batch_id*; writes one where it is due."""
        keys = memory.moved_keys()
        since = batch_id - self.runs.batch_id
        if keys and (keys >= self._flush_keys or since >= self._flush_batches):
            self.runs = self._with_another(memory, batch_id)
        return self.runs

    def remove_all_but(self, named: Collection[StateRuns]) -> None:
        """Remove every run that is not among those *named*."""
        kept = {run.name for runs in named for run in runs.runs}
        for file in self._home.iterdir():
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def _with_another(self, memory: Memory, batch_id: int) -> StateRuns:
        moved = memory.take_moved()
        older = self.runs.runs
        grown = sum(run.rows for run in older[1:]) + sum(len(keys) for keys in moved.keys.values())
        is_whole = not older or len(older) >= MOST_RUNS or grown >= older[0].rows
        tables: dict[str, pl.DataFrame] = {}
        for place, kept in memory.kept():
            keys = None if is_whole else moved.keys[place]
            rows = kept.all() if keys is None else kept.of(keys)
            tables[place] = rows
            if keys is not None:
                tables[f"gone/{place}"] = keys.filter(~keys.is_in(rows[kept.key].implode())).to_frame("key")
        for name, versions in memory.versions.items():
            tables[f"versions/{name}"] = versions if is_whole else moved.versions[name]
        run = StateRun(f"{batch_id:020d}-{uuid.uuid4().hex}.zip", sum(frame.height for frame in tables.values()))
        content = packed(Entry(batch_id, {name: frame.to_arrow() for name, frame in tables.items()}))
        self._home.mkdir(parents=True, exist_ok=True)
        self._until_written(lambda: put_once(self._home / run.name, content, check=self._check_lease))
        return StateRuns(batch_id, (run,) if is_whole else (*older, run))


class _Part(NamedTuple):
    kept: KeyedRows
    rows: pl.DataFrame
    gone: pl.Series


def _read(path: Path) -> dict[str, pl.DataFrame]:
    tables = unpacked(-1, path.read_bytes()).tables
    return {name: pl.DataFrame(rows) for name, rows in tables.items() if isinstance(rows, pa.Table)}


def _checked(memory: Memory, tables: Mapping[str, pl.DataFrame]) -> Iterator[_Part]:
    """What the *tables* of a run have for what *memory* keeps; raises ValueError where that has other columns now."""
    wanted = {place: kept.schema for place, kept in memory.kept()}
    wanted |= {f"versions/{name}": dict(rows.schema) for name, rows in memory.versions.items()}
    for place, schema in wanted.items():
        if place in tables and dict(tables[place].schema) != schema:
            msg = f"{place} had the columns {dict(tables[place].schema)}, and has {schema} now"
            raise ValueError(msg)
    for place, kept in memory.kept():
        if place in tables:
            gone = tables.get(f"gone/{place}")
            yield _Part(kept, tables[place], pl.Series(dtype=pl.String) if gone is None else gone["key"])
