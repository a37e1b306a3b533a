"""Finds what a fault at an operator or a stream affects: the operators that need it, and sinks downstream."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.graph import reached
from tidemark.model.measures.completeness import OUTCOMES
from tidemark.model.measures.contract import ALL_TABLES
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import Topology
from tidemark.selection import names_in


def upstream_of(subject: str, topology: Topology) -> set[str]:
    """Returns the operators and sub-topologies that *subject* needs."""
    if subject in {OUTCOMES, CHANGES.name, ALL_TABLES}:
        return {*topology.operators, *names_in(topology.sub_topologies)}
    starts = {o.name for o in topology.operators.values() if subject in {o.name, o.result_table}}
    for sub in topology.sub_topologies:
        if sub.name == subject:
            starts |= set(names_in(sub.operators))
    needed = set(reached(starts, topology.upstreams))
    return needed | {topology.sub_topology_of(name).name for name in needed}


def results_downstream(
    operator: str | None, stream: str | None, topology: Topology, project: Iterable[Topology] = ()
) -> tuple[list[str], list[str]]:
    """Returns tables and topics of the sinks downstream of an operator, or of a stream.

    Sinks of other topologies count, too, if these read such a topic. Their tables are written as TOPOLOGY/TABLE.

    Args:
        operator: the operator; None for all of *stream*.
        stream: the stream; TOPOLOGY/STREAM is one of another topology of the project.
        topology: the topology.
        project: the other topologies.
    """
    origin, _, sub = (stream or "").rpartition("/")
    every = [topology, *project]
    home = next((each for each in every if each.name == (origin or topology.name)), None)
    if home is None:
        return [], []
    others = [each for each in every if each is not home]
    origin_name = operator if operator in home.operators else sub or None
    tables: dict[str, None] = {}
    topics: dict[tuple[str, str], None] = {}
    affected: list[tuple[Topology, set[str | None]]] = [(home, {origin_name})]
    # The list grows while it is read: a topic leads to its readers, and those to topics of their own.
    for owner, names in affected:
        for sink in owner.sinks:
            if names.isdisjoint(upstream_of(sink.name, owner)):
                continue
            if sink.table:
                tables[sink.table if owner is topology else f"{owner.name}/{sink.table}"] = None
            topic = sink.topic
            if topic and (sink.kafka, topic) not in topics:
                topics[sink.kafka, topic] = None
                affected += ((other, _readers(other, sink.kafka, topic)) for other in others)
    return [*tables], [topic for _, topic in topics]


def _readers(topology: Topology, kafka: str, topic: str) -> set[str | None]:
    """Returns the sources of *topology* that read *topic* of a cluster."""
    return {source.name for source in topology.outside_sources if source.kafka == kafka and source.reads(topic)}
