"""Finds the rows that people ask for however old they are: the newest of a key, and when a key was last seen.

All other rows are superseded, and go when they are old. A driver needs neither, because it has its state in files.

A superseded row is never needed again. The rows that are looked at are those of all batches up to one that was carried
out whole, without rows that were superseded before.
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
    """Returns True for each of *rows* that is the newest of its key, by the columns *order*.

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
            # Waiting records of a partition begin with the first that was not sent on.
            was_not_sent = rows["source_offset"] >= part.done_until_offset
            waits |= (rows["operator"] == source) & (rows["source_partition"] == number) & was_not_sent
    return pl.select(pl.when(rows["kind"] == HELD_RECORD).then(waits).otherwise(exists)).to_series()


def needed_partitions(rows: pl.DataFrame) -> pl.Series:
    """Marks in `partition_batches` the progress of each partition and source."""
    return is_newest(rows, ["source", "partition"], ["batch_id"])


def needed_of_hop(repartition: Repartition, rows: pl.DataFrame) -> pl.Series:
    """Marks in *rows* of a hop, which all readers have read, the newest update of each id."""
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
        if operator.windows:
            of_others = rows["operator"] != operator.name
            # A key with a window is needed only while its window is open, and then its state is among *states*.
            open_ = states.filter(pl.col("operator") == operator.name)["key"]
            newest &= of_others | rows["key"].is_in(open_.implode())
    return newest


def needed_last_seen(rows: pl.DataFrame) -> pl.Series:
    """Marks in `suppressed` each key's row with the latest record time."""
    return is_newest(rows, ["operator", "key"], ["max_timestamp", "batch_id"])


def are_in(rows: pl.DataFrame, others: pl.DataFrame, on: Sequence[str]) -> pl.Series:
    """Returns True for *rows* that equal one of *others* in columns *on*."""
    named = rows.with_row_index("row").join(others, on=on, how="semi")["row"]
    return pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(named.implode())
