"""What a topology is made of: one frozen value per kind of operator, as the TOML file says it.

Lengths of time are in ms, instants in epoch ms UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.semantics.change import Rule


class Kind(StrEnum):
    """The kinds of operator."""

    SOURCE = "source"
    MAP = "map"
    TABLE = "table"
    JOIN = "join"
    REPARTITION = "repartition"
    AGGREGATE = "aggregate"
    SINK = "sink"


STATEFUL = frozenset({Kind.TABLE, Kind.AGGREGATE, Kind.REPARTITION})
"""Kinds that keep the value they sent last, and so can tell a change."""


class Level(StrEnum):
    """What latency is written for: sources and terminals; emission metrics too; stateful operators too."""

    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"

    def includes(self, other: Level) -> bool:
        """Whether rows of level *other* are written when this level is set."""
        order = list(Level)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What every operator has: a name, and the operators whose output it reads."""

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    sub_topology: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source(Operator):
    """Reads *topic*; the record's timestamp is a field of its payload."""

    topic: str
    fields: Mapping[str, str]
    timestamp: str
    timestamp_range_ms: tuple[int, int]
    bound_ms: int
    idle_after_ms: int | None


@dataclass(frozen=True, kw_only=True)
class HopSource(Operator):
    """Reads what the *repartition* of another sub-topology wrote; implied, never written in a file."""

    repartition: str
    upstream: str


@dataclass(frozen=True, kw_only=True)
class Map(Operator):
    """Stateless SQL: `select` names expressions, `where` leaves records out."""

    select: Mapping[str, str]
    where: str | None


@dataclass(frozen=True, kw_only=True)
class KeyedTable(Operator):
    """The latest value per key."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class Join(Operator):
    """Adds to each record the row of *table* that was valid at the record's timestamp, among the rows read so far."""

    table: str
    on: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Repartition(Operator):
    """Hands updates on by another *key*, each with the value of the same *id* that it replaces."""

    id: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    partitions: int
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class Aggregate(Operator):
    """Rolling aggregates per key of a repartition; only `select` of them is emitted."""

    aggregates: Mapping[str, tuple[str, str]]
    select: Mapping[str, str]
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class Sink(Operator):
    """Writes to a Kafka *topic* or appends to a Delta *table*."""

    topic: str | None
    table: str | None


def latency_level(operator: Operator, terminals: frozenset[str]) -> Level | None:
    """The level at which an operator's latency is written: sources and terminals, stateful ones, or never (KIP-613)."""
    if operator.kind is Kind.SOURCE or operator.name in terminals:
        return Level.INFO
    return Level.TRACE if operator.kind in STATEFUL else None
