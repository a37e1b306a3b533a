"""What the operators of one driver keep between batches, in memory: moved only after a batch has been committed.

Nothing here is durable. The `changes` table has what a table or an aggregate sent on last, the hop what a repartition
did, and `operator_state` what an operator keeps besides; `load.py` rebuilds this from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tidemark.kernels.emission import STORED


class KeyedRows:
    """The newest row per key, with the columns of *schema*, one of which is *key*.

    Rows are found by the columns *by* too.
    """

    def __init__(self, schema: Mapping[str, pl.DataType], *, key: str = "key", by: Sequence[str] = ()) -> None:
        self.schema = dict(schema)
        self._key = key
        self._rows: dict[str, tuple[Any, ...]] = {}
        self._columns = {column: list(schema).index(column) for column in by}
        self._keys_with: dict[str, dict[Any, dict[str, None]]] = {column: {} for column in by}

    def __len__(self) -> int:
        """How many keys have a row."""
        return len(self._rows)

    def of(self, keys: pl.Series) -> pl.DataFrame:
        """The rows of those *keys* that have one, once each."""
        return self._frame(keys.unique(maintain_order=True))

    def all(self) -> pl.DataFrame:
        """Every row."""
        return self._frame(self._rows)

    def up_to(self, column: str, value: int) -> pl.DataFrame:
        """The rows whose *column* is at most *value*, lowest first."""
        values = self._keys_with[column]
        return self.with_any(column, sorted(found for found in values if found <= value))

    def with_any(self, column: str, values: Iterable[Any]) -> pl.DataFrame:
        """The rows whose *column* is one of *values*."""
        return self._frame(key for value in values for key in self._keys_with[column].get(value, ()))

    def put(self, rows: pl.DataFrame) -> None:
        """Take *rows* in place of older ones of the same key; of several the last counts."""
        ordered = rows.select(*self.schema)
        if self._columns:
            self.drop(rows[self._key])
            ordered = ordered.unique(self._key, keep="last", maintain_order=True)
        self._rows.update(zip(ordered[self._key], ordered.iter_rows(), strict=True))
        for column in self._columns:
            for key, value in zip(ordered[self._key], ordered[column], strict=True):
                self._keys_with[column].setdefault(value, {})[key] = None

    def drop(self, keys: Iterable[str]) -> None:
        """Forget the rows of *keys*."""
        for key in keys:
            row = self._rows.pop(key, None)
            if row is None:
                continue
            for column, place in self._columns.items():
                keys_with = self._keys_with[column]
                del keys_with[row[place]][key]
                if not keys_with[row[place]]:
                    del keys_with[row[place]]

    def _frame(self, keys: Iterable[str]) -> pl.DataFrame:
        rows = [row for key in keys if (row := self._rows.get(key)) is not None]
        return pl.DataFrame(rows, schema=self.schema, orient="row")


@dataclass
class Moves:
    """What one batch does to the memory, per operator: rows put, then keys dropped; `held` updates wait after it."""

    stored: dict[str, pl.DataFrame] = field(default_factory=dict)
    states: dict[str, pl.DataFrame] = field(default_factory=dict)
    dropped: dict[str, pl.Series] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    versions: dict[str, pl.DataFrame] = field(default_factory=dict)
    waiting: dict[str, pl.DataFrame] = field(default_factory=dict)


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

    def keep(self, operator: str, states: KeyedRows | None = None) -> None:
        """Have *operator* keep the update of each key that it sent on last, and *states* besides."""
        self.stored[operator] = KeyedRows(STORED)
        self.held[operator] = 0
        if states is not None:
            self.states[operator] = states

    def version(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Have the *table* keep its versions for joins."""
        self.versions[table] = pl.DataFrame(schema=dict(schema))

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
            self.versions[name] = pl.concat([self.versions[name], rows])
