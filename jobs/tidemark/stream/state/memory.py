"""Keeps the states of one driver's operators in memory.

They move only after a batch has been committed. Nothing here is durable: `stream/state/files.py` has the states as of
some batch, and the journal those that later batches moved.
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
"""Column of a state row: its newest update was not sent."""


@dataclass(frozen=True)
class WaitingMoves:
    """What a batch changes in the records of a source that wait for other partitions.

    Attributes:
        held: the records that wait from this batch on.
        released: the keys of those that no longer wait.
        n: how many wait after the batch.
    """

    held: pl.DataFrame
    released: pl.Series
    n: int


@dataclass
class Moves:
    """The changes of the memory by one batch, per operator.

    Rows are put, then keys dropped; `held` updates wait after the batch. `waiting` is by source.
    """

    stored: dict[str, pl.DataFrame] = field(default_factory=dict)
    states: dict[str, pl.DataFrame] = field(default_factory=dict)
    dropped: dict[str, pl.Series] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    versions: dict[str, pl.DataFrame] = field(default_factory=dict)
    waiting: dict[str, WaitingMoves] = field(default_factory=dict)


Tables = dict[str, pl.DataFrame]
"""The changes of a memory, by place.

Places are the names of `Memory.kept`, keys to drop before (`gone/…`), and versions to add (`versions/…`).
"""


class Memory:
    """The states of one driver's operators between batches.

    They are the updates sent on last and other states per operator, and the versions of joined tables. `waiting` are
    the records of each source that were read too early (`max_drift`).
    """

    def __init__(self) -> None:
        self.stored: dict[str, KeyedRows] = {}
        self.states: dict[str, KeyedRows] = {}
        self.held: dict[str, int] = {}
        self.versions: dict[str, pl.DataFrame] = {}
        self.waiting: dict[str, KeyedRows] = {}
        self._new_versions: dict[str, pl.DataFrame] = {}

    def keep(self, operator: str, states: KeyedRows | None = None) -> None:
        """Keeps the last sent update of each key of *operator*, and *states*."""
        self.stored[operator] = KeyedRows(STORED)
        self.held[operator] = 0
        if states is not None:
            self.states[operator] = states

    def forget(self, operators: Collection[str]) -> None:
        """Keeps nothing of *operators*, or sources, any more."""
        kept: tuple[MutableMapping[str, Any], ...] = (self.stored, self.states, self.held, self.waiting)
        for of_operators in (*kept, self.versions, self._new_versions):
            for name in operators:
                of_operators.pop(name, None)

    def keep_waiting(self, source: str, schema: Mapping[str, pl.DataType]) -> None:
        """Keeps the records of *source* that wait; *schema* has its columns."""
        self.waiting[source] = KeyedRows(held_schema(schema), key=HELD_AS)

    def version(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Keeps versions of the *table* for joins."""
        self.versions[table] = self._new_versions[table] = pl.DataFrame(schema=dict(schema))

    def add_versions(self, table: str, rows: pl.DataFrame) -> None:
        """Adds the versions *rows* of the *table*."""
        self.versions[table] = pl.concat([self.versions[table], rows])
        self._new_versions[table] = pl.concat([self._new_versions[table], rows])

    def kept(self) -> Iterator[tuple[str, KeyedRows]]:
        """Yields all rows by key, with their names in files."""
        yield from _by_place("stored", self.stored)
        yield from _by_place("states", self.states)
        yield from _by_place("waiting", self.waiting)

    def schemas(self) -> Mapping[str, Mapping[str, pl.DataType]]:
        """Returns the columns of all states and versions, by name in files."""
        schemas = {place: rows.schema for place, rows in self.kept()}
        for place, versions in _by_place("versions", self.versions):
            schemas[place] = dict(versions.schema)
        return schemas

    def rest_on(self, runs: Sequence[SortedRun]) -> None:
        """Replaces all states by those of *runs*, oldest first."""
        for place, kept in self.kept():
            tables = [run.tables[place] for run in runs if place in run.tables]
            kept.rest_on(tables, puts=max((run.puts.get(place, 0) for run in runs), default=0))
        for table, rows in self.versions.items():
            own = [run.others[f"versions/{table}"] for run in runs if f"versions/{table}" in run.others]
            # The topology file may have other columns now than when a run was written.
            self.versions[table] = pl.concat([rows.clear(), *(fitted(rows.schema, each) for each in own)])
        self.written()

    def pending_n(self) -> int:
        """Returns how many keys and versions moved since runs were written."""
        return sum(rows.pending_n for _, rows in self.kept()) + sum(map(len, self._new_versions.values()))

    def pending(self, moved: Tables) -> Mapping[str, PendingChanges]:
        """Returns the states that no run has, as if *moved* were put."""
        pending_rows = {}
        for place, kept in self.kept():
            # Keys are dropped before rows are put: a key that is in both stays.
            gone = moved.get(f"gone/{place}")
            pending_rows[place] = kept.pending(moved.get(place), None if gone is None else gone["key"])
        return pending_rows

    def new_versions(self, moved: Tables) -> Tables:
        """Returns the versions that no run has yet, and those *moved*."""
        return _with_moved(self._new_versions, moved)

    def all_versions(self, moved: Tables) -> Tables:
        """Returns all versions, with those that are *moved*."""
        return _with_moved(self.versions, moved)

    def written(self) -> None:
        """Records that runs have all versions."""
        self._new_versions = {table: rows.clear() for table, rows in self.versions.items()}

    def whole(self) -> Tables:
        """Returns all states and versions."""
        return {place: kept.all() for place, kept in self.kept()} | dict(_by_place("versions", self.versions))

    def count_held(self) -> None:
        """Counts which states wait, after those of several shards were put together."""
        self.held |= {name: int(rows.all()[HELD].sum()) for name, rows in self.states.items()}

    def bytes(self) -> int:
        """Returns the bytes of the states in memory, as polars estimates them."""
        kept = sum(rows.bytes for _, rows in self.kept())
        return kept + sum(int(versions.estimated_size()) for versions in self.versions.values())

    def tables(self, moves: Moves) -> Tables:
        """Returns the changes of *moves*, by name in files."""
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
        changes = {f"gone/{place}": keys.unique().rename("key").to_frame() for place, keys in gone.items()}
        for place, kept in self.kept():
            if place in put:
                # Keys are dropped before rows are put, so rows of dropped keys must not be among the latter.
                dropped = gone.get(place, pl.Series(dtype=pl.String)).implode()
                changes[place] = put[place].select(*kept.schema).filter(~pl.col(kept.key).is_in(dropped))
        return changes | dict(_by_place("versions", moves.versions))

    def put(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Drops and puts the rows of *tables*."""
        for place, kept in self.kept():
            if f"gone/{place}" in tables:
                kept.drop(tables[f"gone/{place}"]["key"])
            if place in tables:
                kept.put(tables[place])
        for name in self.versions:
            if f"versions/{name}" in tables:
                self.add_versions(name, tables[f"versions/{name}"])

    def take(self, moves: Moves) -> None:
        """Applies *moves* for the next batch."""
        # By the same steps as a start from the journal, so that both end in the same state.
        self.put(self.tables(moves))
        self.held |= moves.held


def _by_place(kind: str, values: Mapping[str, T]) -> Iterator[tuple[str, T]]:
    return ((f"{kind}/{name}", value) for name, value in values.items())


def _next_keys(waiting: KeyedRows, n: int) -> pl.Series:
    """Returns the keys of the next *n* records of *waiting*: their numbers in the order of holding."""
    return pl.int_range(waiting.puts, waiting.puts + n, eager=True).cast(pl.String).alias(HELD_AS)


def _with_moved(versions: Mapping[str, pl.DataFrame], moved: Tables) -> Tables:
    tables = dict(_by_place("versions", versions))
    for place in tables.keys() & moved.keys():
        tables[place] = pl.concat([tables[place], moved[place]])
    return tables
