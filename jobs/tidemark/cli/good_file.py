"""What `tidemark check` says of a topology that can run: what it reads, writes and promises, and which DAGs it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.cli.local import PARTS, dag_id
from tidemark.sampling.topic_sample import SampledCluster
from tidemark.spec.connections import Clusters, topic_command
from tidemark.spec.operators import Sink, Source
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.topology import Topology


def good_file(
    topology: Topology, specs: Sequence[SlaSpec], clusters: Clusters, asked: Mapping[str, SampledCluster]
) -> list[str]:
    """A line each for the streams, topics, tables, SLAs and DAGs of *topology*, of which *specs* are the SLAs.

    *clusters* are those that have an address; of those that are *asked* the number of partitions is shown as well.
    """
    operators = topology.operators.values()
    topics = [
        f"{'reads' if isinstance(o, Source) else 'writes'} {o.topic} at {_place(o, clusters, asked)}"
        for o in operators
        if isinstance(o, (Source, Sink)) and o.topic
    ]
    parts = {
        "streams": [sub.name for sub in topology.sub_topologies],
        "topics": topics,
        "tables": [sink.table for sink in operators if isinstance(sink, Sink) and sink.table],
        "SLAs": [f"{spec.name} ({spec.measure} of {spec.subject})" for spec in specs],
        "DAGs": [dag_id(topology.name, part) for part in PARTS],
    }
    return [f"{topology.name}: {what}: {', '.join(found) or 'none'}" for what, found in parts.items()]


def _place(at: Source | Sink, clusters: Clusters, asked: Mapping[str, SampledCluster]) -> str:
    """The broker of the topic of *at*, and how many partitions it has there if that is known."""
    if at.kafka not in clusters:
        return "the broker that `tidemark up` starts"
    address = clusters[at.kafka].bootstrap
    if at.kafka not in asked:
        return address
    number = asked[at.kafka].partitions.get(at.topic or "")
    if number is None:
        return f"{address} (not there yet: `{topic_command(at.topic or '')}` makes it at the broker of this machine)"
    return f"{address} ({number} partition{'s' if number != 1 else ''})"
