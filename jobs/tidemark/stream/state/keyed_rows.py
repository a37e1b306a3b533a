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
"""A run has more than so many times the next run's rows."""

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

    *key* is the column of the key. Rows can also be looked up by the columns *by*, which have no nulls.
    """

    def __init__(self, schema: Mapping[str, pl.DataType], *, key: str = "key", by: Sequence[str] = ()) -> None:
        self.schema = dict(schema)
        self.key, self._by = key, tuple(by)
        self._files: tuple[SortedRows, ...] = ()
        self._clear(0)

    def _clear(self, puts: int) -> None:
        """Empties the memory; the next row gets the number *puts*."""
        self._runs: list[_HashedRows] = []
        self._gone = pl.Series(dtype=pl.String)
        self._puts = puts

    def __len__(self) -> int:
        """Returns the number of keys that have a row."""
        # A row in a file may be hidden by a newer one, so this looks at every row in files.
        return self._living + sum(len(self._of_file(number, rows.all())) for number, rows in enumerate(self._files))

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
            for places in np.array_split(rows.all(), len(rows.blocks) or 1):
                if len(self._of_file(number, places)):
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

    def rest_on(self, files: Iterable[SortedRows], *, puts: int) -> None:
        """Replaces all rows by those of *files*, oldest first.

        *puts* is how many rows were put before.
        """
        self._files = tuple(files)
        self._clear(puts)

    @property
    def pending_n(self) -> int:
        """Number of keys that were put or dropped since files were written."""
        return self._living + len(self._gone)

    def pending(self, rows: pl.DataFrame | None = None, gone: pl.Series | None = None) -> PendingChanges:
        """Returns the changes that no file has yet.

        The result is as if *gone* were dropped and then *rows* put; neither is done.
        """
        parts = [run.rows.filter(run.alive).select(*self.stored_schema) for run in self._runs]
        also = self._newest(pl.DataFrame(schema=self.schema) if rows is None else rows)
        dropped = pl.Series(dtype=pl.String) if gone is None else gone
        in_memory = pl.concat([pl.DataFrame(schema=self.stored_schema), *parts])
        over = pl.concat([also[self.key], dropped]).implode()
        kept = in_memory.filter(~pl.col(self.key).is_in(over)) if len(also) or len(dropped) else in_memory
        # Without files no older row can reappear, so dropped keys need no memory.
        all_gone = pl.concat([self._gone, dropped]).unique() if self._files else self._gone
        return PendingChanges(pl.concat([kept, also.select(*self.stored_schema)]).sort(PUT), all_gone)

    @property
    def puts(self) -> int:
        """Number of rows that were put so far."""
        return self._puts

    def of(self, keys: pl.Series) -> pl.DataFrame:
        """Returns the rows of *keys* in their order, once each, if any."""
        unique = keys.unique(maintain_order=True) if self._runs or self._files else keys.clear()
        hashes = hashes_of(unique)
        # Places in *unique* of keys that have no row yet, by hash: a binary search then reads memory in order.
        open_ = np.argsort(hashes)
        parts = []
        for run in self._runs:
            at, is_here = run.find(unique[open_], hashes[open_])
            parts.append(run.rows[at[is_here]].with_columns(_asked=open_[is_here]))
            open_ = open_[~is_here]
        if self._files and len(self._gone):
            open_ = open_[~unique[open_].is_in(self._gone.implode()).to_numpy()]
        # A newer file hides older ones: its rows come first, and keys gone from it are not searched further.
        for rows in reversed(self._files):
            rows_here, is_here = rows.rows_of(unique[open_], hashes[open_])
            if rows_here is not None:
                parts.append(fitted(self.stored_schema, rows_here).with_columns(_asked=open_[is_here]))
            open_ = open_[~is_here]
            if len(rows.gone):
                open_ = open_[~unique[open_].is_in(rows.gone.implode()).to_numpy()]
        return self._frame(parts, "_asked")

    def all(self) -> pl.DataFrame:
        """Returns every row, in the order in which rows were put."""
        return self._rows(SortedRows.all, _HashedRows.all, PUT)

    def _rows(
        self, in_file: Callable[[SortedRows], Array], in_memory: Callable[[_HashedRows], Array], *order: str
    ) -> pl.DataFrame:
        """Returns rows in the *order* of these columns.

        They are those at the places that *in_file* and *in_memory* return.
        """
        parts = [self._living_in(number, in_file(rows)) for number, rows in enumerate(self._files)]
        parts += [run.rows[in_memory(run)] for run in self._runs]
        return self._frame(parts, *order)

    def up_to(self, column: str, value: int) -> pl.DataFrame:
        """Returns the rows whose *column* is at most *value*, lowest first."""
        return self._rows(lambda rows: rows.up_to(column, value), lambda run: run.up_to(column, value), column, PUT)

    def with_any(self, column: str, values: pl.Series) -> pl.DataFrame:
        """Returns the rows whose *column* is one of *values*."""
        unique = values.unique()
        wanted = hashes_of(unique)
        rows = self._rows(lambda rows: rows.with_any(column, unique), lambda run: run.with_any(column, wanted), PUT)
        return rows.filter(pl.col(column).is_in(values.implode()))  # other values may have the same hash

    def put(self, rows: pl.DataFrame) -> None:
        """Puts *rows*, of each key the last, in place of older rows."""
        newest = self._newest(rows)
        if newest.is_empty():
            return
        self._kill(newest[self.key])
        self._runs.append(self._run(newest))
        self._puts += newest.height
        # Sizes grow geometrically, so a row is merged about log(n) times in its life.
        while len(self._runs) > 1 and self._runs[-2].living <= GROWTH * self._runs[-1].living:
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(self._run(pl.concat([run.rows.filter(run.alive) for run in (older, newer)])))

    def drop(self, keys: Iterable[str]) -> None:
        """Drops the rows of *keys*."""
        dropped = pl.Series(keys, dtype=pl.String)
        self._kill(dropped)
        if self._files and len(dropped):
            self._gone = pl.concat([self._gone, dropped]).unique()

    def _newest(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns the last row of each key with the next numbers."""
        newest = rows.select(*self.schema).unique(self.key, keep="last", maintain_order=True)
        return newest.with_row_index(PUT, offset=self._puts).cast({PUT: pl.Int64})

    def _kill(self, keys: pl.Series) -> None:
        """Marks the rows of *keys* in memory as dead."""
        for run, at, _ in self._matches(keys):
            run.alive[at] = False

    def _matches(self, keys: pl.Series) -> Iterator[tuple[_HashedRows, Array, Array]]:
        """Finds *keys* in memory.

        Yields:
            Per run, the places of the rows that live in it, and the places of their keys among *keys*.
        """
        if not self._runs or keys.is_empty():
            return
        hashes = hashes_of(keys)
        open_ = np.argsort(hashes)
        for run in self._runs:
            if not len(open_):
                return
            at, is_here = run.find(keys[open_], hashes[open_])
            yield run, at[is_here], open_[is_here]
            open_ = open_[~is_here]

    def _living_in(self, number: int, places: Array) -> pl.DataFrame:
        """Returns rows at *places* of a file that no newer row hides."""
        rows = self._files[number]
        return self._rows_at(rows, self._of_file(number, places))

    def _of_file(self, number: int, places: Array) -> Array:
        """Returns those *places* in a file that no newer row hides.

        The file with this *number* keeps in `hidden` which places are hidden.
        """
        if not len(places):
            return places
        rows = self._files[number]
        keys, hashes = rows.keys_at(places), rows.hashes[places]
        hidden = keys.is_in(self._gone.implode()).to_numpy()
        for _, _, matches in self._matches(keys):
            hidden[matches] = True
        for newer in self._files[number + 1 :]:
            hidden |= newer.has(keys, hashes)
        # A hidden row stays hidden: later look-ups leave it out.
        rows.hidden[places[hidden]] = True
        living: Array = places[~hidden]
        return living

    def _rows_at(self, rows: SortedRows, places: Array) -> pl.DataFrame:
        if not len(places):
            return pl.DataFrame(schema=self.stored_schema)
        return fitted(self.stored_schema, rows.take(places))

    def _run(self, rows: pl.DataFrame) -> _HashedRows:
        hashes = hashes_of(rows[self.key])
        order = np.argsort(hashes)
        in_order = rows[order]
        by = {column: hashes_of(in_order[column]) for column in self._by}
        return _HashedRows(in_order, self.key, hashes[order], by)

    def _frame(self, parts: list[pl.DataFrame], *order: str) -> pl.DataFrame:
        some = [rows.select(*self.schema, *{*order} - {*self.schema}) for rows in parts if rows.height]
        if not some:
            return pl.DataFrame(schema=self.schema)
        return pl.concat(some).sort(order).select(*self.schema)


class _HashedRows:
    """Rows in the order of the *hashes* of their keys.

    *by* has the hashes of other columns, by column.
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
            The place of each key, and True where its row lives there; elsewhere the place means nothing.
        """
        last = len(self._hashes) - 1
        at = np.searchsorted(self._hashes, hashes)
        is_here = np.zeros(len(at), dtype=bool)
        open_ = np.flatnonzero(at <= last)
        # Other keys, and dead rows of the same key, may have the same hash, so the search continues in the next row.
        while len(open_ := open_[self._hashes[at[open_]] == hashes[open_]]):
            here = at[open_]
            same = (self._keys[here] == keys[open_]).to_numpy() & self.alive[here]
            is_here[open_] = same
            open_ = open_[~same & (here < last)]
            at[open_] += 1
        return at, is_here

    def all(self) -> Array:
        """Returns the places of all living rows."""
        return np.flatnonzero(self.alive)

    def up_to(self, column: str, value: int) -> Array:
        """Returns places of living rows whose *column* is at most *value*.

        The column has integers.
        """
        values, order = self._by[column]
        return self._living(order[: np.searchsorted(values, value, side="right")])

    def with_any(self, column: str, hashes: Array) -> Array:
        """Returns places of living rows whose *column* has one of *hashes*."""
        values, order = self._by[column]
        first, end = np.searchsorted(values, hashes), np.searchsorted(values, hashes, side="right")
        n = end - first
        # All ranges from first until end, one after the other, without a loop.
        return self._living(order[np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())])

    def _living(self, places: Array) -> Array:
        return places[self.alive[places]]
