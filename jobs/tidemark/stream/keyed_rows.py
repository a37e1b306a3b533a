"""Rows by key, for millions of keys: in columns, found by a search in sorted arrays.

How it works: the rows of one `put` are a *run*, sorted by the hash of their keys. A key lives in one run at most; where
it is replaced or dropped, its old row is marked as dead. A run that is not much smaller than the one before is merged
with it, which leaves the dead rows out; so there are few runs, and few dead rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

GROWTH = 4
"""A run has more than so many times the rows of the one after it."""

_PUT = "_put"
"""A row's number in the order in which rows were put."""

Array = np.ndarray[tuple[int], np.dtype[Any]]


def hashes_of(values: pl.Series) -> Array:
    """A 64-bit number for each of *values*: itself for integers, the same for equal ones for all else."""
    return values.to_numpy() if values.dtype.is_integer() else values.hash().to_numpy()


class KeyedRows:
    """The newest row per key, with the columns of *schema*, one of which is *key*.

    Rows are found by the columns *by* too, which have no nulls.
    """

    def __init__(
        self,
        schema: Mapping[str, pl.DataType],
        *,
        key: str = "key",
        by: Sequence[str] = (),
        hashed: Callable[[pl.Series], Array] = hashes_of,
    ) -> None:
        self.schema = dict(schema)
        self.key, self._by, self._hashed = key, tuple(by), hashed
        self._runs: list[_Run] = []
        self._moved: list[pl.Series] = []
        self._puts = 0

    def __len__(self) -> int:
        """How many keys have a row."""
        return sum(run.living for run in self._runs)

    def bytes(self) -> int:
        """What the rows take, dead ones too, by the estimate of polars."""
        return sum(int(run.rows.estimated_size()) for run in self._runs)

    @property
    def moved(self) -> int:
        """How many keys were put or dropped since `take_moved`, some of them more than once."""
        return sum(map(len, self._moved))

    def take_moved(self) -> pl.Series:
        """The keys that were put or dropped since this was asked before, once each."""
        keys = pl.concat([pl.Series(dtype=pl.String), *self._moved]).unique()
        self.forget_moved()
        return keys

    def forget_moved(self) -> None:
        """Begin anew with what is told of moved keys."""
        self._moved = []

    def of(self, keys: pl.Series) -> pl.DataFrame:
        """The rows of those *keys* that have one, once each."""
        unique = keys.unique(maintain_order=True)
        parts = [run.rows[at].with_columns(_asked=asked) for run, at, asked in self._found(unique)]
        return self._frame(parts, "_asked")

    def all(self) -> pl.DataFrame:
        """Every row."""
        return self._frame([run.rows.filter(run.alive) for run in self._runs], _PUT)

    def up_to(self, column: str, value: int) -> pl.DataFrame:
        """The rows whose *column* is at most *value*, lowest first."""
        return self._frame([run.rows[run.up_to(column, value)] for run in self._runs], column, _PUT)

    def with_any(self, column: str, values: pl.Series) -> pl.DataFrame:
        """The rows whose *column* is one of *values*."""
        wanted = self._hashed(values.unique())
        rows = self._frame([run.rows[run.with_any(column, wanted)] for run in self._runs], _PUT)
        return rows.filter(pl.col(column).is_in(values.implode()))

    def put(self, rows: pl.DataFrame) -> None:
        """Take *rows* in place of older ones of the same key; of several the last counts."""
        newest = rows.select(*self.schema).unique(self.key, keep="last", maintain_order=True)
        if newest.is_empty():
            return
        self.drop(newest[self.key])
        self._runs.append(self._run(newest.with_row_index(_PUT, offset=self._puts).cast({_PUT: pl.Int64})))
        self._puts += newest.height
        while len(self._runs) > 1 and self._runs[-2].living <= GROWTH * self._runs[-1].living:
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(self._run(pl.concat([run.rows.filter(run.alive) for run in (older, newer)])))

    def drop(self, keys: Iterable[str]) -> None:
        """Forget the rows of *keys*."""
        asked = pl.Series(keys, dtype=pl.String)
        if len(asked):
            self._moved.append(asked)
        for run, at, _ in self._found(asked):
            run.alive[at] = False

    def _found(self, keys: pl.Series) -> Iterator[tuple[_Run, Array, Array]]:
        """Per run the places of those *keys* that live in it, and their places among *keys*."""
        if not self._runs:
            return
        hashes = self._hashed(keys)
        asked = np.argsort(hashes)  # neighbours are looked for one after the other
        for run in self._runs:
            if not len(asked):
                return
            at, found = run.find(keys[asked], hashes[asked])
            yield run, at[found], asked[found]
            asked = asked[~found]

    def _run(self, rows: pl.DataFrame) -> _Run:
        hashes = self._hashed(rows[self.key])
        order = np.argsort(hashes)
        in_order = rows[order]
        by = {column: self._hashed(in_order[column]) for column in self._by}
        return _Run(in_order, self.key, hashes[order], by)

    def _frame(self, parts: list[pl.DataFrame], *order: str) -> pl.DataFrame:
        if not parts:
            return pl.DataFrame(schema=self.schema)
        return pl.concat(parts).sort(order).select(*self.schema)


class _Run:
    """Rows in the order of the *hashes* of their keys; *by* has the hashes of other columns."""

    def __init__(self, rows: pl.DataFrame, key: str, hashes: Array, by: Mapping[str, Array]) -> None:
        self.rows, self._keys, self._hashes = rows, rows[key], hashes
        self.alive = np.ones(rows.height, dtype=bool)
        orders = {column: np.argsort(values, kind="stable") for column, values in by.items()}
        self._by = {column: (by[column][order], order) for column, order in orders.items()}

    @property
    def living(self) -> int:
        return int(self.alive.sum())

    def find(self, keys: pl.Series, hashes: Array) -> tuple[Array, Array]:
        """The place of each of *keys*, and whether it lives there."""
        last = len(self._hashes) - 1
        at = np.searchsorted(self._hashes, hashes)
        found = np.zeros(len(at), dtype=bool)
        open_ = np.flatnonzero(at <= last)
        while len(open_ := open_[self._hashes[at[open_]] == hashes[open_]]):
            here = at[open_]
            same = (self._keys[here] == keys[open_]).to_numpy() & self.alive[here]
            found[open_] = same
            open_ = open_[~same & (here < last)]  # another key may have the same hash
            at[open_] += 1
        return at, found

    def up_to(self, column: str, value: int) -> Array:
        """The places of the living rows whose *column*, of integers, is at most *value*."""
        values, order = self._by[column]
        return self._living(order[: np.searchsorted(values, value, side="right")])

    def with_any(self, column: str, hashes: Array) -> Array:
        """The places of the living rows whose *column* has one of *hashes*."""
        values, order = self._by[column]
        first, end = np.searchsorted(values, hashes), np.searchsorted(values, hashes, side="right")
        n = end - first
        return self._living(order[np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())])

    def _living(self, places: Array) -> Array:
        return places[self.alive[places]]
