"""Finds the rows that people ask for however old they are.

These are the newest row of a key, and when a key was last seen. The other rows are superseded, and go when they are
old. No driver reads either: it has its state in files of its own.

What is true here stays true: a superseded row is never needed again. The rows are those of all batches up to one that
was carried out whole, without rows that were superseded before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.records.marks import is_hop_update
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.tables.catalog import HELD_RECORD
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import StreamProgress


@dataclass(frozen=True)
class NeededRows:
    """Selects, by *columns* of rows, the rows that are needed."""

    columns: tuple[str, ...]
    of: Callable[[pl.DataFrame], pl.Series]


def is_newest(rows: pl.DataFrame, key: Sequence[str], order: Sequence[str]) -> pl.Series:
    """Returns True for each of *rows* that is its key's newest.

    *key* and *order* are columns; *order* says which row is newer.

    >>> rows = pl.DataFrame({"key": ["a", "b", "a"], "batch_id": [2, 1, 1]})
    >>> is_newest(rows, ["key"], ["batch_id"]).to_list()
    [True, True, False]
    """
    numbered = rows.select(*key, *order).with_row_index("row")
    last = numbered.sort(order, maintain_order=True).unique(key, keep="last")["row"]
    return numbered["row"].is_in(last.implode())


def needed_states(progress: StreamProgress, rows: pl.DataFrame) -> pl.Series:
    """Marks in `state_changes` the newest row of each key that exists, and the records that wait after *progress*."""
    exists = is_newest(rows, ["operator", "key"], ["batch_id"]) & rows["state"].is_not_null()
    waits = pl.repeat(value=False, n=rows.height, eager=True)
    for source, reached in progress.inputs.items():
        for number, part in reached.partitions.items():
            # In each partition they begin with the first record that was not sent on.
            from_there = rows["source_offset"] >= part.done_until_offset
            waits |= (rows["operator"] == source) & (rows["source_partition"] == number) & from_there
    return pl.select(pl.when(rows["kind"] == HELD_RECORD).then(waits).otherwise(exists)).to_series()


def needed_partitions(rows: pl.DataFrame) -> pl.Series:
    """Marks in `partition_batches` the progress of each partition and source."""
    return is_newest(rows, ["source", "partition"], ["batch_id"])


def needed_of_hop(repartition: Repartition, rows: pl.DataFrame) -> pl.Series:
    """Marks in rows of a hop the newest update of each id.

    All *rows* were read.
    """
    # A new reader begins with the newest updates. Without an id the rows are a stream, of which it needs none.
    if not repartition.id:
        return pl.repeat(value=False, n=rows.height, eager=True)
    updates = rows.select(is_hop_update()).to_series()
    return updates & is_newest(rows.with_columns(update=updates), ["update", "id"], ["batch_id", "seq"])


def needed_changes(rows: pl.DataFrame, sub: SubTopology, states: pl.DataFrame) -> pl.Series:
    """Marks in `changes` the newest row of each key."""
    newest = is_newest(rows, ["operator", "key"], ["batch_id", "seq"])
    # The row with the latest record time may be another one.
    newest |= is_newest(rows, ["operator", "key"], ["timestamp", "batch_id", "seq"])
    for operator in sub.operators:
        is_own = rows["operator"] == operator.name
        if operator.windows:
            # A key with a window is needed only while its window is open, and then its state is among *states*.
            open_ = states.filter(pl.col("operator") == operator.name)["key"]
            newest &= ~is_own | rows["key"].is_in(open_.implode())
    return newest


def needed_last_seen(rows: pl.DataFrame) -> pl.Series:
    """Marks in `suppressed` each key's row with the latest record time."""
    return is_newest(rows, ["operator", "key"], ["max_timestamp", "batch_id"])


def are_in(rows: pl.DataFrame, others: pl.DataFrame, on: Sequence[str]) -> pl.Series:
    """Returns True for *rows* that equal one of *others* in columns *on*."""
    named = rows.with_row_index("row").join(others, on=on, how="semi")["row"]
    return pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(named.implode())
