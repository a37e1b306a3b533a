"""Reads a topology from its TOML file, and refuses one that cannot run: docs/topologies.md lists the keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.semantics.change import Rule
from tidemark.spec.operators import (
    Aggregate,
    HopSource,
    Join,
    KeyedTable,
    Kind,
    Level,
    Map,
    Operator,
    Repartition,
    Sink,
    Source,
)
from tidemark.spec.toml_keys import IDENTIFIER, Keys

FIELD_TYPES = frozenset({"string", "boolean", "int", "bigint", "double"})
AGGREGATE_FUNCTIONS = frozenset({"count", "sum"})
_AGGREGATE = re.compile(r"(\w+)\(\s*(\w+|\*)\s*\)")


@dataclass(frozen=True)
class SubTopology:
    """The operators that one streaming query runs, each after the ones it reads."""

    name: str
    operators: tuple[Operator, ...]

    def terminals(self) -> frozenset[str]:
        """Operators that nothing in this sub-topology reads."""
        read = {name for operator in self.operators for name in operator.inputs}
        return frozenset(operator.name for operator in self.operators if operator.name not in read)

    def table_inputs(self) -> frozenset[str]:
        """Operators that are read only as the table side of a join: they never hold the watermark back."""
        readers: dict[str, list[Operator]] = {operator.name: [] for operator in self.operators}
        for operator in self.operators:
            for name in operator.inputs:
                readers[name].append(operator)
        found: set[str] = set()
        for operator in reversed(self.operators):
            reading = readers[operator.name]
            if reading and all(
                by.name in found or (isinstance(by, Join) and by.table == operator.name) for by in reading
            ):
                found.add(operator.name)
        return frozenset(found)


@dataclass(frozen=True)
class Topology:
    """A DAG of operators; `sub_topologies` come in the order of their first operators."""

    name: str
    level: Level
    window_ms: int
    trigger_ms: int
    sub_topologies: tuple[SubTopology, ...]

    @property
    def operators(self) -> Mapping[str, Operator]:
        """All operators by name, each after the ones it reads."""
        return MappingProxyType({o.name: o for sub in self.sub_topologies for o in sub.operators})

    @property
    def upstreams(self) -> Mapping[str, tuple[str, ...]]:
        """The physical DAG: a hop's reading end comes after the repartition that writes it."""
        return MappingProxyType(
            {o.name: (o.repartition,) if isinstance(o, HopSource) else o.inputs for o in self.operators.values()}
        )

    def sub_topology(self, name: str) -> SubTopology:
        """The sub-topology *name*; raises InvalidSpec that lists the known ones."""
        for sub in self.sub_topologies:
            if sub.name == name:
                return sub
        known = ", ".join(sub.name for sub in self.sub_topologies)
        raise InvalidSpec.at(self.name, name, "is no sub-topology", f"known: {known}")


def load(path: Path) -> Topology:
    """The topology that the file at *path* describes; raises InvalidSpec with file, key and remedy."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec.at(path.name, "file", f"is no TOML: {error}", "mend the line it names") from error
    return parse(content, file=path.name)


def parse(content: Mapping[str, Any], *, file: str) -> Topology:
    """The topology that *content*, a parsed TOML file named *file* in errors, describes."""
    keys = Keys(file, "", content)
    name = keys.name("name", "flights")
    level = keys.choice("level", Level, Level.INFO)
    window_ms = keys.duration("window", "10 s", 10_000)
    trigger_ms = keys.duration("trigger", "1 s", 1_000)
    tables = keys.get("operators", dict, "a table per operator: [operators.NAME]")
    keys.done()
    operators = {key: _operator(file, key, table) for key, table in tables.items()}
    ordered = _in_order(file, operators)
    _check_inputs(file, operators)
    return Topology(name, level, window_ms, trigger_ms, _sub_topologies(file, ordered))


def _operator(file: str, name: str, content: Any) -> Operator:
    keys = Keys(file, f"operators.{name}", content if isinstance(content, dict) else {})
    if not IDENTIFIER.fullmatch(name) or name.endswith("_source"):
        raise InvalidSpec.at(file, keys.at, "is no name for an operator", "use letters, digits and _; not …_source")
    kind = keys.choice("kind", Kind, Kind.SOURCE)
    common = {"name": name, "kind": kind, "sub_topology": keys.name("sub_topology", "status", None)}
    operator = _READERS[kind](keys, common)
    keys.done()
    return operator


def _source(keys: Keys, common: dict[str, Any]) -> Operator:
    fields = _fields(keys)
    timestamp = keys.text("timestamp", "event_time")
    if fields.get(timestamp) != "bigint":
        keys.fail("timestamp", f"is {timestamp!r}", "name a field of type bigint (epoch ms) among `fields`")
    low, high = keys.names("timestamp_range", '["2000-01-01", "2100-01-01"]')
    return Source(
        **common,
        topic=keys.text("topic", "events"),
        fields=fields,
        timestamp=timestamp,
        timestamp_range_ms=(keys.instant_ms(low, "timestamp_range"), keys.instant_ms(high, "timestamp_range")),
        bound_ms=keys.duration("bound", "3 s"),
        idle_after_ms=keys.duration("idle_after", "30 s", None),
    )


def _fields(keys: Keys) -> Mapping[str, str]:
    fields = {}
    for part in keys.text("fields", "id string, event_time bigint").split(","):
        name, _, kind = part.strip().partition(" ")
        if not IDENTIFIER.fullmatch(name) or kind.strip() not in FIELD_TYPES:
            keys.fail(
                "fields", f"has {part.strip()!r}", f"write `name type` with one of {', '.join(sorted(FIELD_TYPES))}"
            )
        fields[name] = kind.strip()
    return MappingProxyType(fields)


def _map(keys: Keys, common: dict[str, Any]) -> Operator:
    return Map(
        **common,
        inputs=(keys.text("input", "events"),),
        select=keys.mapping("select", '{ id = "id" }'),
        where=keys.text("where", "id is not null", None),
    )


def _table(keys: Keys, common: dict[str, Any]) -> Operator:
    return KeyedTable(
        **common,
        inputs=(keys.text("input", "events"),),
        key=keys.names("key", '["id"]'),
        columns=keys.names("columns", '["status"]', ()),
        rule=keys.choice("rule", Rule, Rule.STRICTLY_NEWER),
    )


def _join(keys: Keys, common: dict[str, Any]) -> Operator:
    table = keys.text("table", "weather_now")
    return Join(
        **common, inputs=(keys.text("input", "events"), table), table=table, on=keys.mapping("on", '{ id = "id" }')
    )


def _repartition(keys: Keys, common: dict[str, Any]) -> Operator:
    partitions = keys.get("partitions", int, "2", 1)
    if partitions < 1:
        keys.fail("partitions", f"is {partitions}", "use 1 or more")
    return Repartition(
        **common,
        inputs=(keys.text("input", "events"),),
        id=keys.names("id", '["id"]'),
        key=keys.names("key", '["group"]'),
        columns=keys.names("columns", '["amount"]'),
        partitions=partitions,
        rule=keys.choice("rule", Rule, Rule.STRICTLY_NEWER),
    )


def _aggregate(keys: Keys, common: dict[str, Any]) -> Operator:
    calls = {}
    for name, call in keys.mapping("aggregates", '{ n = "count(*)" }').items():
        match = _AGGREGATE.fullmatch(call)
        if not match or match[1] not in AGGREGATE_FUNCTIONS:
            known = ", ".join(f"{function}(column)" for function in sorted(AGGREGATE_FUNCTIONS))
            keys.fail(
                f"aggregates.{name}", f"is {call!r}, which cannot take back what it added", f"use {known} or count(*)"
            )
        calls[name] = (match[1], match[2])
    return Aggregate(
        **common,
        inputs=(keys.text("input", "by_group"),),
        aggregates=MappingProxyType(calls),
        select=keys.mapping("select", '{ n = "n" }', {name: name for name in calls}),
        rule=keys.choice("rule", Rule, Rule.SAME_INSTANT),
    )


def _sink(keys: Keys, common: dict[str, Any]) -> Operator:
    topic, table = keys.text("topic", "alerts", None), keys.name("table", "alerts", None)
    if (topic is None) == (table is None):
        keys.fail("topic", f"is {topic!r} and table is {table!r}", "give a sink either a topic or a table")
    return Sink(**common, inputs=(keys.text("input", "events"),), topic=topic, table=table)


_READERS = MappingProxyType(
    {
        Kind.SOURCE: _source,
        Kind.MAP: _map,
        Kind.TABLE: _table,
        Kind.JOIN: _join,
        Kind.REPARTITION: _repartition,
        Kind.AGGREGATE: _aggregate,
        Kind.SINK: _sink,
    }
)


def _in_order(file: str, operators: Mapping[str, Operator]) -> list[Operator]:
    """The operators, each after the ones it reads, otherwise in the order of the file."""
    for operator in operators.values():
        for name in operator.inputs:
            if name not in operators:
                known = f"known operators: {', '.join(operators)}"
                raise InvalidSpec.at(file, f"operators.{operator.name}", f"reads {name!r}, which is not there", known)
    try:
        order = TopologicalSorter({name: operator.inputs for name, operator in operators.items()}).static_order()
        return [operators[name] for name in order]
    except CycleError as error:
        circle = " → ".join(error.args[1])
        raise InvalidSpec.at(file, "operators", f"form a circle: {circle}", "cut one of these inputs") from error


def _check_inputs(file: str, operators: Mapping[str, Operator]) -> None:
    """Joins read tables, aggregates and only they read repartitions, nothing reads a sink."""
    for operator in operators.values():
        at = f"operators.{operator.name}"
        for name in operator.inputs:
            kind = operators[name].kind
            if kind is Kind.SINK:
                raise InvalidSpec.at(file, at, f"reads the sink {name!r}", "read what the sink reads")
            if (kind is Kind.REPARTITION) != (operator.kind is Kind.AGGREGATE):
                remedy = "put a repartition before an aggregate, and nothing else behind one"
                raise InvalidSpec.at(file, at, f"is of kind {operator.kind} and reads {name!r}, of kind {kind}", remedy)
        if isinstance(operator, Join) and operators[operator.table].kind is not Kind.TABLE:
            raise InvalidSpec.at(
                file, f"{at}.table", f"is the {operators[operator.table].kind} {operator.table!r}", "name a table"
            )


def _sub_topologies(file: str, ordered: Iterable[Operator]) -> tuple[SubTopology, ...]:
    """Cut the DAG behind its repartitions; a part takes the name that one of its operators gives it, or its number."""
    operators = [part for operator in ordered for part in _with_hop(operator)]
    label: dict[str, int] = {}
    for number, operator in enumerate(operators):
        joined = {label[name] for name in operator.inputs}
        lowest = min(joined, default=number)
        label = {name: lowest if was in joined else was for name, was in label.items()} | {operator.name: lowest}
    parts = [[o for o in operators if label[o.name] == number] for number in sorted(set(label.values()))]
    names = [_part_name(file, part, number) for number, part in enumerate(parts)]
    if len(set(names)) < len(names):
        raise InvalidSpec.at(
            file, "operators", f"sub-topologies are named {names}", "give each a sub_topology of its own"
        )
    home = {operator.name: name for part, name in zip(parts, names, strict=True) for operator in part}
    return tuple(
        SubTopology(
            name,
            tuple(replace(o, upstream=home[o.repartition]) if isinstance(o, HopSource) else o for o in part),
        )
        for part, name in zip(parts, names, strict=True)
    )


def _with_hop(operator: Operator) -> tuple[Operator, ...]:
    """An aggregate reads its repartition through the reading end of a hop, which is a source of its own."""
    if operator.kind is not Kind.AGGREGATE:
        return (operator,)
    (repartition,) = operator.inputs
    hop = HopSource(name=f"{repartition}_source", kind=Kind.SOURCE, repartition=repartition, upstream="")
    return hop, replace(operator, inputs=(hop.name,))


def _part_name(file: str, part: list[Operator], number: int) -> str:
    names = sorted({operator.sub_topology for operator in part if operator.sub_topology})
    if len(names) > 1:
        raise InvalidSpec.at(
            file, "operators", f"one sub-topology is named {' and '.join(names)}", "keep one of the names"
        )
    return names[0] if names else str(number)
