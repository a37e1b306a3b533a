"""Keeps rows by key that never change.

The rows are sorted by the hashes of their keys and cut into blocks, which may lie in a file that is mapped into memory.
Purpose: find and take the rows of a batch's keys among millions, with none of the others in memory.
How it works: a search in the sorted hashes gives positions, and rows are taken from the blocks that have them. Mapped
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
    """Rows with one row per key, sorted by the hashes of their keys.

    Attributes:
        key: the column of the key.
        hashes: the hash of each row's key, ascending.
        blocks: the rows, BLOCK of them in each block.
        gone: keys that were dropped: their rows in older runs count no more.
        hidden: True for each row that a newer run is known to replace. A mark is never removed.
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
        """Sorts *rows*, which have one row for each value of the column *key*; *gone* are the dropped keys."""
        hashes = hashes_of(rows[key])
        order = np.argsort(hashes, kind="stable")
        blocks = rows[order].to_arrow().combine_chunks().to_batches(max_chunksize=BLOCK)
        return cls(key, hashes[order], blocks, gone)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, keys: pl.Series, hashes: Array) -> tuple[Array, Array]:
        """Returns the position of each of *keys*, whose hashes are *hashes*, and whether the key is really there."""
        positions = np.searchsorted(self.hashes, hashes)
        is_there = np.zeros(len(positions), dtype=bool)
        unfound = np.flatnonzero(positions < len(self))
        while len(unfound := unfound[self.hashes[positions[unfound]] == hashes[unfound]]):
            same = (self.keys_at(positions[unfound]) == keys[unfound]).to_numpy()
            is_there[unfound[same]] = True
            unfound = unfound[~same]  # another key may have the same hash
            positions[unfound] += 1
            unfound = unfound[positions[unfound] < len(self)]
        return positions, is_there

    def rows_of(self, keys: pl.Series, hashes: Array) -> tuple[pl.DataFrame | None, Array]:
        """Returns the rows of *keys*, whose hashes are *hashes*, and whether each key has a row.

        The rows are None where no key has one.
        """
        positions = np.searchsorted(self.hashes, hashes)
        is_there = np.zeros(len(positions), dtype=bool)
        within = positions < len(self)
        is_there[within] = self.hashes[positions[within]] == hashes[within]
        rows = self.take(positions[is_there]) if is_there.any() else None
        # Keys that differ rarely share a hash, so keys are compared once, after the search.
        if rows is not None and not bool((rows[self.key] == keys.filter(pl.Series(is_there))).all()):
            positions, is_there = self.find(keys, hashes)  # another key has the same hash
            rows = self.take(positions[is_there]) if is_there.any() else None
        return rows, is_there

    def has(self, keys: pl.Series, hashes: Array) -> Array:
        """Returns whether each of *keys* has a row here, or is gone."""
        _, is_there = self.find(keys, hashes)
        return is_there | keys.is_in(self.gone.implode()).to_numpy() if len(self.gone) else is_there

    def keys_at(self, positions: Array) -> pl.Series:
        """Returns the keys at *positions*."""
        return self.take(positions, [self.key])[self.key]

    def take(self, positions: Array, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns the rows at *positions*, in the order of the positions, of which there is at least one.

        Only *columns* are read, or all columns if it is None.
        """
        blocks = self.blocks if columns is None else [block.select(columns) for block in self.blocks]
        # Blocks are taken in ascending order, each once, so that mapped pages are read in sequence.
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        # A block has BLOCK rows, so the bounds of blocks follow from the positions alone.
        bounds = np.searchsorted(ascending, np.arange(len(blocks) + 1) * BLOCK)
        taken: list[pa.RecordBatch] = []
        for number, (block, first, end) in enumerate(zip(blocks, bounds[:-1], bounds[1:], strict=True)):
            if end > first:
                taken.append(block.take(pa.array(ascending[first:end] - number * BLOCK)))
        rows = pl.DataFrame(pa.Table.from_batches(taken))
        return rows if np.array_equal(ascending, positions) else rows[np.argsort(order)]

    def all(self) -> Array:
        """Returns the positions of all rows that no newer run is known to replace."""
        return np.flatnonzero(~self.hidden)

    def where_at_most(self, column: str, value: int) -> Array:
        """Returns the positions of rows whose *column* is at most *value*."""
        # Rows are sorted by their keys alone, so every row is looked at.
        return self._where([pc.less_equal(block[column], value) for block in self.blocks])

    def where_in(self, column: str, values: pl.Series) -> Array:
        """Returns the positions of rows whose *column* is one of *values*."""
        # This looks at every row, too.
        wanted = pa.array(values.to_arrow())
        return self._where(
            [pc.is_in(block[column], value_set=wanted.cast(block[column].type)) for block in self.blocks]
        )

    def _where(self, matches: Sequence[pa.Array]) -> Array:
        """Returns the positions of rows that are not hidden and for which *matches*, one mask a block, is true."""
        if not matches:
            return np.empty(0, np.int64)
        # A comparison with null is null, which is no match.
        masks = [mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False) for mask in matches]
        return np.flatnonzero(np.concatenate(masks) & ~self.hidden)


@dataclass(frozen=True)
class RunMerge:
    """The merge of runs into one run, made block by block.

    Attributes:
        schema: the columns of the merged rows.
        runs: the runs, oldest first. A row of a newer run replaces the row of the same key in older ones.
        keeps_gone: True if the merged run remembers dropped keys, because older runs may still have rows of them.
    """

    schema: Mapping[str, pl.DataType]
    runs: Sequence[SortedRows]
    keeps_gone: bool

    def gone(self) -> pl.Series:
        """Returns the dropped keys that the merged run remembers."""
        none = pl.Series(dtype=pl.String)
        return pl.concat([none, *(run.gone for run in self.runs)]).unique() if self.keeps_gone else none

    def sources(self) -> tuple[Array, Array, Array]:
        """Returns the hashes of the merged rows, ascending, and for each row the number of its run and its position."""
        alive = [np.flatnonzero(~self._hidden(number)) for number in range(len(self.runs))]
        hashes = np.concatenate([run.hashes[positions] for run, positions in zip(self.runs, alive, strict=True)])
        order = np.argsort(hashes, kind="stable")
        # Each run is larger than all after it, so there are few; a reshard adds one per old shard.
        source = np.repeat(np.arange(len(alive), dtype=np.uint16), [len(positions) for positions in alive])
        return hashes[order], source[order], np.concatenate(alive)[order]

    def blocks(self, source: Array, position: Array) -> Iterator[pa.RecordBatch]:
        """Yields the merged rows in blocks; *source* and *position* are as `sources` returns them."""
        for start in range(0, len(source), BLOCK):
            merged = np.arange(start, min(start + BLOCK, len(source)))
            merged_of_runs = [merged[source[merged] == number] for number in range(len(self.runs))]
            rows_of_runs: list[pl.DataFrame] = []
            for run, numbers in zip(self.runs, merged_of_runs, strict=True):
                if len(numbers):
                    rows_of_runs.append(fitted(self.schema, run.take(position[numbers])))
            # The rows come run by run; this puts them back into the order of hashes.
            order = np.argsort(np.concatenate(merged_of_runs))
            yield from pl.concat(rows_of_runs)[order].to_arrow().combine_chunks().to_batches()

    def _hidden(self, number: int) -> Array:
        """Returns a mask of the rows of the run *number*: True where a newer run replaces or drops the key."""
        run = self.runs[number]
        hidden = run.hidden.copy()
        # Runs are oldest first.
        for newer in self.runs[number + 1 :]:
            for first, block in enumerate(newer.blocks):
                keys = pl.Series(block[newer.key])
                positions, is_there = run.find(keys, newer.hashes[first * BLOCK : (first + 1) * BLOCK])
                hidden[positions[is_there]] = True
            if len(newer.gone):
                positions, is_there = run.find(newer.gone, hashes_of(newer.gone))
                hidden[positions[is_there]] = True
        return hidden


def fitted(schema: Mapping[str, pl.DataType], rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the columns of *schema*, as the topology file declares them now."""
    if rows.schema == schema:
        return rows
    columns = {name: pl.col(name) if name in rows.columns else pl.lit(None) for name in schema}
    # The file may have changed since the rows were written. A value is null where there was no such column, or where
    # the value does not fit the new type.
    return rows.select(**{name: column.cast(schema[name], strict=False) for name, column in columns.items()})
