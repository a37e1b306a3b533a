"""Finds what a place affects: the operators that need it, and the results of sinks downstream."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.collecting import names_in
from tidemark.graph import reached
from tidemark.model.measures.completeness import OUTCOMES
from tidemark.model.measures.contract import ALL_TABLES
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import Topology


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
    """Returns tables and topics of the sinks downstream of *operator*, or of *stream* without one.

    They are those of *topology*, and of each other topology of the *project* that reads such a topic. The tables of
    these are written as TOPOLOGY/TABLE. A stream TOPOLOGY/STREAM is one of another topology of the project.
    """
    origin, _, sub = (stream or "").rpartition("/")
    every = [topology, *project]
    home = next((each for each in every if each.name == (origin or topology.name)), None)
    if home is None:
        return [], []
    others = [each for each in every if each is not home]
    place = operator if operator in home.operators else sub or None
    tables: dict[str, None] = {}
    topics: dict[tuple[str, str], None] = {}
    late: list[tuple[Topology, set[str | None]]] = [(home, {place})]
    # The list grows while it is read: a topic leads to its readers, and those to topics of their own.
    for of, places in late:
        for sink in of.sinks:
            if places.isdisjoint(upstream_of(sink.name, of)):
                continue
            if sink.table:
                tables[sink.table if of is topology else f"{of.name}/{sink.table}"] = None
            topic = sink.topic
            if topic and (sink.kafka, topic) not in topics:
                topics[sink.kafka, topic] = None
                late += ((each, _readers(each, sink.kafka, topic)) for each in others)
    return [*tables], [topic for _, topic in topics]


def _readers(topology: Topology, kafka: str, topic: str) -> set[str | None]:
    """Returns the sources of *topology* that read *topic* of a cluster."""
    return {source.name for source in topology.outside_sources if source.kafka == kafka and source.reads(topic)}
