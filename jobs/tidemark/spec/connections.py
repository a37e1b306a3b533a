"""The Kafka clusters of a project, and which address of each is used.

A cluster is a table `[kafka.NAME]` with `bootstrap`, in a topology's file or, for all of them, in `connections.toml`.
A source or a Kafka sink says `kafka = "NAME"`; without that it uses the cluster `default`. docs/connections.md says
in which order addresses count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.spec.project import Project
from tidemark.spec.toml_keys import IDENTIFIER, Keys, read_toml, read_whole

DEFAULT = "default"
"""The cluster of what names none."""
VARIABLE = "TIDEMARK_KAFKA_"
"""Begins the name of the environment variable with the address of a cluster; its name in capitals follows."""
EXAMPLE = "broker.example.org:9092"
PARTITIONS = 3
"""Of a topic that `tidemark topic create` makes, unless --partitions says otherwise."""
LOCAL = "else the broker that `up` started"

_PLACE = r"[^\s,=:\[\]]+|\[[0-9a-fA-F:]+\]"
_ADDRESS = re.compile(rf"({_PLACE}):\d{{1,5}}(\s*,\s*({_PLACE}):\d{{1,5}})*")


Settings = dict[str, str | int | float | bool]
"""Of a client of `confluent_kafka`."""


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster, reached at *bootstrap*: HOST:PORT, several with commas between them."""

    bootstrap: str

    @property
    def client(self) -> Settings:
        """What a client of `confluent_kafka` needs to reach it."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def spark(self) -> dict[str, str]:
        """What Spark's Kafka source needs to reach it."""
        return {"kafka.bootstrap.servers": self.bootstrap}


Clusters = Mapping[str, Cluster]
"""By the name that sources and sinks use."""


def read_clusters(file: str, content: Mapping[str, Any]) -> Clusters:
    """The clusters of *content*, the table `kafka` of *file*; raises InvalidSpec."""
    return MappingProxyType({name: _read(file, name, table) for name, table in content.items()})


def shared_clusters(folder: Path) -> Clusters:
    """The clusters in `connections.toml` of the project whose topologies lie in *folder*; raises InvalidSpec."""
    project = Project.of(folder)
    if project is None or not project.connections.is_file():
        return MappingProxyType({})
    name = project.connections.name

    def read(keys: Keys) -> Clusters:
        return read_clusters(name, keys.get("kafka", dict, f'{{ default = {{ bootstrap = "{EXAMPLE}" }} }}', {}))

    found, mistakes = read_whole(name, "", read_toml(project.connections), read)
    if mistakes or found is None:
        raise InvalidSpec("\n".join(map(str, mistakes)))
    return found


def _read(file: str, name: str, table: Any) -> Cluster:
    keys = Keys(file, f"kafka.{name}", table if isinstance(table, dict) else {})
    if not IDENTIFIER.fullmatch(name):
        raise InvalidSpec.at(
            file, keys.at, "invalid name of a cluster", "use a lower-case letter, then those, digits and _"
        )
    bootstrap = keys.text("bootstrap", EXAMPLE)
    if not _ADDRESS.fullmatch(bootstrap):
        keys.fail("bootstrap", f"is {bootstrap!r}", f'write bootstrap = "{EXAMPLE}", several with commas between them')
    keys.done()
    return Cluster(bootstrap)


def named_address(text: str) -> tuple[str, str]:
    """Cluster and address of `--bootstrap [NAME=]HOST:PORT`; raises InvalidArgument.

    >>> named_address("localhost:9092"), named_address("eu=broker.example.org:9092")
    (('default', 'localhost:9092'), ('eu', 'broker.example.org:9092'))
    """
    name, sign, address = text.rpartition("=")
    if not _ADDRESS.fullmatch(address) or (sign and not IDENTIFIER.fullmatch(name)):
        msg = f"{text!r} is not an address: write HOST:PORT, or NAME=HOST:PORT for the cluster [kafka.NAME]"
        raise InvalidArgument(msg)
    return name or DEFAULT, address


def addressed(
    names: Iterable[str],
    known: Clusters,
    given: Iterable[tuple[str, str]],
    environ: Mapping[str, str],
    *,
    otherwise: str | None = None,
) -> Clusters:
    """The clusters *names*, and those that are *given*, by name; of several addresses the first one counts.

    Args:
        names: clusters that a topology uses.
        known: those of its file and of its project.
        given: names and addresses of the command line.
        environ: the process's environment variables.
        otherwise: of `default`, the address of the broker that runs on this machine.

    Raises:
        InvalidArgument: one has no address.
    """
    by_name = dict(given)
    wanted = sorted({*names, *by_name})
    found = with_address(wanted, known, by_name, environ, otherwise=otherwise)
    for name in wanted:
        if name not in found:
            flag = "--bootstrap HOST:PORT" if name == DEFAULT else f"--bootstrap {name}=HOST:PORT"
            local = ", or start a broker on this machine with `tidemark up`" if name == DEFAULT else ""
            written = f"write [kafka.{name}] into connections.toml"
            msg = f"the Kafka cluster {name} has no address: {written}, give {flag}{local}"
            raise InvalidArgument(msg)
    return found


def with_address(
    names: Iterable[str],
    known: Clusters,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    otherwise: str | None = None,
) -> Clusters:
    """As `addressed`, but only those of *names* that have an address."""
    found: dict[str, Cluster] = {}
    for name in names:
        local = otherwise if name == DEFAULT else None
        written = known[name].bootstrap if name in known else local
        if address := given.get(name) or environ.get(f"{VARIABLE}{name.upper()}") or written:
            found[name] = Cluster(address)
    return MappingProxyType(found)


def topic_command(topic: str, partitions: int = PARTITIONS) -> str:
    """The command that makes *topic* at the broker of this machine."""
    return f"tidemark topic create {topic} --partitions {partitions}"


def flags(clusters: Clusters) -> list[str]:
    """What a driver's command line says of *clusters*."""
    return [word for name, each in clusters.items() for word in ("--bootstrap", f"{name}={each.bootstrap}")]


def time_of(clusters: Clusters) -> Cluster | None:
    """The one of *clusters* by whose clock a topology's drivers compare theirs; None where there is none."""
    return clusters.get(DEFAULT) or next((clusters[name] for name in sorted(clusters)), None)
