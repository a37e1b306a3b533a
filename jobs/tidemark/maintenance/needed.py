"""Rows that people ask for however old they are: the newest of a key, and when it was last seen.

The others are superseded, and go when they are old. No driver reads either: it has its state in files of its own.
What is true here stays true: a row that is superseded is never needed again. Rows are those of all batches up to some
one that was carried out whole, or of those of them that were not found superseded before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.marks import is_hop_update
from tidemark.spec.operators import Aggregate, Repartition
from tidemark.spec.topology import SubTopology


@dataclass(frozen=True)
class Needed:
    """Says, by *columns* of rows, which of them are needed."""

    columns: tuple[str, ...]
    of: Callable[[pl.DataFrame], pl.Series]


def is_newest(rows: pl.DataFrame, key: Sequence[str], order: Sequence[str]) -> pl.Series:
    """Whether each of *rows* is the newest, by *order*, of its *key*.

    >>> rows = pl.DataFrame({"key": ["a", "b", "a"], "batch_id": [2, 1, 1]})
    >>> is_newest(rows, ["key"], ["batch_id"]).to_list()
    [True, True, False]
    """
    numbered = rows.select(*key, *order).with_row_index("row")
    last = numbered.sort(order, maintain_order=True).unique(key, keep="last")["row"]
    return numbered["row"].is_in(last.implode())


def needed_states(rows: pl.DataFrame) -> pl.Series:
    """Of `operator_state`: the newest row of each key that is not gone."""
    return is_newest(rows, ["operator", "key"], ["batch_id"]) & rows["state"].is_not_null()


def needed_watermarks(rows: pl.DataFrame) -> pl.Series:
    """Of `watermarks`: how far each partition and source has come."""
    return is_newest(rows, ["source", "partition"], ["batch_id"])


def needed_of_hop(repartition: Repartition, rows: pl.DataFrame) -> pl.Series:
    """Of rows of a hop that were read: the newest update of each id, with which a new reader would begin."""
    if not repartition.id:
        return pl.repeat(value=False, n=rows.height, eager=True)
    updates = rows.select(is_hop_update()).to_series()
    return updates & is_newest(rows.with_columns(update=updates), ["update", "id"], ["batch_id", "seq"])


def needed_changes(rows: pl.DataFrame, sub: SubTopology, states: pl.DataFrame) -> pl.Series:
    """Of `changes`: the newest row of each key whose window, if it has one, is open: *states* has it.

    So is the one with the latest record time, which may be another one.
    """
    newest = is_newest(rows, ["operator", "key"], ["batch_id", "seq"])
    newest |= is_newest(rows, ["operator", "key"], ["timestamp", "batch_id", "seq"])
    for operator in sub.operators:
        mine = rows["operator"] == operator.name
        if isinstance(operator, Aggregate) and operator.windows:
            open_ = states.filter(pl.col("operator") == operator.name)["key"]
            newest &= ~mine | rows["key"].is_in(open_.implode())
    return newest


def needed_last_seen(rows: pl.DataFrame) -> pl.Series:
    """Of `suppressed`: the row of each key with the latest record time."""
    return is_newest(rows, ["operator", "key"], ["max_timestamp", "batch_id"])


def are_in(rows: pl.DataFrame, others: pl.DataFrame, on: Sequence[str]) -> pl.Series:
    """Whether each of *rows* has what one of *others* has in the columns *on*."""
    named = rows.with_row_index("row").join(others, on=on, how="semi")["row"]
    return pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(named.implode())
