"""Summarizes a valid topology: streams, topics, tables, SLAs and DAGs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.cli.shared.local import dag_id, parts_of
from tidemark.model.kinds.kafka_end import KafkaEnd
from tidemark.model.project.connections import Clusters, topic_command
from tidemark.model.project.extras import can_publish
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.sample.topic_sample import SampledCluster


def file_summary(
    topology: Topology, specs: Sequence[SlaSpec], clusters: Clusters, sampled_clusters: Mapping[str, SampledCluster]
) -> list[str]:
    """Returns a line each for streams, topics, tables, SLAs, DAGs and driver.

    Args:
        topology: the topology.
        specs: its SLAs.
        clusters: the Kafka clusters that have an address.
        sampled_clusters: the clusters of which partitions are shown, too.
    """
    topics = []
    for end in topology.kafka_ends:
        verb = "reads" if end.is_source else "writes"
        existing = sampled_clusters[end.kafka].partitions if end.kafka in sampled_clusters else ()
        for each in end.each_topic(existing):
            topics.append(f"{verb} {each.topic} at {_place(each, clusters, sampled_clusters)}")
        if not end.each_topic(existing):
            topics.append(f"{verb} the topics that match {end.topic}")
    # It needs Airflow 3.3, too. `tidemark up` does not unpause it, because it is not paused at first.
    dags = [*parts_of(topology), *(["decisions"] if can_publish() else [])]
    tables = [operator.result_table for operator in topology.operators.values() if operator.result_table]
    parts = {
        "streams": [_stream(topology, sub.name) for sub in topology.sub_topologies],
        "topics": topics,
        "tables": tables,
        "SLAs": [f"{spec.name} ({spec.measure} of {spec.subject})" for spec in specs],
        "DAGs": [dag_id(topology.name, part) for part in dags],
    }
    if topology.driver is not None:
        parts["driver"] = [topology.driver]
    return [f"{topology.name}: {part}: {', '.join(names) or 'none'}" for part, names in parts.items()]


def _stream(topology: Topology, name: str) -> str:
    """Returns the stream's name, with its shards if it has several."""
    shards = topology.shards_of(name)
    return name if shards == 1 else f"{name} ({shards} shards)"


def _place(at: KafkaEnd, clusters: Clusters, sampled_clusters: Mapping[str, SampledCluster]) -> str:
    """Returns the broker of a topic, and its partitions if known."""
    if at.kafka not in clusters:
        return "the broker that `tidemark up` starts"
    address = clusters[at.kafka].bootstrap
    if at.kafka not in sampled_clusters:
        return address
    number = sampled_clusters[at.kafka].partitions.get(at.topic or "")
    if number is None:
        return f"{address} (not there yet: `{topic_command(at.topic or '')}` makes it at the broker of this machine)"
    return f"{address} ({number} partition{'s' if number != 1 else ''})"
