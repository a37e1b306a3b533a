"""A stream: one sub-topology of a topology, in a warehouse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.model.project.layout import Layout
from tidemark.model.topology import SubTopology, Topology


@dataclass(frozen=True)
class Stream:
    """A sub-topology of a topology, in a warehouse.

    `promise_ms` is the shortest latency that an SLA of the topology promises; None if no SLA is known to promise one.
    """

    topology: Topology
    sub: SubTopology
    layout: Layout
    promise_ms: int | None = None

    @property
    def shards(self) -> int:
        """The number of its shards; with 1 its operators run in the driver."""
        return self.topology.shards_of(self.sub.name)

    @property
    def flush_keys(self) -> int:
        """The number of moved keys after which a state run is written."""
        return self.topology.flush_keys

    @property
    def flush_batches(self) -> int:
        """The number of batches after which a state run is written."""
        return self.topology.flush_batches

    @property
    def home(self) -> Path:
        """The folder of its tables."""
        return self.layout.stream(self.topology.name, self.sub.name)

    @property
    def control(self) -> Path:
        """Its control folder."""
        return self.layout.control(self.topology.name, self.sub.name)
