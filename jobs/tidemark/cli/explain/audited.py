"""Finds the topology and the topics that a command about records needs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from tidemark.cli.shared.local import running_broker, stopped_broker
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.streams import topology_with_file, valid_topologies
from tidemark.errors import InvalidArgument
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import with_address
from tidemark.model.project.layout import Layout
from tidemark.model.project.registries import with_secrets
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import given_secrets
from tidemark.semantics.progress import InputProgress, TopicPartition
from tidemark.stream.schemas.known_schemas import SchemaStore
from tidemark.trace.record import Tracer
from tidemark.trace.topics import Topics


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses the topology."""
    text = "name of the topology, or its TOML file (default: the one of the project that has that name)"
    parser.add_argument("--topology", metavar="TOPOLOGY", help=text)


def tracer_and_topics(options: argparse.Namespace, name: str) -> tuple[Tracer, Topics]:
    """Returns the tracer of the topology that has *name*, and its topics.

    Raises:
        InvalidArgument: no topology of the project has *name*, or several do.
    """
    topology = _with_name(topologies(options), name)
    secrets = given_secrets(options)
    clusters = with_address(
        sorted(topology.clusters_used),
        topology.clusters,
        dict(options.bootstrap),
        os.environ,
        otherwise=running_broker(options.home),
        secrets=secrets,
    )
    store = SchemaStore(with_secrets(topology.registries_used, os.environ, secrets), None, lambda: None)
    topics = Topics(
        clusters,
        lambda source, partition: _topic_partition(tracer, source, partition),
        store.resolve,
        stopped=stopped_broker(options.home),
    )
    tracer = Tracer(topology, Layout(existing_warehouse(options)), topics, topics.aborted, topics.why_unread)
    return tracer, topics


def _topic_partition(tracer: Tracer, source: Source, partition: int) -> TopicPartition:
    """Returns topic and Kafka's number of an input partition."""
    if not source.reads_several:
        return TopicPartition(source.topic or "", partition)
    sub = tracer.topology.sub_topology_of(source.name)
    places = tracer.evidence[sub.name].progress.get(source.name, InputProgress()).places
    if partition >= len(places):
        msg = f"{source.name} has no input partition {partition}; it has {len(places)}"
        raise InvalidArgument(msg)
    return places[partition]


def topologies(options: argparse.Namespace) -> list[Topology]:
    """Returns the topology of *options*, or all valid ones of the project.

    Raises:
        InvalidArgument: there is none of the name.
        InvalidSpec: the named one is not valid.
    """
    if options.topology:
        return [topology_with_file(options)]
    return valid_topologies()


def only(having: Sequence[Topology], name: str) -> Topology:
    """Returns the only topology among those *having* the name.

    Raises:
        InvalidArgument: there are several.
    """
    if len(having) > 1:
        names = ", ".join(sorted(topology.name for topology in having))
        msg = f"several topologies have {name!r}; say which one is meant: {names}"
        raise InvalidArgument(msg)
    return having[0]


def _with_name(candidates: Sequence[Topology], name: str) -> Topology:
    if len(candidates) == 1:
        return candidates[0]
    having = [topology for topology in candidates if name in {*_names(topology)}]
    if not having:
        names = ", ".join(sorted(topology.name for topology in candidates))
        msg = f"no valid topology of the project has {name!r}; there are: {names}"
        raise InvalidArgument(msg)
    return only(having, name)


def _names(topology: Topology) -> Iterator[str]:
    """Yields the names of operators, topics and tables."""
    for operator in topology.operators.values():
        yield operator.name
        yield from filter(None, (operator.topic_read, operator.result_table))
