"""Warns where a result depends on the order of arrival across partitions.

That order is not guaranteed. Records of one partition are read in the order of their offsets, and those of one Kafka
key are in one partition. So a key that has the source's `key` among its columns is safe, and so is an input with one
partition: a Delta table, or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemark.model.kinds.operator import KAFKA_KEY, ORDERED, Operator
from tidemark.model.operator_graph import updates_tables
from tidemark.model.topology import Topology


def by_arrival(topology: Topology) -> Iterator[tuple[str, str]]:
    """Yields each operator that keeps the record of a key that arrived last, if several partitions have such records.

    With the operator comes a warning, which says what to do.
    """
    operators = topology.operators
    orders = _orders(operators)
    updates = updates_tables(operators)
    for operator in operators.values():
        kept = operator.last_arrived(reads_updates=not updates.isdisjoint(operator.inputs[:1]))
        if kept is None:
            continue
        order = orders[operator.inputs[0]]
        if order is not ORDERED and not order.intersection(kept.key or (KAFKA_KEY,)):
            named = ", ".join(kept.key) or "the record's own key"
            problem = f"keeps the last record read of {named}, but partitions are read in no fixed order"
            yield operator.name, f"{problem}; {kept.remedy}"


def _orders(operators: Mapping[str, Operator]) -> dict[str, frozenset[str]]:
    """Returns, by operator, the columns by which its records are in order (`Operator.ordered_by`)."""
    orders: dict[str, frozenset[str]] = {}
    for operator in operators.values():
        read = [orders[name] for name in operator.upstream_flows]
        orders[operator.name] = operator.ordered_by(read[0] if read else frozenset())
    return orders
