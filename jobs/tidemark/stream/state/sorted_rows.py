"""Keeps rows by key that never change.

The rows are in the order of the hashes of their keys. They are in blocks that may lie in a mapped file.
Purpose: find and take the rows of a batch's keys among millions, with none of the others in memory.
How it works: a search in the sorted hashes gives places, and rows are taken from the blocks that have them. Mapped
pages are read by the operating system when they are touched, and released when memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.stream.state.key_hashes import Array, hashes_of

BLOCK = 1 << 16
"""Rows of a block; the last block may have fewer."""


@dataclass(frozen=True)
class SortedRows:
    """Rows with a *key* each, in the order of *hashes*.

    *gone* are the keys that are gone from what is older. `hidden` marks rows that newer rows are known to replace; a
    mark is never removed.
    """

    key: str
    hashes: Array
    blocks: Sequence[pa.RecordBatch]
    gone: pl.Series
    hidden: Array = field(init=False)

    def __post_init__(self) -> None:
        # The dataclass is frozen, but the array that it holds may change.
        object.__setattr__(self, "hidden", np.zeros(len(self.hashes), dtype=bool))

    @classmethod
    def of(cls, key: str, rows: pl.DataFrame, gone: pl.Series) -> SortedRows:
        """Returns *rows*, one a *key*, sorted, with the keys that are *gone*."""
        hashes = hashes_of(rows[key])
        order = np.argsort(hashes, kind="stable")
        blocks = rows[order].to_arrow().combine_chunks().to_batches(max_chunksize=BLOCK)
        return cls(key, hashes[order], blocks, gone)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, keys: pl.Series, hashes: Array) -> tuple[Array, Array]:
        """Returns the place of each of *keys*, and whether it is there."""
        at = np.searchsorted(self.hashes, hashes)
        is_there = np.zeros(len(at), dtype=bool)
        open_ = np.flatnonzero(at < len(self))
        while len(open_ := open_[self.hashes[at[open_]] == hashes[open_]]):
            same = (self.keys_at(at[open_]) == keys[open_]).to_numpy()
            is_there[open_[same]] = True
            open_ = open_[~same]  # another key may have the same hash
            at[open_] += 1
            open_ = open_[at[open_] < len(self)]
        return at, is_there

    def rows_of(self, keys: pl.Series, hashes: Array) -> tuple[pl.DataFrame | None, Array]:
        """Returns the rows of *keys*, and whether each key has one.

        None instead of rows: no key has one.
        """
        at = np.searchsorted(self.hashes, hashes)
        is_there = np.zeros(len(at), dtype=bool)
        within = at < len(self)
        is_there[within] = self.hashes[at[within]] == hashes[within]
        rows = self.take(at[is_there]) if is_there.any() else None
        # Keys that differ rarely share a hash, so keys are compared once, after the search.
        if rows is not None and not bool((rows[self.key] == keys.filter(pl.Series(is_there))).all()):
            at, is_there = self.find(keys, hashes)  # another key has the same hash
            rows = self.take(at[is_there]) if is_there.any() else None
        return rows, is_there

    def has(self, keys: pl.Series, hashes: Array) -> Array:
        """Returns whether each of *keys* has a row here, or is gone."""
        _, is_there = self.find(keys, hashes)
        return is_there | keys.is_in(self.gone.implode()).to_numpy() if len(self.gone) else is_there

    def keys_at(self, places: Array) -> pl.Series:
        """Returns the keys at *places*."""
        return self.take(places, [self.key])[self.key]

    def take(self, places: Array, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns the rows at *places*, in the order of these.

        There is at least one place. *columns* are those to return (None: all).
        """
        blocks = self.blocks if columns is None else [block.select(columns) for block in self.blocks]
        # Blocks are taken in ascending order, each once, so that mapped pages are read in sequence.
        order = np.argsort(places, kind="stable")
        ascending = places[order]
        # A block has BLOCK rows, so the bounds of blocks follow from the places alone.
        bounds = np.searchsorted(ascending, np.arange(len(blocks) + 1) * BLOCK)
        parts: list[pa.RecordBatch] = []
        for number, (block, first, end) in enumerate(zip(blocks, bounds[:-1], bounds[1:], strict=True)):
            if end > first:
                parts.append(block.take(pa.array(ascending[first:end] - number * BLOCK)))
        rows = pl.DataFrame(pa.Table.from_batches(parts))
        return rows if np.array_equal(ascending, places) else rows[np.argsort(order)]

    def all(self) -> Array:
        """Returns all places of rows that are not known to be replaced."""
        return np.flatnonzero(~self.hidden)

    def up_to(self, column: str, value: int) -> Array:
        """Returns the places of rows whose *column* is at most *value*."""
        # Rows are sorted by their keys alone, so every row is looked at.
        return self._where([pc.less_equal(block[column], value) for block in self.blocks])

    def with_any(self, column: str, values: pl.Series) -> Array:
        """Returns places where *column* is one of *values*, from all rows."""
        wanted = pa.array(values.to_arrow())
        return self._where(
            [pc.is_in(block[column], value_set=wanted.cast(block[column].type)) for block in self.blocks]
        )

    def _where(self, chosen: Sequence[pa.Array]) -> Array:
        if not chosen:
            return np.empty(0, np.int64)
        # A comparison with null is null, which chooses nothing.
        is_chosen = np.concatenate([each.fill_null(fill_value=False).to_numpy(zero_copy_only=False) for each in chosen])
        return np.flatnonzero(is_chosen & ~self.hidden)


@dataclass(frozen=True)
class RunMerge:
    """The merge of several runs, whose newer rows hide older ones.

    Its blocks are made one after the other.
    """

    schema: Mapping[str, pl.DataType]
    runs: Sequence[SortedRows]
    keeps_gone: bool

    def gone(self) -> pl.Series:
        """Returns the keys that are gone from what is older still."""
        none = pl.Series(dtype=pl.String)
        return pl.concat([none, *(run.gone for run in self.runs)]).unique() if self.keeps_gone else none

    def sources(self) -> tuple[Array, Array, Array]:
        """Returns hashes in order, and the run and place of each."""
        alive = [np.flatnonzero(~self._hidden(number)) for number in range(len(self.runs))]
        hashes = np.concatenate([run.hashes[places] for run, places in zip(self.runs, alive, strict=True)])
        order = np.argsort(hashes, kind="stable")
        # Each run is larger than all after it, so there are few; a reshard adds one per old shard.
        source = np.repeat(np.arange(len(alive), dtype=np.uint16), [len(places) for places in alive])
        return hashes[order], source[order], np.concatenate(alive)[order]

    def blocks(self, source: Array, place: Array) -> Iterator[pa.RecordBatch]:
        """Yields the rows at each *place* of its *source*, in blocks."""
        for start in range(0, len(source), BLOCK):
            at = np.arange(start, min(start + BLOCK, len(source)))
            of_run = [at[source[at] == number] for number in range(len(self.runs))]
            parts: list[pl.DataFrame] = []
            for run, here in zip(self.runs, of_run, strict=True):
                if len(here):
                    parts.append(fitted(self.schema, run.take(place[here])))
            # Parts come run by run; this puts their rows back into the order of hashes.
            order = np.argsort(np.concatenate(of_run))
            yield from pl.concat(parts)[order].to_arrow().combine_chunks().to_batches()

    def _hidden(self, number: int) -> Array:
        """Returns which rows of the run *number* newer ones replace."""
        run = self.runs[number]
        hidden = run.hidden.copy()
        # Runs are oldest first.
        for newer in self.runs[number + 1 :]:
            for first, block in enumerate(newer.blocks):
                keys = pl.Series(block[newer.key])
                at, is_there = run.find(keys, newer.hashes[first * BLOCK : (first + 1) * BLOCK])
                hidden[at[is_there]] = True
            if len(newer.gone):
                at, is_there = run.find(newer.gone, hashes_of(newer.gone))
                hidden[at[is_there]] = True
        return hidden


def fitted(schema: Mapping[str, pl.DataType], rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the columns of *schema*."""
    if rows.schema == schema:
        return rows
    columns = {name: pl.col(name) if name in rows.columns else pl.lit(None) for name in schema}
    # A topology may have been changed since: a value is null where there was no column, or where it does not fit the
    # type.
    return rows.select(**{name: column.cast(schema[name], strict=False) for name, column in columns.items()})
