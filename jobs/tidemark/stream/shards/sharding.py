"""Deals records out to shards, so that all records of a key are in one shard.

An operator with a state per key must have all records of the key in one shard. Records are dealt out where the source
is read. So the key, or some of its columns, must be columns of the source that are handed on unchanged. If there are
several such operators in a row, their keys must have at least one of these columns in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from tidemark.errors import InvalidSpec
from tidemark.kernels import META
from tidemark.kernels.aggregates.windows import WINDOW
from tidemark.kernels.columns.placement import shard_of
from tidemark.kernels.columns.values import key_value, parsed, value_text
from tidemark.model.kinds.operator import Operator
from tidemark.model.topology import SubTopology, Time, Topology
from tidemark.selection import in_order_of
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps

_KEY = "_key"


class ShardingImpossible(InvalidSpec):
    """Raised when a sub-topology cannot run in shards.

    The message names the operator that prevents it.
    """


@dataclass(frozen=True)
class KeyText:
    """Describes the text of an operator's key, as tables have it.

    `columns` are the columns of the key in order, each with the column of the source from which it is handed on
    unchanged, or None if it is calculated. `schema` has their types.
    """

    columns: Mapping[str, str | None]
    schema: Mapping[str, pl.DataType]

    def source_values(self, text: str) -> dict[str, pl.Expr]:
        """Reads values back from the key in the column *text*: returns them by column of the source."""
        if len(self.columns) == 1:
            ((name, origin),) = self.columns.items()
            value = pl.col(text) if name == _KEY else key_value(text, self.schema[name])
            return {origin: value} if origin else {}
        # The text has all columns of the key, so their values are read back from it.
        whole = parsed(text, in_order_of(self.columns, self.schema))
        return {origin: whole.struct.field(name) for name, origin in self.columns.items() if origin}


@dataclass(frozen=True)
class Sharding:
    """Tells to which shard records and states of a sub-topology belong.

    Attributes:
        by: for each source whose records are dealt out, the columns that decide the shard; without columns, the
            partition does. Every shard gets all records of sources that are not listed.
        keys: for each operator that keeps states, its source and its key.
    """

    by: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, tuple[str, KeyText]] = field(default_factory=dict)

    def dealt(self, source: str, records: pl.DataFrame, shards: int, *, partitions: int) -> list[pl.DataFrame]:
        """Returns the *records* of *source* for each of so many *shards*; the source has so many *partitions*."""
        if source not in self.by:
            return [records] * shards
        # Where nothing is kept by key, a shard has partitions that follow each other, so the rows of all shards, one
        # shard after the other, are in the order of partitions.
        columns = self.by[source]
        last = partitions - 1
        shard = _shard(columns, records, shards) if columns else records["_task"].clip(0, last) * shards // partitions
        return [records.filter(shard == number) for number in range(shards)]

    def in_shard(self, number: int, shards: int, operator: str, rows: pl.DataFrame, text: str) -> pl.DataFrame:
        """Returns the *rows* of *operator* whose keys are in shard *number* of so many *shards*.

        The keys are texts in the column *text*.
        """
        placed = self.placed(shards, operator, rows, text)
        return rows if placed is None else rows.filter(placed == number)

    def placed(self, shards: int, operator: str, rows: pl.DataFrame, text: str) -> pl.Series | None:
        """Returns the shard, of so many *shards*, of each of the *rows* of *operator*, or None if every shard has them.

        The keys of the rows are texts in the column *text*.
        """
        if operator not in self.keys:
            return None
        source, key = self.keys[operator]
        values = rows.select(**in_order_of(self.by[source], key.source_values(text)))
        return _shard(self.by[source], values, shards)


def _shard(columns: tuple[str, ...], rows: pl.DataFrame, shards: int) -> pl.Series:
    return shard_of(rows.select(value_text(columns, rows.schema)).to_series(), shards)


@dataclass(frozen=True)
class _Stream:
    """The output of an operator: its sources, columns and key.

    `columns` has, for each column, the column of the sources from which it is handed on unchanged. It is None if the
    column is calculated, or if it does not come from a column of the same name in each source.
    """

    sources: frozenset[str]
    columns: Mapping[str, str | None]
    key: KeyText


def sharding(topology: Topology, sub: SubTopology, steps: Steps) -> Sharding:
    """Returns how records of *sub* are dealt out to shards; raises ShardingImpossible if they cannot be."""
    try:
        return _sharding(topology, sub, steps)
    except ShardingImpossible as error:
        msg = f"{topology.file}: shards: {sub.name} cannot run in shards: {error}; or leave out shards for it"
        # The cause is in the message, so it is not repeated as a chained error.
        raise ShardingImpossible(msg) from None


def not_sharded(topology: Topology, steps: Steps) -> list[InvalidSpec]:
    """Returns the reasons why sub-topologies of *topology* cannot run in shards although the file asks for it."""
    reasons: list[InvalidSpec] = []
    for sub in (sub for sub in topology.sub_topologies if topology.shards_of(sub.name) > 1):
        try:
            sharding(topology, sub, steps)
        except ShardingImpossible as error:
            reasons.append(error)
    return reasons


def _sharding(topology: Topology, sub: SubTopology, steps: Steps) -> Sharding:
    if topology.max_drift_ms is not None:
        msg = "max_drift makes partitions wait for each other; leave max_drift out"
        raise ShardingImpossible(msg)
    if topology.time is Time.PROCESSING:
        msg = "processing time is the instant of a batch, which is known only after all of it was read; use event time"
        raise ShardingImpossible(msg)
    # Every shard has joined tables whole, so their keys decide nothing.
    whole = sub.table_inputs()
    streams: dict[str, _Stream] = {}
    keeping: dict[str, KeyText] = {}
    ordering: dict[str, KeyText] = {}
    for operator in (o for o in sub.operators if o.name not in whole):
        if operator.joined_table and operator.joined_table not in whole:
            shared = f"the table {operator.joined_table}, which other operators read, too"
            msg = f"{operator.name} joins {shared}; give them another table"
            raise ShardingImpossible(msg)
        read = _together([streams[name] for name in operator.flows]) if operator.flows else _source(operator, steps)
        key = _key_of(operator, read, steps)
        handed_on = step_of(operator).origins(operator, read.columns)
        streams[operator.name] = replace(read, columns=handed_on, key=read.key if key is None else key)
        if key is not None and operator.keeps_row_of_key:
            keeping[operator.name] = key
        elif key is not None:
            ordering[operator.name] = key
    by: dict[str, tuple[str, ...]] = {}
    for sources in _groups(stream.sources for stream in streams.values()):
        by |= dict.fromkeys(sources, _common(sources, streams, keeping, ordering))
    # All sources of a group have the same columns, so any of them describes the key.
    return Sharding(by, {name: (min(streams[name].sources), key) for name, key in keeping.items()})


def _groups(sources_of_operators: Iterable[frozenset[str]]) -> set[frozenset[str]]:
    """Returns the groups of sources whose records must be dealt out by the same columns.

    *sources_of_operators* has, for each operator, the sources whose records reach it.
    """
    groups: set[frozenset[str]] = set()
    for sources in sources_of_operators:
        # An operator of several sources merges their groups, as in union-find.
        meeting = {group for group in groups if group & sources}
        groups = (groups - meeting) | {sources.union(*meeting)}
    return groups


def _together(streams: Sequence[_Stream]) -> _Stream:
    """Returns the union of *streams*; the union of one stream is the stream itself."""
    first, *others = streams
    columns, key = dict(first.columns), first.key
    for stream in others:
        # A column of the union is one of the sources only if it is the same in all inputs.
        for column, origin in columns.items():
            if stream.columns.get(column) != origin:
                columns[column] = None
        # Keys that differ between the inputs are no key of the union, whose columns are then calculated.
        if stream.key != first.key:
            key = replace(first.key, columns=dict.fromkeys(first.key.columns))
    return _Stream(frozenset().union(*(stream.sources for stream in streams)), columns, key)


def _source(operator: Operator, steps: Steps) -> _Stream:
    columns = {c: c for c in steps.schemas[operator.name] if c not in META}
    # A record's key is text. A number would have another text than in the record, and another shard.
    key = KeyText({_KEY: operator.key_field or _KEY}, {_KEY: pl.String()})
    return _Stream(frozenset({operator.name}), columns, key)


def _key_of(operator: Operator, read: _Stream, steps: Steps) -> KeyText | None:
    """Returns the key by which *operator* groups records or keeps their order, or None if it has none."""
    step = step_of(operator)
    columns = step.key(operator)
    if columns is None:
        return None
    if not columns:
        return read.key
    origins = step.origins(operator, read.columns)
    schema = {**WINDOW, **steps.schemas[step.holder_of_key(operator)]}
    return KeyText({c: origins.get(c) for c in columns}, in_order_of(columns, schema))


def _common(
    sources: frozenset[str],
    streams: Mapping[str, _Stream],
    keeping: Mapping[str, KeyText],
    ordering: Mapping[str, KeyText],
) -> tuple[str, ...]:
    """Returns the columns of *sources* that all keys of the operators behind them have in common.

    Args:
        sources: a group of sources whose records are dealt out by the same columns.
        streams: the outputs of all operators.
        keeping: the keys of operators that keep states.
        ordering: the keys of operators that only keep the order of records of a key.

    Returns:
        The columns, none if no operator keeps states.
    """
    kept = {name: key for name, key in keeping.items() if streams[name].sources <= sources}
    if not kept:
        return ()
    ordered = {name: key for name, key in ordering.items() if streams[name].sources <= sources}
    common: set[str] | None = None
    for name, key in (kept | ordered).items():
        origins = {origin for origin in key.columns.values() if origin}
        common = origins if common is None else common & origins
        if not common:
            key_columns, named = ", ".join(key.columns), " and ".join(sorted(sources))
            msg = (
                f"{name} groups by {key_columns}, but no column of {named} is part of this key and all keys before it; "
                "put a repartition before it"
            )
            raise ShardingImpossible(msg)
    return tuple(sorted(common or ()))
