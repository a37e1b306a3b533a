"""Keeps the state of a stream in files.

A start therefore reads no history. The states that a batch moves lie in its journal entry (`moved/SHARD/…`). Where
there are many, or many have accumulated, they are written to a run: a file with the states of the keys that moved, and
the keys that are gone. A run replaces the runs before it that are no larger, so that each run is larger than all runs
after it. Runs never change. The entry of a batch names the runs, and the batch after which they are the state. A start
maps the runs into memory, and reads the entries since. Columns that the topology file has since added begin as null,
and columns that it has removed are dropped. Runs that the newest entry does not name are removed.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa

from tidemark.control.files import RESTORE
from tidemark.errors import UnreadableFile
from tidemark.kernels.records.arrivals import HELD_AS
from tidemark.selection import names_in, outside
from tidemark.storage.fence import NO_FENCE, Fence
from tidemark.storage.location import put_written
from tidemark.stream.journal.entries import MANY, Journal
from tidemark.stream.journal.state_runs import StateRun, StateRuns
from tidemark.stream.state.keyed_rows import PUT
from tidemark.stream.state.memory import HELD, Memory, Moves, Tables
from tidemark.stream.state.runs import SUFFIX, RunContent, SortedRun, forget_copies, open_run
from tidemark.stream.state.sorted_rows import RunMerge, SortedRows, fitted

MOVED = "moved/"
"""Prefix of an entry's tables with the states that the batch changed; the number of the shard follows."""
KEYS = {"stored": "key", "states": "_key", "waiting": HELD_AS}
"""The column with the text of a key, by kind of table (`memory.py` lists the kinds)."""
WRITTEN = frozenset({".json", SUFFIX, ".partial"})
"""Suffixes of the files below the folder `state`: what `tidemark reshard` left, runs, and unfinished files."""


class StateOwner(Protocol):
    """Whoever keeps states in files: a stream, or an operator of another query (`tidemark.api`)."""

    @property
    def control(self) -> Path:
        """The folder with the runs."""

    @property
    def flush_keys(self) -> int:
        """The number of moved keys after which a run is written."""

    @property
    def flush_batches(self) -> int:
        """The number of batches after which a run is written."""


class StateFiles:
    """Reads and writes the runs of one shard: files with its states.

    A run is written once `flush_keys` keys have changed, or `flush_batches` batches after the last run if any key has
    changed.

    Args:
        owner: the stream; its control folder has the runs.
        journal: its journal, whose entries have the states that changed since the newest run.
        shard: the number of the shard.
        shards: how many shards the owner has.
        fence: refuses a write where the lease is lost, and repeats one that a disk rejects.
    """

    def __init__(
        self,
        owner: StateOwner,
        journal: Journal,
        shard: int = 0,
        shards: int = 1,
        fence: Fence = NO_FENCE,
    ) -> None:
        self._home = state_folder(owner.control, shards) / str(shard)
        self._journal, self._moved, self._owner = journal, f"{MOVED}{shard}/", owner
        # An entry has the states of all shards, so each shard may add a part of MANY rows to it.
        self._most_in_journal = min(owner.flush_keys, MANY // shards if shards > 1 else sys.maxsize)
        self._fence = fence
        self.runs = StateRuns()
        self._loaded_to = -1
        self._opened: dict[str, SortedRun] = {}

    def load(self, memory: Memory, runs: StateRuns, newest: int) -> None:
        """Loads into *memory* the state after the batch *newest*.

        Args:
            memory: the states of the shard. What it has already is not read again.
            runs: the runs that the entry of the batch *newest* names.
            newest: the number of the batch.

        Raises:
            UnreadableFile: A run cannot be read.
        """
        since = self._loaded_to
        # The runs are read again if their list has changed, or if *memory* is older than they are, or newer than
        # *newest*.
        if (self.runs.batch_id, self.runs.runs) != (runs.batch_id, runs.runs) or not runs.batch_id <= since <= newest:
            if since > newest:  # the marks of hidden rows in the opened runs come from a later batch
                self._opened = {}
            self._open(memory, runs)
            since = runs.batch_id
        schemas = memory.schemas()
        for moved in self._since(since, newest):
            memory.put({name: fitted(schemas.get(name, rows.schema), rows) for name, rows in moved.items()})
        memory.held |= runs.held
        self.runs, self._loaded_to = runs, newest

    def _open(self, memory: Memory, runs: StateRuns) -> None:
        """Opens *runs* and replaces the states of *memory* by them."""
        names = names_in(runs.runs)
        keys = {table: kept.key for table, kept in memory.kept()}
        opened: dict[str, SortedRun] = {}
        for name in names:
            # A run never changes, so one that is mapped already is not read again.
            opened[name] = self._opened[name] if name in self._opened else _read(self._home / name, keys)
        self._opened = opened
        forget_copies(self._home, names)
        memory.replace_by([*self._opened.values()])

    def _since(self, since: int, newest: int) -> Iterator[Tables]:
        """Yields the changes of states by each batch after *since* up to *newest*."""
        batches = (number for number in self._journal.batches() if since < number <= newest)
        for batch_id in batches:
            entry = self._journal.read(batch_id, only=self._moved)
            assert entry is not None
            moved: Tables = {}
            for name, rows in entry.tables.items():
                if isinstance(rows, pa.Table):
                    moved[name.removeprefix(self._moved)] = pl.DataFrame(rows)
            yield moved

    def entry_states(
        self, memory: Memory, before: int, batch_id: int, moves: Moves
    ) -> tuple[dict[str, pa.Table], StateRuns]:
        """Returns the states that the entry of *batch_id* gets: the changed ones as tables, and the runs that it names.

        A run is written first if one is due. *memory* is not changed.

        Args:
            memory: the state after the batch *before*.
            before: the batch before.
            batch_id: the batch whose entry is prepared.
            moves: the changes by the batch.
        """
        runs, keys, moved = self.runs, memory.pending_n(), memory.tables(moves)
        rows = sum(frame.height for frame in moved.values())
        is_due = before > self._loaded_to or before - runs.batch_id >= self._owner.flush_batches
        # A batch that moves too many keys for a journal entry goes into a run itself.
        if rows >= self._most_in_journal:
            runs, moved = self._with_pending(runs, memory, batch_id, moved), {}
        elif is_due or keys >= self._owner.flush_keys or not keys:
            runs = self._with_pending(runs, memory, before, {})
        tables = {f"{self._moved}{name}": frame.to_arrow() for name, frame in moved.items() if frame.height}
        return tables, replace(runs, held={**memory.held, **moves.held})

    def advance(self, memory: Memory, runs: StateRuns, batch_id: int) -> None:
        """Records that *memory* has the state after *batch_id*, whose entry names *runs*.

        If the batch has written a run, the states are read from that from now on, so that memory is released.
        """
        if self.runs.runs == runs.runs:
            self.runs, self._loaded_to = runs, batch_id
        else:
            self.load(memory, runs, batch_id)

    def add_run(self, runs: StateRuns, tables: Tables) -> StateRuns:
        """Writes the states *tables*, by name in files, as the newest run, and returns *runs* with it."""
        merged: dict[str, RunMerge] = {}
        puts: dict[str, int] = {}
        others: Tables = {}
        held = dict(runs.held)
        for table, rows in tables.items():
            kind, _, operator = table.partition("/")
            if kind not in KEYS:
                others[table] = rows
                continue
            if kind == "waiting":
                # The keys of waiting records are numbers in the order in which they were held. The new run counts its
                # rows from 0, so its keys are counted anew as well.
                rows = rows.with_columns(pl.int_range(pl.len()).cast(pl.String).alias(HELD_AS))
            merged[table], puts[table] = _alone(rows, KEYS[kind]), rows.height
            if kind == "waiting":
                held[operator] = held.get(operator, 0) + rows.height
            # Only the tables `states/…` have the column HELD.
            if HELD in rows:
                held[operator] = held.get(operator, 0) + int(rows[HELD].sum())
        run = self._written(runs.batch_id, merged, puts, others)
        return replace(runs, runs=(*runs.runs, run), held=held)

    def _with_pending(self, runs: StateRuns, memory: Memory, batch_id: int, moved: Tables) -> StateRuns:
        """Writes a run with all states that no run has yet, and returns the runs, which then have all states.

        Args:
            runs: the runs so far.
            memory: the states; it is not changed.
            batch_id: the batch after which the result is the state.
            moved: changes that *memory* does not have yet and the run gets, too.
        """
        # Runs that are no larger than those after them are merged with the new one.
        pending, versions = memory.pending(moved), memory.new_versions(moved)
        rows = sum(map(len, pending.values())) + sum(frame.height for frame in versions.values())
        if not rows:
            return replace(runs, batch_id=batch_id)
        older, merging = [*runs.runs], list[SortedRun]()
        # Sizes that grow towards the oldest run bound the number of runs and how often a state is rewritten.
        while older and older[-1].rows <= rows:
            rows += older[-1].rows
            merging.insert(0, self._opened[older.pop().name])
        tables: dict[str, RunMerge] = {}
        puts: dict[str, int] = {}
        for table, kept in memory.kept():
            rows_put = kept.puts + _height(moved, table)
            # Records of most sources never wait.
            if not rows_put:
                continue
            newest = SortedRows.of(kept.key, pending[table].rows, pending[table].gone)
            merged = (*_tables(merging, table), newest)
            # Dropped keys only serve to hide rows of older runs.
            tables[table] = RunMerge(kept.stored_schema, merged, keeps_gone=bool(older))
            puts[table] = rows_put
        # Versions have no keys by which they could hide older ones: a run has only those that older runs lack.
        if not older:
            others = memory.all_versions(moved)
        else:
            others = {table: _append(merging, table, new) for table, new in versions.items()}
        return StateRuns(batch_id, (*older, self._written(batch_id, tables, puts, others)))

    def _written(
        self, batch_id: int, tables: Mapping[str, RunMerge], puts: Mapping[str, int], others: Tables
    ) -> StateRun:
        # The random part distinguishes runs of different attempts of one batch.
        name = f"{batch_id:020d}-{uuid.uuid4().hex}{SUFFIX}"
        writing = RunContent(name, tables, puts, others)
        self._home.mkdir(parents=True, exist_ok=True)
        self._fence.until_written(lambda: put_written(self._home / name, writing.write, check=self._fence.check_lease))
        return StateRun(name, writing.rows)


def remove_unnamed(control: Path, shards: Sequence[StateRuns], *, check_lease: Callable[[], None]) -> None:
    """Removes the runs below the folder *control* that are not among *shards*, those that the newest entry names."""
    named = {*files_of(control, shards)}
    # Folders of other numbers of shards are searched, too.
    files = (file for file in (control / "state").rglob("*") if file.suffix in WRITTEN)
    unnamed = outside(files, named)
    check_lease()  # after the files were seen: a driver that comes later has not written any of them
    for file in unnamed:
        file.unlink(missing_ok=True)


def files_of(control: Path, shards: Sequence[StateRuns]) -> list[Path]:
    """Returns the files of the runs of all *shards* of the stream with the folder *control*."""
    folder = state_folder(control, len(shards))
    files: list[Path] = []
    for shard, runs in enumerate(shards):
        files += [folder / str(shard) / run.name for run in runs.runs]
    return files


def state_folder(control: Path, shards: int) -> Path:
    """Returns the folder below *control* with the runs of a stream that has so many *shards*."""
    return control / "state" / str(shards)


def _read(path: Path, keys: Mapping[str, str]) -> SortedRun:
    try:
        return open_run(path, keys)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise UnreadableFile(path, f"with states of the stream: {error!r}", RESTORE) from error


def _alone(rows: pl.DataFrame, key: str) -> RunMerge:
    """Returns *rows* as a merge of one run, without dropped keys."""
    numbered = rows.with_row_index(PUT).cast({PUT: pl.Int64})
    run = SortedRows.of(key, numbered, pl.Series(dtype=pl.String))
    return RunMerge(numbered.schema, (run,), keeps_gone=False)


def _tables(runs: Sequence[SortedRun], table: str) -> tuple[SortedRows, ...]:
    return tuple(run.tables[table] for run in runs if table in run.tables)


def _append(runs: Sequence[SortedRun], table: str, newest: pl.DataFrame) -> pl.DataFrame:
    """Returns the versions that *runs* have in *table*, followed by the *newest* ones."""
    older = [fitted(newest.schema, run.others[table]) for run in runs if table in run.others]
    return pl.concat([*older, newest])


def _height(tables: Tables, table: str) -> int:
    return tables[table].height if table in tables else 0
