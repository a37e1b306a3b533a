"""What the operators of one driver keep between batches, in memory: moved only after a batch has been committed.

Nothing here is durable: `state_files.py` has it as of some batch, and the journal what later ones moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from tidemark.kernels.emission import STORED
from tidemark.stream.keyed_rows import KeyedRows

HELD = "_held"
"""Of a state row: that its newest update was not sent on yet."""


@dataclass
class Moves:
    """What one batch does to the memory, per operator: rows put, then keys dropped; `held` updates wait after it."""

    stored: dict[str, pl.DataFrame] = field(default_factory=dict)
    states: dict[str, pl.DataFrame] = field(default_factory=dict)
    dropped: dict[str, pl.Series] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    versions: dict[str, pl.DataFrame] = field(default_factory=dict)
    waiting: dict[str, pl.DataFrame] = field(default_factory=dict)


Tables = dict[str, pl.DataFrame]
"""What to put into a memory, by the names of `Memory.kept`, keys to drop before (`gone/…`), and versions to add."""


class Memory:
    """What was sent on last and other states per operator, and the versions of the tables that are joined.

    `waiting` are the records of each source that were read too early (`max_drift`).
    """

    def __init__(self) -> None:
        self.stored: dict[str, KeyedRows] = {}
        self.states: dict[str, KeyedRows] = {}
        self.held: dict[str, int] = {}
        self.versions: dict[str, pl.DataFrame] = {}
        self.waiting: dict[str, pl.DataFrame] = {}
        self._new_versions: dict[str, pl.DataFrame] = {}

    def keep(self, operator: str, states: KeyedRows | None = None) -> None:
        """Have *operator* keep the update of each key that it sent on last, and *states* besides."""
        self.stored[operator] = KeyedRows(STORED)
        self.held[operator] = 0
        if states is not None:
            self.states[operator] = states

    def version(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Have the *table* keep its versions for joins."""
        self.versions[table] = self._new_versions[table] = pl.DataFrame(schema=dict(schema))

    def add_versions(self, table: str, rows: pl.DataFrame) -> None:
        """Have the *table* keep the versions *rows*, too."""
        self.versions[table] = pl.concat([self.versions[table], rows])
        self._new_versions[table] = pl.concat([self._new_versions[table], rows])

    def kept(self) -> Iterator[tuple[str, KeyedRows]]:
        """All rows by key, under the names that files have for them."""
        yield from ((f"stored/{name}", rows) for name, rows in self.stored.items())
        yield from ((f"states/{name}", rows) for name, rows in self.states.items())

    def schemas(self) -> Mapping[str, Mapping[str, pl.DataType]]:
        """The columns of all that files have, by its name there."""
        versions = {f"versions/{name}": dict(rows.schema) for name, rows in self.versions.items()}
        return {place: rows.schema for place, rows in self.kept()} | versions

    def moved_keys(self) -> int:
        """How many keys and versions moved since `take_moved`, some of them more than once."""
        return sum(rows.moved for _, rows in self.kept()) + sum(rows.height for rows in self._new_versions.values())

    def take_moved(self) -> Tables:
        """What moved since this was asked before."""
        found = {f"versions/{name}": rows for name, rows in self._new_versions.items()}
        self._new_versions = {table: rows.clear() for table, rows in self._new_versions.items()}
        for place, kept in self.kept():
            keys = kept.take_moved()
            found[place] = kept.of(keys)
            found[f"gone/{place}"] = keys.filter(~keys.is_in(found[place][kept.key].implode())).to_frame("key")
        return found

    def forget_moved(self) -> None:
        """Forget what moved: a file has it."""
        self._new_versions = {table: rows.clear() for table, rows in self._new_versions.items()}
        for _, kept in self.kept():
            kept.forget_moved()

    def whole(self) -> Tables:
        """All that it has."""
        versions = {f"versions/{name}": rows for name, rows in self.versions.items()}
        return {place: kept.all() for place, kept in self.kept()} | versions

    def count_held(self) -> None:
        """Count anew which states wait, after they were read."""
        self.held |= {name: int(rows.all()[HELD].sum()) for name, rows in self.states.items()}

    def bytes(self) -> int:
        """What it takes, by the estimate of polars."""
        frames = [*self.versions.values(), *self.waiting.values()]
        kept = sum(rows.bytes() for rows in (*self.stored.values(), *self.states.values()))
        return kept + sum(int(frame.estimated_size()) for frame in frames)

    def tables(self, moves: Moves) -> Tables:
        """What *moves* put and drop."""
        gone = {f"states/{name}": keys for name, keys in moves.dropped.items()}
        windowed = [name for name in moves.dropped if "window_end" in self.states[name].schema]
        gone |= {f"stored/{name}": moves.dropped[name] for name in windowed}
        put = {f"stored/{name}": rows for name, rows in moves.stored.items()}
        put |= {f"states/{name}": rows for name, rows in moves.states.items()}
        found = {f"gone/{place}": keys.unique().rename("key").to_frame() for place, keys in gone.items()}
        for place, kept in self.kept():
            if place in put:
                dropped = gone.get(place, pl.Series(dtype=pl.String)).implode()
                found[place] = put[place].select(*kept.schema).filter(~pl.col(kept.key).is_in(dropped))
        return found | {f"versions/{name}": rows for name, rows in moves.versions.items()}

    def put(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Drop and put what *tables* say."""
        for place, kept in self.kept():
            if f"gone/{place}" in tables:
                kept.drop(tables[f"gone/{place}"]["key"])
            if place in tables:
                kept.put(tables[place])
        for name in self.versions:
            if f"versions/{name}" in tables:
                self.add_versions(name, tables[f"versions/{name}"])

    def take(self, moves: Moves) -> None:
        """Make *moves* what the next batch finds."""
        self.put(self.tables(moves))
        self.held |= moves.held
        self.waiting |= moves.waiting
