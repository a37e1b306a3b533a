"""Keeps the newest row of each of millions of keys, in columns.

How it works: rows are found by binary search in sorted arrays. Rows put lately are in memory. The rows of one `put` are
a *run*, sorted by the hash of their keys. A key has a living row in one run at most: when it is replaced or dropped,
its old row is marked dead. A run that is not much smaller than the run before is merged with it, and the merge leaves
out dead rows. So there are few runs and few dead rows.

Older rows may be in files, which are not loaded into memory. Newer rows hide older rows of the same key there. A
dropped key is kept in memory as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tidemark.stream.state.key_hashes import Array, hashes_of
from tidemark.stream.state.sorted_rows import SortedRows, fitted

GROWTH = 4
"""A run has more than GROWTH times as many rows as the run after it; otherwise the two are merged."""

PUT = "_put"
"""A row's number in the order in which rows were put."""


@dataclass(frozen=True)
class PendingChanges:
    """Changes that no file has yet.

    `rows` were put since; `gone` are keys that were dropped and may have rows in files. A key in both has its row.
    """

    rows: pl.DataFrame
    gone: pl.Series

    def __len__(self) -> int:
        return self.rows.height + len(self.gone)


class KeyedRows:
    """Keeps the newest row per key, with the columns of *schema*.

    *key* is the column of the key. The columns *by* are indexed, so that rows can also be found by their values; these
    columns have no nulls.
    """

    def __init__(self, schema: Mapping[str, pl.DataType], *, key: str = "key", by: Sequence[str] = ()) -> None:
        self.schema = dict(schema)
        self.key, self._by = key, tuple(by)
        self._files: tuple[SortedRows, ...] = ()
        self._clear(0)

    def _clear(self, puts: int) -> None:
        """Empties the memory, after *puts* rows were put: the next row gets this number."""
        self._runs: list[_HashedRows] = []
        self._gone = pl.Series(dtype=pl.String)
        self._puts = puts

    def __len__(self) -> int:
        """Returns the number of keys that have a row."""
        # A row in a file may be hidden by a newer one, so this looks at every row in files.
        return self._living + sum(len(self._not_hidden(number, rows.all())) for number, rows in enumerate(self._files))

    @property
    def _living(self) -> int:
        return sum(run.living for run in self._runs)

    @property
    def is_empty(self) -> bool:
        """True if no key has a row."""
        if self._living:
            return False
        # Files are searched block by block, the newest first, and only up to the first row that is not hidden.
        for number, rows in reversed([*enumerate(self._files)]):
            for positions in np.array_split(rows.all(), len(rows.blocks) or 1):
                if len(self._not_hidden(number, positions)):
                    return False
        return True

    @property
    def bytes(self) -> int:
        """Size of all rows in memory, dead ones too, estimated by polars."""
        return sum(int(run.rows.estimated_size()) for run in self._runs)

    @property
    def stored_schema(self) -> dict[str, pl.DataType]:
        """The columns of rows in files."""
        return {PUT: pl.Int64(), **self.schema}

    def replace_by(self, files: Iterable[SortedRows], *, puts: int) -> None:
        """Forgets all rows in memory and reads those of *files*, oldest first, from now on.

        *puts* is how many rows were ever put.
        """
        self._files = tuple(files)
        self._clear(puts)

    @property
    def pending_n(self) -> int:
        """Number of keys that were put or dropped since files were written."""
        return self._living + len(self._gone)

    def pending(self, rows: pl.DataFrame | None = None, gone: pl.Series | None = None) -> PendingChanges:
        """Returns the changes that no file has yet.

        The keys *gone* and the *rows* are counted in as if they had been dropped and then put, but nothing is changed.
        """
        alive_rows = [run.rows.filter(run.alive).select(*self.stored_schema) for run in self._runs]
        new = self._newest(pl.DataFrame(schema=self.schema) if rows is None else rows)
        dropped = pl.Series(dtype=pl.String) if gone is None else gone
        in_memory = pl.concat([pl.DataFrame(schema=self.stored_schema), *alive_rows])
        replaced = pl.concat([new[self.key], dropped]).implode()
        kept = in_memory.filter(~pl.col(self.key).is_in(replaced)) if len(new) or len(dropped) else in_memory
        # Without files no older row can reappear, so dropped keys need no memory.
        all_gone = pl.concat([self._gone, dropped]).unique() if self._files else self._gone
        return PendingChanges(pl.concat([kept, new.select(*self.stored_schema)]).sort(PUT), all_gone)

    @property
    def puts(self) -> int:
        """Number of rows that were put so far."""
        return self._puts

    def look_up(self, keys: pl.Series) -> pl.DataFrame:
        """Returns the rows of *keys*, in the order of the keys. A key that occurs twice gives one row."""
        unique = keys.unique(maintain_order=True) if self._runs or self._files else keys.clear()
        hashes = hashes_of(unique)
        # The positions in *unique* of keys whose row is not found yet. They are sorted by hash, so that the binary
        # search reads memory in order.
        unfound = np.argsort(hashes)
        parts = []
        for run in self._runs:
            positions, is_here = run.find(unique[unfound], hashes[unfound])
            parts.append(run.rows[positions[is_here]].with_columns(_asked=unfound[is_here]))
            unfound = unfound[~is_here]
        if self._files and len(self._gone):
            unfound = unfound[~unique[unfound].is_in(self._gone.implode()).to_numpy()]
        # A newer file hides older ones: its rows come first, and keys gone from it are not searched further.
        for rows in reversed(self._files):
            rows_here, is_here = rows.rows_of(unique[unfound], hashes[unfound])
            if rows_here is not None:
                parts.append(fitted(self.stored_schema, rows_here).with_columns(_asked=unfound[is_here]))
            unfound = unfound[~is_here]
            if len(rows.gone):
                unfound = unfound[~unique[unfound].is_in(rows.gone.implode()).to_numpy()]
        return self._sorted(parts, "_asked")

    def all(self) -> pl.DataFrame:
        """Returns every row, in the order in which rows were put."""
        return self._rows(SortedRows.all, _HashedRows.all, PUT)

    def _rows(
        self, in_file: Callable[[SortedRows], Array], in_memory: Callable[[_HashedRows], Array], *order: str
    ) -> pl.DataFrame:
        """Returns the rows that two searches find, sorted by the columns *order*.

        *in_file* searches the rows of a file, *in_memory* those of a run in memory. Both return positions.
        """
        found = [self._visible_rows(number, in_file(rows)) for number, rows in enumerate(self._files)]
        found += [run.rows[in_memory(run)] for run in self._runs]
        return self._sorted(found, *order)

    def where_at_most(self, column: str, value: int) -> pl.DataFrame:
        """Returns the rows whose *column* is at most *value*, lowest first."""
        return self._rows(
            lambda rows: rows.where_at_most(column, value), lambda run: run.where_at_most(column, value), column, PUT
        )

    def where_in(self, column: str, values: pl.Series) -> pl.DataFrame:
        """Returns the rows whose *column* is one of *values*."""
        unique = values.unique()
        wanted = hashes_of(unique)
        rows = self._rows(lambda rows: rows.where_in(column, unique), lambda run: run.where_in(column, wanted), PUT)
        return rows.filter(pl.col(column).is_in(values.implode()))  # other values may have the same hash

    def put(self, rows: pl.DataFrame) -> None:
        """Puts the last of *rows* for each key, and replaces the older row of the key."""
        newest = self._newest(rows)
        if newest.is_empty():
            return
        self._mark_dead(newest[self.key])
        self._runs.append(self._run(newest))
        self._puts += newest.height
        # Sizes grow geometrically, so a row is merged about log(n) times in its life.
        while len(self._runs) > 1 and self._runs[-2].living <= GROWTH * self._runs[-1].living:
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(self._run(pl.concat([run.rows.filter(run.alive) for run in (older, newer)])))

    def drop(self, keys: Iterable[str]) -> None:
        """Drops the rows of *keys*."""
        dropped = pl.Series(keys, dtype=pl.String)
        self._mark_dead(dropped)
        if self._files and len(dropped):
            self._gone = pl.concat([self._gone, dropped]).unique()

    def _newest(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns the last row of each key, numbered in PUT from the next number on."""
        newest = rows.select(*self.schema).unique(self.key, keep="last", maintain_order=True)
        return newest.with_row_index(PUT, offset=self._puts).cast({PUT: pl.Int64})

    def _mark_dead(self, keys: pl.Series) -> None:
        """Marks the rows of *keys* in memory as dead."""
        for run, positions, _ in self._matches(keys):
            run.alive[positions] = False

    def _matches(self, keys: pl.Series) -> Iterator[tuple[_HashedRows, Array, Array]]:
        """Finds *keys* in memory.

        Yields:
            A run with rows of *keys* that are alive, the positions of these rows in the run, and the positions of their
            keys among *keys*.
        """
        if not self._runs or keys.is_empty():
            return
        hashes = hashes_of(keys)
        unfound = np.argsort(hashes)
        for run in self._runs:
            if not len(unfound):
                return
            positions, is_here = run.find(keys[unfound], hashes[unfound])
            yield run, positions[is_here], unfound[is_here]
            unfound = unfound[~is_here]

    def _visible_rows(self, number: int, positions: Array) -> pl.DataFrame:
        """Returns those rows at *positions* of the file *number* that no newer row hides."""
        rows = self._files[number]
        return self._rows_at(rows, self._not_hidden(number, positions))

    def _not_hidden(self, number: int, positions: Array) -> Array:
        """Returns those *positions* of the file *number* whose rows no newer row hides.

        Rows that are found to be hidden are marked as `hidden` in the file's rows.
        """
        if not len(positions):
            return positions
        rows = self._files[number]
        keys, hashes = rows.keys_at(positions), rows.hashes[positions]
        hidden = keys.is_in(self._gone.implode()).to_numpy()
        for _, _, matches in self._matches(keys):
            hidden[matches] = True
        for newer in self._files[number + 1 :]:
            hidden |= newer.has(keys, hashes)
        # A hidden row stays hidden: later look-ups leave it out.
        rows.hidden[positions[hidden]] = True
        living: Array = positions[~hidden]
        return living

    def _rows_at(self, rows: SortedRows, positions: Array) -> pl.DataFrame:
        if not len(positions):
            return pl.DataFrame(schema=self.stored_schema)
        return fitted(self.stored_schema, rows.take(positions))

    def _run(self, rows: pl.DataFrame) -> _HashedRows:
        hashes = hashes_of(rows[self.key])
        order = np.argsort(hashes)
        in_order = rows[order]
        by = {column: hashes_of(in_order[column]) for column in self._by}
        return _HashedRows(in_order, self.key, hashes[order], by)

    def _sorted(self, frames: list[pl.DataFrame], *order: str) -> pl.DataFrame:
        filled = [rows.select(*self.schema, *{*order} - {*self.schema}) for rows in frames if rows.height]
        if not filled:
            return pl.DataFrame(schema=self.schema)
        return pl.concat(filled).sort(order).select(*self.schema)


class _HashedRows:
    """Rows in memory, sorted by the *hashes* of their keys.

    *key* is the column of the key. *by* has, for each indexed column, the hashes of its values.
    """

    def __init__(self, rows: pl.DataFrame, key: str, hashes: Array, by: Mapping[str, Array]) -> None:
        self.rows, self._keys, self._hashes = rows, rows[key], hashes
        self.alive = np.ones(rows.height, dtype=bool)
        orders = {column: np.argsort(values, kind="stable") for column, values in by.items()}
        self._by = {column: (by[column][order], order) for column, order in orders.items()}

    @property
    def living(self) -> int:
        return int(self.alive.sum())

    def find(self, keys: pl.Series, hashes: Array) -> tuple[Array, Array]:
        """Finds *keys*, whose hashes are *hashes*.

        Returns:
            The position of each key's row, and True where there is such a row, alive. Where there is none, the position
            means nothing.
        """
        last = len(self._hashes) - 1
        positions = np.searchsorted(self._hashes, hashes)
        is_here = np.zeros(len(positions), dtype=bool)
        unfound = np.flatnonzero(positions <= last)
        # Other keys, and dead rows of the same key, may have the same hash, so the search continues in the next row.
        while len(unfound := unfound[self._hashes[positions[unfound]] == hashes[unfound]]):
            here = positions[unfound]
            same = (self._keys[here] == keys[unfound]).to_numpy() & self.alive[here]
            is_here[unfound] = same
            unfound = unfound[~same & (here < last)]
            positions[unfound] += 1
        return positions, is_here

    def all(self) -> Array:
        """Returns the positions of all living rows."""
        return np.flatnonzero(self.alive)

    def where_at_most(self, column: str, value: int) -> Array:
        """Returns positions of living rows whose *column* is at most *value*.

        The column has integers.
        """
        values, order = self._by[column]
        return self._living(order[: np.searchsorted(values, value, side="right")])

    def where_in(self, column: str, hashes: Array) -> Array:
        """Returns positions of living rows whose *column* has one of *hashes*."""
        values, order = self._by[column]
        first, end = np.searchsorted(values, hashes), np.searchsorted(values, hashes, side="right")
        n = end - first
        # This is the concatenation of range(first, end) for all values, without a loop.
        return self._living(order[np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())])

    def _living(self, positions: Array) -> Array:
        return positions[self.alive[positions]]
