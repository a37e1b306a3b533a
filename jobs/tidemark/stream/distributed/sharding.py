"""How the records of a sub-topology are dealt out to shards, so that each has all records of its keys.

An operator that keeps something per key must find all of a key in one place. So what it groups by has to be told from
the records as the source gives them, and several such operators in a row must have a column in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from tidemark.errors import InvalidSpec
from tidemark.kernels import META
from tidemark.kernels.placement import shard_of
from tidemark.kernels.values import key_value, parsed, value_text
from tidemark.kernels.windows import WINDOW
from tidemark.spec.operators import (
    HopSource,
    Join,
    Operator,
    Repartition,
    Sink,
    Source,
    Time,
    emission_of,
)
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.operate.registry import step_of
from tidemark.stream.steps import Steps

_KEY = "_key"


class NotSharded(InvalidSpec):
    """Raised when a sub-topology cannot run in shards; it names the operator in the way."""


@dataclass(frozen=True)
class KeyText:
    """The text of a key, as tables have it: its columns in order, and the column of the source that each one is.

    None: it is calculated on the way.
    """

    columns: Mapping[str, str | None]
    schema: Mapping[str, pl.DataType]

    def parts(self, text: str) -> dict[str, pl.Expr]:
        """Per column of the source its value, read back from the column *text*."""
        if len(self.columns) == 1:
            ((name, origin),) = self.columns.items()
            value = pl.col(text) if name == _KEY else key_value(text, self.schema[name])
            return {origin: value} if origin else {}
        whole = parsed(text, {name: self.schema[name] for name in self.columns})
        return {origin: whole.struct.field(name) for name, origin in self.columns.items() if origin}


@dataclass(frozen=True)
class Sharding:
    """How the keys of a sub-topology are put into shards.

    Per source that is dealt out the columns by which it is (none: by partition); the key of each operator that keeps
    something, and its source; all else every shard has whole.
    """

    by: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, tuple[str, KeyText]] = field(default_factory=dict)

    def dealt(self, source: str, records: pl.DataFrame, shards: int, *, partitions: int) -> list[pl.DataFrame]:
        """*records* of *source*, shard by shard; those of a source that every shard has whole, in each of them.

        Where nothing is kept by key, a shard has neighbours among the *partitions*: so all shards in a row have the
        order of all partitions.
        """
        if source not in self.by:
            return [records] * shards
        columns = self.by[source]
        last = partitions - 1
        shard = _shard(columns, records, shards) if columns else records["_task"].clip(0, last) * shards // partitions
        return [records.filter(shard == number) for number in range(shards)]

    def own(self, number: int, shards: int, operator: str, rows: pl.DataFrame, text: str) -> pl.DataFrame:
        """The *rows* of *operator* whose keys, texts in the column *text*, are in the shard *number*."""
        placed = self.placed(shards, operator, rows, text)
        return rows if placed is None else rows.filter(placed == number)

    def placed(self, shards: int, operator: str, rows: pl.DataFrame, text: str) -> pl.Series | None:
        """The shard of each of the *rows* of *operator*, by keys in the column *text*; None: every shard has them."""
        if operator not in self.keys:
            return None
        source, key = self.keys[operator]
        parts = key.parts(text)
        values = rows.select(**{name: parts[name] for name in self.by[source]})
        return _shard(self.by[source], values, shards)


def _shard(columns: tuple[str, ...], rows: pl.DataFrame, shards: int) -> pl.Series:
    return shard_of(rows.select(value_text(columns, rows.schema)).to_series(), shards)


@dataclass(frozen=True)
class _Stream:
    """What comes out of an operator: its sources, the column of those which each of its columns is, and its key.

    None: it is calculated on the way, or no column of that name in each source.
    """

    sources: frozenset[str]
    columns: Mapping[str, str | None]
    key: KeyText


def sharding(topology: Topology, sub: SubTopology, steps: Steps) -> Sharding:
    """How *sub* runs in shards; raises NotSharded when it cannot."""
    try:
        return _sharding(topology, sub, steps)
    except NotSharded as error:
        msg = f"{topology.file}: shards: {sub.name} cannot run in shards: {error}; or leave shards out for it"
        raise NotSharded(msg) from None


def not_sharded(topology: Topology, steps: Steps) -> list[InvalidSpec]:
    """Why sub-topologies of *topology* that are to run in shards cannot."""
    found: list[InvalidSpec] = []
    for sub in (sub for sub in topology.sub_topologies if topology.shards_of(sub.name) > 1):
        try:
            sharding(topology, sub, steps)
        except NotSharded as error:
            found.append(error)
    return found


def _sharding(topology: Topology, sub: SubTopology, steps: Steps) -> Sharding:
    if topology.max_drift_ms is not None:
        msg = "max_drift makes partitions wait for each other; leave max_drift out"
        raise NotSharded(msg)
    if topology.time is Time.PROCESSING:
        msg = "on processing time the instant of a batch is known only when all of it was read; use event time"
        raise NotSharded(msg)
    whole = sub.table_inputs()
    streams: dict[str, _Stream] = {}
    keeping: dict[str, KeyText] = {}
    ordering: dict[str, KeyText] = {}
    for operator in (o for o in sub.operators if o.name not in whole):
        if isinstance(operator, Join) and operator.table and operator.table not in whole:
            msg = (
                f"{operator.name} joins the table {operator.table}, which others read too; give these one of their own"
            )
            raise NotSharded(msg)
        read = _together([streams[name] for name in operator.flows]) if operator.flows else _source(operator, steps)
        key = _key_of(operator, read, steps)
        handed_on = step_of(operator).origins(operator, read.columns)
        streams[operator.name] = replace(read, columns=handed_on, key=read.key if key is None else key)
        if key is not None and (emission_of(operator) or (isinstance(operator, Sink) and operator.key)):
            keeping[operator.name] = key
        elif key is not None:
            ordering[operator.name] = key
    by: dict[str, tuple[str, ...]] = {}
    for sources in _groups(stream.sources for stream in streams.values()):
        by |= dict.fromkeys(sources, _common(sources, streams, keeping, ordering))
    return Sharding(by, {name: (min(streams[name].sources), key) for name, key in keeping.items()})


def _groups(found: Iterable[frozenset[str]]) -> set[frozenset[str]]:
    """The sources that some operator unites, together: they are dealt out by the same columns."""
    groups: set[frozenset[str]] = set()
    for sources in found:
        meeting = {group for group in groups if group & sources}
        groups = (groups - meeting) | {sources.union(*meeting)}
    return groups


def _together(streams: Sequence[_Stream]) -> _Stream:
    """What a union of *streams* gives; of one it is that."""
    first = streams[0]
    same = {c: o if all(s.columns.get(c) == o for s in streams) else None for c, o in first.columns.items()}
    key = first.key
    if any(stream.key != key for stream in streams):
        key = replace(key, columns=dict.fromkeys(key.columns))
    return _Stream(frozenset().union(*(stream.sources for stream in streams)), same, key)


def _source(operator: Operator, steps: Steps) -> _Stream:
    assert isinstance(operator, Source | HopSource)
    columns = {c: c for c in steps.schemas[operator.name] if c not in META}
    key = operator.key if isinstance(operator, Source) and operator.fields.get(operator.key or "") == "string" else None
    return _Stream(frozenset({operator.name}), columns, KeyText({_KEY: key or _KEY}, {_KEY: pl.String()}))


def _key_of(operator: Operator, read: _Stream, steps: Steps) -> KeyText | None:
    """Return what *operator* groups by, or must keep in order by; None: nothing."""
    step = step_of(operator)
    columns = step.key(operator)
    if columns is None:
        return None
    if not columns:
        return read.key
    origins = step.origins(operator, read.columns)
    # A hop has its columns in one text: what a repartition reads has them apart.
    schema = {**WINDOW, **steps.schemas[operator.inputs[0] if isinstance(operator, Repartition) else operator.name]}
    return KeyText({c: origins.get(c) for c in columns}, {c: schema[c] for c in columns})


def _common(
    sources: frozenset[str],
    streams: Mapping[str, _Stream],
    keeping: Mapping[str, KeyText],
    ordering: Mapping[str, KeyText],
) -> tuple[str, ...]:
    """The columns of *sources* that are part of every key behind them; none where no operator keeps anything."""
    kept = {name: key for name, key in keeping.items() if streams[name].sources <= sources}
    if not kept:
        return ()
    ordered = {name: key for name, key in ordering.items() if streams[name].sources <= sources}
    common: set[str] | None = None
    for name, key in (kept | ordered).items():
        origins = {origin for origin in key.columns.values() if origin}
        common = origins if common is None else common & origins
        if not common:
            of, named = ", ".join(key.columns), " and ".join(sorted(sources))
            msg = (
                f"{name} groups by {of}, and no column of {named} is part of this key and of those before it; "
                "a repartition before it makes a sub-topology that can"
            )
            raise NotSharded(msg)
    return tuple(sorted(common or ()))
