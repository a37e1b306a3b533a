"""Warns where a result depends on the order of arrival across partitions, which is not guaranteed.

Records of one partition are read in the order of their offsets, and those of one Kafka key are in one partition. So a
key that has the source's `key` among its columns is safe, and so is what has one partition: a Delta table, or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemark.spec.operators import (
    Aggregate,
    HopSource,
    Join,
    KeyedTable,
    Map,
    Operator,
    Repartition,
    Sink,
    Source,
    Union,
)
from tidemark.spec.topology import Topology, updates_tables

KAFKA_KEY = "_key"
"""Stands for the record's own key."""
ORDERED = frozenset({"*"})
"""Stands for all columns: the records are in one order."""


def by_arrival(topology: Topology) -> Iterator[tuple[str, str]]:
    """Each operator that keeps the record of a key that was read last, of several partitions, with the remedy."""
    operators = topology.operators
    together = _together(operators)
    updates = updates_tables(operators)
    for operator in operators.values():
        read = operator.inputs[0] if operator.inputs else ""
        match operator:
            case KeyedTable(newest_by=None):
                remedy = (
                    'newest_by = "event_time" goes by record time, and newest_by = "arrival" says that this is meant'
                )
            case Map() if operator.emission is not None:
                remedy = "let it read a table with newest_by, or records that have this key in Kafka"
            case Sink() if operator.key and read not in updates:
                remedy = "let it read a table with newest_by"
            case _:
                continue
        key = operator.key or (KAFKA_KEY,)
        if together[read] is not ORDERED and not together[read].intersection(key):
            named = ", ".join(operator.key) or "the record's own key"
            yield operator.name, f"keeps the record of {named} that is read last, of partitions in no order; {remedy}"


def _together(operators: Mapping[str, Operator]) -> dict[str, frozenset[str]]:
    """Per operator the columns of whose values all records come in one order."""
    found: dict[str, frozenset[str]] = {}
    for operator in operators.values():
        read = found[operator.inputs[0]] if operator.inputs else frozenset()
        match operator:
            case Source():
                keys = frozenset({KAFKA_KEY, *([operator.key] if operator.key else [])})
                found[operator.name] = keys if operator.topic else ORDERED
            case HopSource():
                repartition = operators[operator.repartition]
                assert isinstance(repartition, Repartition)
                read = found[repartition.name]
                found[operator.name] = read if read is ORDERED else read & {*repartition.key, *repartition.columns}
            case Map():
                found[operator.name] = read if read is ORDERED else _passed_on(operator, read)
            case KeyedTable() | Aggregate():
                found[operator.name] = frozenset({KAFKA_KEY, *operator.key})
            case Union():
                found[operator.name] = frozenset()
            case Repartition() | Join() | Sink() | _:
                found[operator.name] = read
    return found


def _passed_on(operator: Map, read: frozenset[str]) -> frozenset[str]:
    if operator.emission is not None:
        return frozenset({KAFKA_KEY, *operator.key})
    return frozenset(name for name, sql in operator.select.items() if sql.strip() in read) | (read & {KAFKA_KEY})
