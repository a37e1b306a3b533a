"""Makes the topics of topologies that run on one broker: `python -m tidemark.embedded.topics BROKER FILE…`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.embedded.broker import create_topics
from tidemark.spec.connections import DEFAULT
from tidemark.spec.operators import Sink, Source
from tidemark.spec.topology import Topology, load

PARTITIONS = {"flight_events": 3}
"""Topics with more than one partition: flights of each airport have their own."""


def topics_of(topology: Topology) -> dict[str, int]:
    """The number of partitions of every topic of the cluster `default` that *topology* reads or writes."""
    ends = [o for o in topology.operators.values() if isinstance(o, Source | Sink) and o.kafka == DEFAULT]
    topics = {end.topic for end in ends if end.topic is not None}
    return {topic: PARTITIONS.get(topic, 1) for topic in sorted(topics)}


if __name__ == "__main__":
    for file in sys.argv[2:]:
        create_topics(sys.argv[1], topics_of(load(Path(file))))
