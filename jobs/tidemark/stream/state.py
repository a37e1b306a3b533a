"""What the operators of one driver keep between batches, in memory: moved only after a batch has been committed.

Nothing here is durable. `state_files.py` has it as of some batch, and `load.py` adds what later ones wrote to tables:
`changes` has what a table or an aggregate sent on last, the hop what a repartition did, and `operator_state` what an
operator keeps besides.
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


@dataclass(frozen=True)
class Moved:
    """The keys that moved, by what keeps them, and the versions that are new, by table."""

    keys: Mapping[str, pl.Series]
    versions: Mapping[str, pl.DataFrame]


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

    def moved_keys(self) -> int:
        """How many keys and versions moved since `take_moved`, some of them more than once."""
        return sum(rows.moved for _, rows in self.kept()) + sum(rows.height for rows in self._new_versions.values())

    def take_moved(self) -> Moved:
        """What moved since this was asked before."""
        moved = Moved({place: rows.take_moved() for place, rows in self.kept()}, self._new_versions)
        self._new_versions = {table: rows.clear() for table, rows in self._new_versions.items()}
        return moved

    def count_held(self) -> None:
        """Count anew which states wait, after they were read."""
        self.held |= {name: int(rows.all()[HELD].sum()) for name, rows in self.states.items()}

    def bytes(self) -> int:
        """What it takes, by the estimate of polars."""
        frames = [*self.versions.values(), *self.waiting.values()]
        kept = sum(rows.bytes() for rows in (*self.stored.values(), *self.states.values()))
        return kept + sum(int(frame.estimated_size()) for frame in frames)

    def take(self, moves: Moves) -> None:
        """Make *moves* what the next batch finds."""
        for name, rows in moves.stored.items():
            self.stored[name].put(rows)
        for name, rows in moves.states.items():
            self.states[name].put(rows)
        for name, keys in moves.dropped.items():
            self.states[name].drop(keys)
            if "window_end" in self.states[name].schema:
                self.stored[name].drop(keys)
        self.held |= moves.held
        self.waiting |= moves.waiting
        for name, rows in moves.versions.items():
            self.add_versions(name, rows)
