"""Which rows of the tables of which a driver makes its memory it still needs; the others are superseded.

What is true here stays true: a row that is superseded is never needed again. Rows are those of all batches up to some
one that was carried out whole, or of those of them that were not found superseded before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.marks import is_hop_update
from tidemark.kernels.steps import pruned
from tidemark.spec.operators import Aggregate, Join, Repartition
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.steps import history_ms


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
    """Of `watermarks`: how far each partition and source has come. No driver reads it, but people ask."""
    return is_newest(rows, ["source", "partition"], ["batch_id"])


def needed_of_hop(repartition: Repartition, rows: pl.DataFrame) -> pl.Series:
    """Of rows of a hop that were read: the newest update of each id, where it replaces the one before."""
    if not repartition.id:
        return pl.repeat(value=False, n=rows.height, eager=True)
    updates = rows.select(is_hop_update()).to_series()
    return updates & is_newest(rows.with_columns(update=updates), ["update", "id"], ["batch_id", "seq"])


def joined_in(topology: Topology, sub: SubTopology) -> set[str]:
    """The tables of *sub* that joins of *topology* ask."""
    joined = {operator.table for operator in topology.operators.values() if isinstance(operator, Join)}
    return {operator.name for operator in sub.operators if operator.name in joined}


def needed_changes(
    rows: pl.DataFrame, topology: Topology, sub: SubTopology, states: pl.DataFrame, watermark_ms: int | None
) -> pl.Series:
    """Of `changes`: the newest row of each key whose window, if it has one, is open: *states* has it.

    So is the one with the latest record time, which may be another one: people ask when a key was last seen. Of a table
    that is joined, the versions that records may still ask for after *watermark_ms*, too.
    """
    joined = joined_in(topology, sub)
    newest = is_newest(rows, ["operator", "key"], ["batch_id", "seq"])
    newest |= is_newest(rows, ["operator", "key"], ["timestamp", "batch_id", "seq"])
    for operator in sub.operators:
        mine = rows["operator"] == operator.name
        if isinstance(operator, Aggregate) and operator.windows:
            open_ = states.filter(pl.col("operator") == operator.name)["key"]
            newest &= ~mine | rows["key"].is_in(open_.implode())
        if operator.name in joined:
            newest |= mine & _may_be_asked_for(rows, mine, history_ms(topology, operator.name), watermark_ms)
    return newest


def needed_assertions(rows: pl.DataFrame, topology: Topology, sub: SubTopology, watermark_ms: int | None) -> pl.Series:
    """Of `suppressed`: the versions of joined tables that records may still ask for after *watermark_ms*."""
    times = pl.col("asserted_ms").str.json_decode(pl.List(pl.Int64)).list.max()
    asserted = rows.with_columns(timestamp=pl.from_epoch(times, time_unit="ms"), seq=pl.lit(0))
    needed = pl.repeat(value=False, n=rows.height, eager=True)
    for name in joined_in(topology, sub):
        mine = (rows["operator"] == name) & asserted["timestamp"].is_not_null()
        needed |= mine & _may_be_asked_for(asserted, mine, history_ms(topology, name), watermark_ms)
    return needed


def needed_last_seen(rows: pl.DataFrame) -> pl.Series:
    """Of `suppressed`: the row of each key with the latest record time. No driver reads it, but people ask."""
    return is_newest(rows, ["operator", "key"], ["max_timestamp", "batch_id"])


def values_of(rows: pl.DataFrame, asserted: pl.DataFrame) -> pl.Series:
    """Whether each of *rows* of `changes` has a value that one of those of `suppressed` asserts again."""
    return are_in(rows, asserted, ["operator", "key", "value_hash"])


def are_in(rows: pl.DataFrame, others: pl.DataFrame, on: Sequence[str]) -> pl.Series:
    """Whether each of *rows* has what one of *others* has in the columns *on*."""
    named = rows.with_row_index("row").join(others, on=on, how="semi")["row"]
    return pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(named.implode())


def _may_be_asked_for(
    rows: pl.DataFrame, mine: pl.Series, behind_ms: int | None, watermark_ms: int | None
) -> pl.Series:
    """Whether each of *rows*, those of a table that are *mine*, is a version that a record may still ask for."""
    if behind_ms is None or watermark_ms is None:
        return mine
    versions = rows.with_row_index("row").filter(mine).sort("batch_id", "seq")
    versions = versions.select("row", "key", _valid_from_ms=pl.col("timestamp").dt.epoch("ms"))
    left = pruned(versions, ["key"], before_ms=watermark_ms - behind_ms)["row"]
    return pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(left.implode())
