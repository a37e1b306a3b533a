"""The Kafka clusters of a project, with addresses and security.

A cluster is a table `[kafka.NAME]` with `bootstrap`, in a topology's file or, for all topologies, in
`connections.toml`. A source or a Kafka sink names it with `kafka = "NAME"`; the default is the cluster `default`.
docs/connections.md has the order in which addresses count. `kafka_security.py` has the other keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.project.kafka_security import (
    ISOLATION,
    KEYS,
    OPEN,
    OPEN_KEYS,
    READ_UNCOMMITTED,
    RULES,
    ClientSettings,
    Security,
    in_the_clear,
    security_of,
    unusable,
)
from tidemark.model.project.secrets import EMPTY_VAULT, SecretPlace, Value, Vault
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, TableForm, Values, optional, refuse_mistakes, required
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.settings.value_types import HOW_TO_NAME, IDENTIFIER, refuse
from tidemark.safe_text import hide

T = TypeVar("T")

HEARTBEATS = "tidemark_heartbeats"
"""The topic by which drivers learn the time of brokers."""
DEFAULT = "default"
"""The cluster of sources and sinks that name none."""
VARIABLE = "TIDEMARK_KAFKA_"
"""Prefix of the environment variable with the address of a cluster.

The name of the cluster follows in capitals.
"""
EXAMPLE = "broker.example.org:9092"
REGISTRY_EXAMPLE = "https://registry.example.org"
PARTITIONS = 3
"""Default number of partitions of `tidemark topic create`."""
LOCAL = "the broker that `up` started"

_PLACE = r"[^\s,=:\[\]]+|\[[0-9a-fA-F:]+\]"
_ADDRESS = re.compile(rf"({_PLACE}):\d{{1,5}}(\s*,\s*({_PLACE}):\d{{1,5}})*")


def _address(text: str, key: str, example: str) -> str:
    if not _ADDRESS.fullmatch(text):
        refuse(f"is {text!r}", f"write {key} = {example}; separate several addresses by commas")
    return text


BOOTSTRAP = required(
    "bootstrap",
    value_types.text({"type": "string", "pattern": f"^({_ADDRESS.pattern})$"}).then(_address),
    example=f'"{EXAMPLE}"',
    meaning="address of a broker, `HOST:PORT`; several with commas between them",
)
CLUSTER = TableForm(keys=(BOOTSTRAP, *KEYS), rules=RULES)
"""The table of a cluster, `[kafka.NAME]`."""
KAFKA = optional(
    "kafka",
    value_types.plain(dict),
    example=f'{{ eu = {{ bootstrap = "{EXAMPLE}" }} }}',
    meaning="Kafka clusters, as tables `[kafka.NAME]`: [connections.md](connections.md)",
)
REGISTRY = optional(
    "registry",
    value_types.plain(dict),
    example=f'{{ main = {{ url = "{REGISTRY_EXAMPLE}" }} }}',
    meaning="schema registries, as tables `[registry.NAME]`: [connections.md](connections.md#schema-registries)",
)
FILE = TableForm(keys=(KAFKA, REGISTRY))
"""The tables of `connections.toml`."""


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster, and how clients reach it.

    Secrets are looked up when `client` or `spark` is read, and are kept in neither.

    Attributes:
        bootstrap: HOST:PORT, several with commas between them.
        name: by which sources and sinks name it.
        security: how clients log in.
        vault: where the secrets are looked up.
    """

    bootstrap: str
    name: str = DEFAULT
    security: Security = OPEN
    vault: Vault = field(default=EMPTY_VAULT, repr=False, compare=False)

    @property
    def client(self) -> ClientSettings:
        """The settings of a client of `confluent_kafka`.

        Raises:
            InvalidArgument: a secret cannot be looked up.
        """
        return {"bootstrap.servers": self.bootstrap, **self.security.for_librdkafka(self._text)}

    @property
    def spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source.

        Raises:
            InvalidArgument: a secret cannot be looked up.
        """
        return {"kafka.bootstrap.servers": self.bootstrap, **self.security.for_spark(self._text)}

    @property
    def reads_uncommitted(self) -> bool:
        """True if records of open and aborted transactions are read, too."""
        return self.security.settings.get(ISOLATION) == READ_UNCOMMITTED

    @property
    def references(self) -> dict[str, SecretPlace]:
        """The places of its secrets, by key with a dot, as in the table `kafka`: `eu.password`."""
        return {f"{self.name}.{key}": value for key, value in self.security.references.items()}

    def _text(self, key: str, value: Value) -> str:
        text = self.vault.text(f"{self.name}.{key}", value)
        if problem := unusable(key, text):
            msg = f"kafka.{self.name}.{key}: {problem}"
            raise InvalidArgument(msg)
        if isinstance(value, SecretPlace) and key not in OPEN_KEYS:
            hide(text)
        return text


Clusters = Mapping[str, Cluster]
"""By the name that sources and sinks use."""


def read_clusters(file: str, content: Mapping[str, Any], folder: Path | None = None) -> Clusters:
    """Reads the clusters of *content*, the table `kafka` of *file*.

    The file lies in *folder*, where relative paths of other files start.

    Raises:
        InvalidSpec: clusters are not valid; a line for each mistake.
    """
    tables = named_tables(CLUSTER, file, KAFKA, content, what="cluster name")
    return MappingProxyType({name: _cluster(values, name, folder) for name, values in tables.items()})


def named_tables(
    form: TableForm, file: str, key: Key[Any], content: Mapping[str, Any], *, what: str
) -> Mapping[str, Values]:
    """Reads the tables in *content*, the value of *key* in *file*, by name; *what* is the noun for one of them.

    Raises:
        InvalidSpec: with a line for each mistake of all tables.
    """
    tables = {name: form.read(file, f"{key.name}.{name}", table) for name, table in content.items()}
    for name, values in tables.items():
        if not IDENTIFIER.fullmatch(name):
            values.mistakes.append(InvalidSpec.at(file, values.at, f"is not a valid {what}", HOW_TO_NAME))
    refuse_mistakes(tables.values())
    return tables


def _cluster(values: Values, name: str, folder: Path | None) -> Cluster:
    return Cluster(values[BOOTSTRAP], name, security_of(values, folder))


def shared_clusters(folder: Path) -> Clusters:
    """Returns the clusters in `connections.toml` of a project.

    The project's topologies lie in *folder*.

    Raises:
        InvalidSpec: the file is not valid.
    """
    return shared_tables(folder, KAFKA, read_clusters)


def shared_tables(
    folder: Path, key: Key[Any], read: Callable[[str, Mapping[str, Any], Path], Mapping[str, T]]
) -> Mapping[str, T]:
    """Returns the tables of *key* in `connections.toml` of a project.

    Args:
        folder: the folder of the project's topologies.
        key: a key of the file.
        read: reads its value, given the file's name and folder.

    Raises:
        InvalidSpec: the file is not valid.
    """
    project = Project.of(folder)
    if project is None or not project.connections.is_file():
        return MappingProxyType({})
    name = project.connections.name

    values = FILE.read(name, "", read_toml(project.connections))
    # The file is read once for each key. Mistakes in all keys are told at the first time.
    lines = [str(mistake) for mistake in values.mistakes if key is FILE.keys[0] or mistake.key == key.name]
    written = values.written.get(key.name)
    try:
        tables = read(name, written if isinstance(written, dict) else {}, project.folder)
    except InvalidSpec as error:
        lines += str(error).splitlines()
    if lines:
        raise InvalidSpec("\n".join(lines))
    return tables


def named_address(text: str) -> tuple[str, str]:
    """Returns cluster and address of `--bootstrap [NAME=]HOST:PORT`.

    Raises:
        InvalidArgument: it is not an address.

    >>> named_address("localhost:9092"), named_address("eu=broker.example.org:9092")
    (('default', 'localhost:9092'), ('eu', 'broker.example.org:9092'))
    """
    name, sign, address = text.rpartition("=")
    if not _ADDRESS.fullmatch(address) or (sign and not IDENTIFIER.fullmatch(name)):
        msg = f"{text!r} is not an address; write HOST:PORT, or NAME=HOST:PORT for the cluster [kafka.NAME]"
        raise InvalidArgument(msg)
    return name or DEFAULT, address


def addressed_clusters(
    names: Iterable[str],
    configured: Clusters,
    addresses: Iterable[tuple[str, str]],
    environ: Mapping[str, str],
    *,
    otherwise: str | None = None,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> Clusters:
    """Returns the clusters *names*, and those that have one of *addresses*.

    If a cluster has several addresses, the first one counts.

    Args:
        names: clusters that a topology uses.
        configured: the clusters of its file and of its project.
        addresses: names and addresses from the command line.
        environ: the process's environment variables.
        otherwise: for `default`, the address of the broker that runs on this machine.
        secrets: values of secrets by their places, such as `eu.password`.

    Raises:
        InvalidArgument: a cluster has no address.
    """
    by_name = dict(addresses)
    wanted = sorted({*names, *by_name})
    clusters = with_address(wanted, configured, by_name, environ, otherwise=otherwise, secrets=secrets)
    for name in wanted:
        if name not in clusters:
            raise InvalidArgument(without_address(name))
    return clusters


def without_address(name: str) -> str:
    """Returns the message that the cluster *name* has no address, and how to give it one."""
    flag = "--bootstrap HOST:PORT" if name == DEFAULT else f"--bootstrap {name}=HOST:PORT"
    local = ", or start a broker on this machine with `tidemark up`" if name == DEFAULT else ""
    return f"the Kafka cluster {name} has no address; write [kafka.{name}] in connections.toml, or give {flag}{local}"


def with_address(
    names: Iterable[str],
    configured: Clusters,
    addresses: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    otherwise: str | None = None,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> Clusters:
    """Returns those of *names* that have an address; the arguments are those of `addressed_clusters`.

    A cluster has the security of its table in a file, wherever its address comes from.
    """
    clusters: dict[str, Cluster] = {}
    vault = Vault(environ, secrets)
    for name in names:
        local = otherwise if name == DEFAULT else None
        # The command line of a driver comes before its environment, and that before files.
        written = configured[name].bootstrap if name in configured else local
        if address := addresses.get(name) or environ.get(f"{VARIABLE}{name.upper()}") or written:
            cluster = configured.get(name, Cluster(address, name))
            clusters[name] = replace(cluster, bootstrap=address, vault=vault)
    return MappingProxyType(clusters)


def topic_command(topic: str, partitions: int = PARTITIONS) -> str:
    """Returns the command that creates *topic* at the broker of this machine."""
    return f"tidemark topic create {topic} --partitions {partitions}"


def flags(clusters: Clusters) -> list[str]:
    """Returns the options of a driver's command line for *clusters*."""
    words: list[str] = []
    for name, cluster in clusters.items():
        words += ["--bootstrap", f"{name}={cluster.bootstrap}"]
    return words


def time_of(clusters: Clusters) -> Cluster | None:
    """Returns the cluster with whose clock drivers compare theirs, if any."""
    return clusters.get(DEFAULT) or next((clusters[name] for name in sorted(clusters)), None)


def in_clear(clusters: Clusters) -> list[str]:
    """Returns the places of clusters that send secrets unencrypted, with reasons."""
    reasons = {name: in_the_clear(cluster.security) for name, cluster in clusters.items()}
    return [f"kafka.{name}.security_protocol: warning: {reason}" for name, reason in reasons.items() if reason]
