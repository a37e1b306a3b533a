"""Keeps the state of a stream in files, so that a start reads no history.

What a batch moves lies in its journal entry (`moved/SHARD/…`). Where it is much, or has become much, it is written to
a run: a file with the states of the keys that moved, and the keys that are gone. Now and then one run has all states.
Runs never change. The entry of a batch names the runs, and the batch after which they are the state. A start reads
these, and the entries since; no table is read. Columns that the topology file has since added begin as null, and those
that it has left out are dropped. Runs that the newest entry does not name are removed.
"""

from __future__ import annotations

import sys
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import polars as pl
import pyarrow as pa

from tidemark.disk import UntilWritten, at_once
from tidemark.errors import Contradiction
from tidemark.place import put_once
from tidemark.spec.stream import Stream
from tidemark.stream.journal import MANY, Entry, Journal, packed, unpacked
from tidemark.stream.state import Memory, Moves, Tables

FORMAT = 2
MOVED = "moved/"
"""Prefix of the tables of a journal entry that its batch moved in a shard, whose number follows."""
MOST_RUNS = 64
"""A start reads no more files than these; then one run takes their place."""
WRITTEN = frozenset({".json", ".zip", ".partial"})
"""Suffixes below the folder `state`: names that `tidemark reshard` left, runs, and files that were never finished."""


class StateUnreadable(Contradiction):
    """Raised at a start when the state of a stream cannot be read; it names the file and the ways on."""


@dataclass(frozen=True)
class StateRun:
    """A file with so many states."""

    name: str
    rows: int


@dataclass(frozen=True)
class StateRuns:
    """The runs of a shard, oldest first, that are its state after batch `batch_id` (-1: there is none).

    `attempt` tells who has worked on the newest batch.
    """

    batch_id: int = -1
    runs: tuple[StateRun, ...] = ()
    attempt: str = ""

    @staticmethod
    def notes(shards: Sequence[StateRuns]) -> dict[str, Any]:
        """What the journal has of all *shards*."""
        return {"format": FORMAT, "shards": [asdict(runs) for runs in shards]}

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> list[StateRuns] | None:
        """By shard what the *notes* of a journal entry name; None where they name none, or are of another version."""
        noted = notes.get("state", {})
        if noted.get("format") != FORMAT:
            return None
        return [
            cls(of["batch_id"], tuple(StateRun(**run) for run in of["runs"]), of["attempt"]) for of in noted["shards"]
        ]


class StateFiles:
    """The runs of one shard of *stream*, of which there are so many *shards*; its control folder has them.

    The *journal* has what moved since. A run is written once `flush_keys` have moved, or `flush_batches` after the last
    one, if any key has. *check_lease* is called before each write, and *until_written* does it.
    """

    def __init__(
        self,
        stream: Stream,
        journal: Journal,
        shard: int = 0,
        shards: int = 1,
        *,
        check_lease: Callable[[], None] = lambda: None,
        until_written: UntilWritten = at_once,
    ) -> None:
        self._home = state_folder(stream.control, shards) / str(shard)
        self._journal, self._moved, self._topology = journal, f"{MOVED}{shard}/", stream.topology
        self._most_in_journal = min(stream.topology.flush_keys, MANY // shards if shards > 1 else sys.maxsize)
        self._check_lease, self._until_written = check_lease, until_written
        self.runs = StateRuns()
        self._known_to = -1

    def load(self, memory: Memory, runs: StateRuns, newest: int, *, but: Collection[str] = ()) -> None:
        """Have *memory* keep the state after the batch *newest*; raises StateUnreadable.

        *runs* are those that the entry of that batch names; of the operators *but* nothing is taken.
        """
        schemas = memory.schemas()
        wanted = {place: schema for place, schema in schemas.items() if place.rpartition("/")[2] not in but}
        for run in runs.runs:
            memory.put(_fitting(_read(self._home / run.name), wanted))
        memory.forget_moved()
        for moved in self._since(runs, newest):
            memory.put(_fitting(moved, wanted))
        memory.count_held()
        self.runs, self._known_to = runs, newest

    def _since(self, runs: StateRuns, newest: int) -> Iterator[Tables]:
        """What the batches after *runs* moved, up to the *newest*."""
        for batch_id in (n for n in self._journal.batches() if runs.batch_id < n <= newest):
            entry = self._journal.read(batch_id, only=self._moved)
            assert entry is not None
            yield {
                name.removeprefix(self._moved): pl.DataFrame(rows)
                for name, rows in entry.tables.items()
                if isinstance(rows, pa.Table)
            }

    def noted(self, memory: Memory, before: int, batch_id: int, moves: Moves) -> dict[str, pa.Table]:
        """What the entry of *batch_id* is to have of what the batch *moves*; writes a run where that is due.

        *memory* is the state after the batch *before*. `runs` is what the entry is to name.
        """
        older, keys, moved = self.runs, memory.moved_keys(), memory.tables(moves)
        runs = older
        rows = sum(frame.height for frame in moved.values())
        is_due = before > self._known_to or before - runs.batch_id >= self._topology.flush_batches
        if rows >= self._most_in_journal:
            runs = self._with_another(runs, memory, before, also=rows)
            runs = StateRuns(batch_id, (*runs.runs, self._written(batch_id, moved)))
            moved = {}
        elif is_due or keys >= self._topology.flush_keys or not keys:
            runs = self._with_another(runs, memory, before)
        self.runs, self._known_to = replace(runs, attempt=uuid.uuid4().hex), batch_id
        return {f"{self._moved}{name}": frame.to_arrow() for name, frame in moved.items() if frame.height}

    def with_another(self, runs: StateRuns, tables: Tables) -> StateRuns:
        """Return *runs* and one that has *tables*, which is written."""
        return replace(runs, runs=(*runs.runs, self._written(runs.batch_id, tables)))

    def taken(self, memory: Memory, batch_id: int) -> None:
        """*memory* has taken what the batch moved: if that is in a run, no other one will have it."""
        if self.runs.batch_id == batch_id:
            memory.forget_moved()

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


def remove_unnamed(control: Path, shards: Sequence[StateRuns], *, check_lease: Callable[[], None]) -> None:
    """Remove the runs in the folder *control* that the newest entry does not name, which names those of *shards*."""
    named = {*files_of(control, shards)}
    files = (file for file in (control / "state").rglob("*") if file.suffix in WRITTEN)
    unnamed = [file for file in files if file not in named]
    check_lease()  # after the files were seen: a driver that comes later has not written any of them
    for file in unnamed:
        file.unlink(missing_ok=True)


def files_of(control: Path, shards: Sequence[StateRuns]) -> list[Path]:
    """The files of *shards*, which are all of a stream with the folder *control*."""
    folder = state_folder(control, len(shards))
    return [folder / str(shard) / run.name for shard, runs in enumerate(shards) for run in runs.runs]


def is_whole(path: Path) -> bool:
    """Return whether the file with states at *path* is there, and was written to its end."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return zipfile.is_zipfile(file)


def state_folder(control: Path, shards: int) -> Path:
    """Where the runs of a stream in so many *shards* are, in its *control* folder."""
    return control / "state" / str(shards)


def _read(path: Path) -> Tables:
    try:
        tables = unpacked(-1, path.read_bytes()).tables
    except (OSError, BadZipFile, KeyError, ValueError, pa.ArrowException) as error:
        msg = (
            f"{path}: this file has states of the stream, and cannot be read: {error!r}; put the control folder and "
            "the tables back from a backup of one instant, or give the topology another `name`: under it, the stream "
            "begins anew"
        )
        raise StateUnreadable(msg) from error
    return {name: pl.DataFrame(rows) for name, rows in tables.items() if isinstance(rows, pa.Table)}


def _fitting(tables: Tables, schemas: Mapping[str, Mapping[str, pl.DataType]]) -> Tables:
    """Those of *tables* that are in *schemas*, with the columns that these have."""
    found = {name: rows for name, rows in tables.items() if name.removeprefix("gone/") in schemas}
    return {name: rows if name.startswith("gone/") else _as(schemas[name], rows) for name, rows in found.items()}


def _as(schema: Mapping[str, pl.DataType], rows: pl.DataFrame) -> pl.DataFrame:
    """*rows* with the columns of *schema*; null where there was none, or no value of that type."""
    if rows.schema == schema:
        return rows
    columns = {name: pl.col(name) if name in rows.columns else pl.lit(None) for name in schema}
    return rows.select(**{name: column.cast(schema[name], strict=False) for name, column in columns.items()})
