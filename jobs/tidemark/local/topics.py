"""Creates the topics of topologies on one broker.

It runs as `python -m tidemark.local.topics BROKER FILE…`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.local.broker import create_topics
from tidemark.model.project.connections import DEFAULT
from tidemark.model.topology import Topology, load

PARTITIONS = {"flight_events": 3}
"""Topics with several partitions: flights of each airport have one."""


def topics_of(topology: Topology) -> dict[str, int]:
    """Returns *topology*'s topics in the cluster `default`, with their partitions."""
    topics: set[str] = set()
    for end in topology.kafka_ends:
        # Topics of a pattern are made by others.
        topics.update(each.topic or "" for each in end.each_topic([]) if end.kafka == DEFAULT)
    return {topic: PARTITIONS.get(topic, 1) for topic in sorted(topics)}


if __name__ == "__main__":
    for file in sys.argv[2:]:
        create_topics(sys.argv[1], topics_of(load(Path(file))))
