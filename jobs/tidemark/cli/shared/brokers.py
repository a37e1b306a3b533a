"""Asks brokers about topologies: those of the command line, and the one of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import Clusters, addressed_clusters, with_address
from tidemark.model.project.registries import with_secrets
from tidemark.model.topology import Topology
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.read.parsing import SchemasOf
from tidemark.stream.schemas.known_schemas import SchemaStore

Addresses = Sequence[tuple[str, str]]
"""Names and addresses of Kafka clusters from the command line."""


class Brokers:
    """Clients of the brokers that may be asked about topologies.

    Args:
        addresses: names and addresses of clusters from the command line.
        local: the address of the broker of this machine, if one runs.
        secrets: values of secrets by their places.
    """

    def __init__(self, addresses: Addresses, local: str | None, secrets: Mapping[str, str]) -> None:
        self.local = local
        self._addresses, self._secrets = dict(addresses), secrets
        self._brokers: list[tuple[Clusters, KafkaBroker]] = []

    def of(self, topology: Topology) -> KafkaBroker:
        """Returns a client of the answering clusters of *topology*.

        Raises:
            InvalidArgument: a broker that was given does not answer.
        """
        clusters = self.answering(self.clusters(topology))
        for known_clusters, broker in self._brokers:
            if known_clusters == clusters:
                return broker
        broker = KafkaBroker(clusters, "check", "check", wall_clock_ms)
        if self._addresses:
            broker.refuse_silence()
        self._brokers.append((clusters, broker))
        return broker

    def clusters(self, topology: Topology) -> Clusters:
        """Returns the clusters of *topology* that have an address, and those given."""
        names = sorted({*topology.clusters_used, *self._addresses})
        return with_address(
            names, topology.clusters, self._addresses, os.environ, otherwise=self.local, secrets=self._secrets
        )

    def all_clusters(self, topology: Topology) -> Clusters:
        """Returns the clusters of *topology*, and those given.

        Raises:
            InvalidArgument: one has no address.
        """
        return addressed_clusters(
            topology.clusters_used,
            topology.clusters,
            self._addresses.items(),
            os.environ,
            otherwise=self.local,
            secrets=self._secrets,
        )

    def schemas(self, topology: Topology) -> SchemasOf:
        """Returns what asks the registries of *topology* for schemas."""
        registries = with_secrets(topology.registries_used, os.environ, self._secrets)

        def refuse_to_wait() -> None:
            if store.trouble is not None:
                raise InvalidArgument(store.trouble)

        store = SchemaStore(registries, None, refuse_to_wait)
        return store.resolve

    def answering(self, clusters: Clusters) -> Clusters:
        """Returns those of *clusters* that may be asked without `--live`."""
        addresses = {self.local, *self._addresses.values()}
        return {name: cluster for name, cluster in clusters.items() if cluster.bootstrap in addresses}
