"""Keeps the states of one driver's operators in memory.

States change only after a batch has been committed. Nothing here is durable: `stream/state/files.py` writes the states
to files from time to time, and the journal has the changes of each batch since.

In files and in the journal each table of states has a name: `stored/OPERATOR` has the last update that was sent of each
key, `states/OPERATOR` other states by key (open windows, held updates), `waiting/SOURCE` the records that wait for
other partitions, and `versions/TABLE` the versions of a joined table. `gone/NAME` has the keys to drop from the table
NAME.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import polars as pl

from tidemark.kernels.records.arrivals import HELD_AS, held_schema
from tidemark.kernels.updates.emission import STORED
from tidemark.stream.state.keyed_rows import KeyedRows, PendingChanges
from tidemark.stream.state.runs import SortedRun
from tidemark.stream.state.sorted_rows import fitted

T = TypeVar("T")

HELD = "_held"
"""Boolean column of states: True if the newest update of the key has not been sent yet."""


@dataclass(frozen=True)
class WaitingMoves:
    """The changes by one batch to the records of a source that wait for other partitions (`max_drift`).

    Attributes:
        held: the records that wait from this batch on.
        released: the keys, in the column HELD_AS, of records that wait no longer.
        n: how many records wait after the batch.
    """

    held: pl.DataFrame
    released: pl.Series
    n: int


@dataclass
class Moves:
    """The changes to the memory by one batch, by operator where nothing else is said.

    Attributes:
        stored: updates that were sent last, to put.
        states: other states, to put.
        dropped: keys whose states are dropped; a key among them is not put.
        held: by operator or source, how many updates or records wait after the batch.
        versions: by joined table, the versions to add.
        waiting: by source, the changes to the records that wait.
    """

    stored: dict[str, pl.DataFrame] = field(default_factory=dict)
    states: dict[str, pl.DataFrame] = field(default_factory=dict)
    dropped: dict[str, pl.Series] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    versions: dict[str, pl.DataFrame] = field(default_factory=dict)
    waiting: dict[str, WaitingMoves] = field(default_factory=dict)


Tables = dict[str, pl.DataFrame]
"""States, or changes to them, by the name of their table in files."""


class Memory:
    """The states of one driver's operators between batches.

    Attributes:
        stored: by operator, the last update that was sent of each key.
        states: by operator, its other states.
        held: by operator or source, how many updates or records wait.
        versions: by joined table, its versions.
        waiting: by source, the records that were read too early and wait for other partitions (`max_drift`).
    """

    def __init__(self) -> None:
        self.stored: dict[str, KeyedRows] = {}
        self.states: dict[str, KeyedRows] = {}
        self.held: dict[str, int] = {}
        self.versions: dict[str, pl.DataFrame] = {}
        self.waiting: dict[str, KeyedRows] = {}
        self._new_versions: dict[str, pl.DataFrame] = {}

    def keep(self, operator: str, states: KeyedRows | None = None) -> None:
        """Makes room for the last sent update of each key of *operator*, and for its other *states* if it has some."""
        self.stored[operator] = KeyedRows(STORED)
        self.held[operator] = 0
        if states is not None:
            self.states[operator] = states

    def forget(self, operators: Collection[str]) -> None:
        """Removes everything of *operators* and sources with these names."""
        by_name: tuple[MutableMapping[str, Any], ...] = (self.stored, self.states, self.held, self.waiting)
        for states in (*by_name, self.versions, self._new_versions):
            for name in operators:
                states.pop(name, None)

    def keep_waiting(self, source: str, schema: Mapping[str, pl.DataType]) -> None:
        """Makes room for records of *source* that wait; *schema* has the columns of the source."""
        self.waiting[source] = KeyedRows(held_schema(schema), key=HELD_AS)

    def version(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Makes room for versions of the joined *table*, with the columns of *schema*."""
        self.versions[table] = self._new_versions[table] = pl.DataFrame(schema=dict(schema))

    def add_versions(self, table: str, rows: pl.DataFrame) -> None:
        """Adds the versions *rows* of the *table*."""
        self.versions[table] = pl.concat([self.versions[table], rows])
        self._new_versions[table] = pl.concat([self._new_versions[table], rows])

    def kept(self) -> Iterator[tuple[str, KeyedRows]]:
        """Yields the tables that have rows by key, each with its name in files."""
        yield from _by_table("stored", self.stored)
        yield from _by_table("states", self.states)
        yield from _by_table("waiting", self.waiting)

    def schemas(self) -> Mapping[str, Mapping[str, pl.DataType]]:
        """Returns the columns of all states and versions, by name in files."""
        schemas = {table: rows.schema for table, rows in self.kept()}
        for table, versions in _by_table("versions", self.versions):
            schemas[table] = dict(versions.schema)
        return schemas

    def replace_by(self, runs: Sequence[SortedRun]) -> None:
        """Replaces all states by those of *runs*, oldest first."""
        for table, kept in self.kept():
            files = [run.tables[table] for run in runs if table in run.tables]
            kept.replace_by(files, puts=max((run.puts.get(table, 0) for run in runs), default=0))
        for joined, rows in self.versions.items():
            written = [run.others[f"versions/{joined}"] for run in runs if f"versions/{joined}" in run.others]
            # The topology file may have other columns now than when a run was written.
            self.versions[joined] = pl.concat([rows.clear(), *(fitted(rows.schema, old) for old in written)])
        self.written()

    def pending_n(self) -> int:
        """Returns how many keys and versions moved since runs were written."""
        return sum(rows.pending_n for _, rows in self.kept()) + sum(map(len, self._new_versions.values()))

    def pending(self, moved: Tables) -> Mapping[str, PendingChanges]:
        """Returns, by table, the changed states that no sorted file has yet, with the changes *moved* counted in."""
        pending_rows = {}
        for table, kept in self.kept():
            # Keys are dropped before rows are put: a key that is in both stays.
            gone = moved.get(f"gone/{table}")
            pending_rows[table] = kept.pending(moved.get(table), None if gone is None else gone["key"])
        return pending_rows

    def new_versions(self, moved: Tables) -> Tables:
        """Returns the versions that no run has yet, and those *moved*."""
        return _with_moved(self._new_versions, moved)

    def all_versions(self, moved: Tables) -> Tables:
        """Returns all versions, with those that are *moved*."""
        return _with_moved(self.versions, moved)

    def written(self) -> None:
        """Records that runs have all versions of joined tables."""
        self._new_versions = {table: rows.clear() for table, rows in self.versions.items()}

    def whole(self) -> Tables:
        """Returns all states and versions."""
        return {table: kept.all() for table, kept in self.kept()} | dict(_by_table("versions", self.versions))

    def count_held(self) -> None:
        """Counts the updates that wait, after states of old shards were merged into this memory."""
        self.held |= {name: int(rows.all()[HELD].sum()) for name, rows in self.states.items()}

    def bytes(self) -> int:
        """Returns the bytes of the states in memory, as polars estimates them."""
        kept = sum(rows.bytes for _, rows in self.kept())
        return kept + sum(int(versions.estimated_size()) for versions in self.versions.values())

    def tables(self, moves: Moves) -> Tables:
        """Returns the changes *moves* as tables, by name in files."""
        gone: dict[str, pl.Series] = {}
        for name, keys in moves.dropped.items():
            gone[f"states/{name}"] = keys
            # An update that was sent on is needed only while its window has a state.
            if "window_end" in self.states[name].schema:
                gone[f"stored/{name}"] = keys
        put = {f"stored/{name}": rows for name, rows in moves.stored.items()}
        put |= {f"states/{name}": rows for name, rows in moves.states.items()}
        for name, waiting in moves.waiting.items():
            gone[f"waiting/{name}"] = waiting.released
            put[f"waiting/{name}"] = waiting.held.with_columns(_next_keys(self.waiting[name], waiting.held.height))
        changes = {f"gone/{table}": keys.unique().rename("key").to_frame() for table, keys in gone.items()}
        for table, kept in self.kept():
            if table in put:
                # Keys are dropped before rows are put, so none of the rows that are put may have a dropped key.
                dropped = gone.get(table, pl.Series(dtype=pl.String)).implode()
                changes[table] = put[table].select(*kept.schema).filter(~pl.col(kept.key).is_in(dropped))
        return changes | dict(_by_table("versions", moves.versions))

    def put(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Applies the changes *tables*, which are as `tables` returns them."""
        for table, kept in self.kept():
            if f"gone/{table}" in tables:
                kept.drop(tables[f"gone/{table}"]["key"])
            if table in tables:
                kept.put(tables[table])
        for name in self.versions:
            if f"versions/{name}" in tables:
                self.add_versions(name, tables[f"versions/{name}"])

    def apply(self, moves: Moves) -> None:
        """Applies the changes *moves* of a committed batch."""
        # These are the steps of a start from the journal, so that both end in the same state.
        self.put(self.tables(moves))
        self.held |= moves.held


def _by_table(kind: str, values: Mapping[str, T]) -> Iterator[tuple[str, T]]:
    return ((f"{kind}/{name}", value) for name, value in values.items())


def _next_keys(waiting: KeyedRows, n: int) -> pl.Series:
    """Returns the keys of the next *n* records that are held: consecutive numbers, as text."""
    return pl.int_range(waiting.puts, waiting.puts + n, eager=True).cast(pl.String).alias(HELD_AS)


def _with_moved(versions: Mapping[str, pl.DataFrame], moved: Tables) -> Tables:
    tables = dict(_by_table("versions", versions))
    for table in tables.keys() & moved.keys():
        tables[table] = pl.concat([tables[table], moved[table]])
    return tables
