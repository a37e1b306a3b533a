"""Kafka cluster of a source, and the choice between its addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.connections import Cluster, addressed_clusters, flags, named_address, time_of
from tidemark.model.topology import Topology, load

SOURCES = """
name = "t"
[operators.near]
kind = "source"
topic = "a"
fields = "id string"
bound = "1 s"
[operators.far]
kind = "source"
kafka = "eu"
topic = "b"
fields = "id string"
bound = "1 s"
"""
OWN = '[kafka.eu]\nbootstrap = "own:1"\n'
SHARED = '[kafka.eu]\nbootstrap = "shared:1"\n[kafka.default]\nbootstrap = "shared:2"\n'


def project(folder: Path, topology: str, connections: str | None) -> Path:
    for name in ("topologies", "expectations"):
        (folder / name).mkdir()
    if connections is not None:
        (folder / "connections.toml").write_text(connections)
    file = folder / "topologies" / "t.toml"
    file.write_text(topology)
    return file


def addresses(topology: Topology, *given: str, environ: dict[str, str] | None = None) -> dict[str, str]:
    asked = [named_address(text) for text in given]
    found = addressed_clusters(topology.clusters_used, topology.clusters, asked, environ or {}, otherwise="local:9")
    return {name: cluster.bootstrap for name, cluster in found.items()}


def test_the_first_place_that_has_an_address_counts(tmp_path: Path) -> None:
    """In order: command line, environment, the topology's file, connections.toml."""
    topology = load(project(tmp_path, SOURCES + OWN, SHARED))
    assert addresses(topology) == {"default": "shared:2", "eu": "own:1"}
    environ = {"TIDEMARK_KAFKA_EU": "env:1", "TIDEMARK_KAFKA_DEFAULT": "env:2"}
    assert addresses(topology, environ=environ) == {"default": "env:2", "eu": "env:1"}
    assert addresses(topology, "flag:2", "eu=flag:1", environ=environ) == {"default": "flag:2", "eu": "flag:1"}


def test_default_is_the_broker_of_this_machine_last(tmp_path: Path) -> None:
    assert addresses(load(project(tmp_path, SOURCES + OWN, None))) == {"default": "local:9", "eu": "own:1"}


def test_what_reads_no_topic_needs_no_address(tmp_path: Path) -> None:
    table = 'kind = "source"\ndelta = "d"\nfields = "at bigint"\ntimestamp = "at"\nbound = "1 s"\n'
    topology = load(project(tmp_path, f'name = "t"\n[operators.a]\n{table}', None))
    clusters = addressed_clusters(topology.clusters_used, topology.clusters, [], {})
    assert (dict(clusters), time_of(clusters)) == ({}, None)


def test_a_cluster_without_an_address_is_named(tmp_path: Path) -> None:
    topology = load(project(tmp_path, SOURCES + OWN, None))
    with pytest.raises(InvalidArgument, match=r"cluster default has no address; write \[kafka.default\] in conn"):
        addressed_clusters(topology.clusters_used, topology.clusters, [], {})


@pytest.mark.parametrize(
    ("own", "shared", "seen"),
    [
        ("", None, "t.toml: operators.far.kafka: is 'eu', which neither this file nor connections.toml defines"),
        (OWN + 'colour = "x"\n', None, "t.toml: kafka.eu.colour: is not a valid key here; known keys: bootstrap"),
        ('[kafka.eu]\nbootstrap = "broker"\n', None, "t.toml: kafka.eu.bootstrap: is 'broker'; write bootstrap ="),
        ('[kafka.EU]\nbootstrap = "b:1"\n', None, "t.toml: kafka.EU: is not a valid cluster name"),
        ("", "[kafka.eu]\nbootstrap = 5\n", "connections.toml: kafka.eu.bootstrap: is 5; write bootstrap ="),
        ("", 'kafka = "b:9092"\n', "connections.toml: kafka: is 'b:9092'; write"),
        ("", '[[kafka]]\npassword = "hunter2"\n', "connections.toml: kafka: is a list of tables; write"),
        ("", '[[kafka.eu]]\npassword = "hunter2"\n', "connections.toml: kafka.eu: is a list of tables; write a table"),
        ("", "registry = 5\n", "connections.toml: registry: is 5; write"),
        ("", "[kafak.eu]\n", "connections.toml: kafak: is not a valid key here; did you mean kafka?"),
    ],
)
def test_mistakes_name_file_key_and_remedy(tmp_path: Path, own: str, shared: str | None, seen: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        load(project(tmp_path, SOURCES + own, shared))
    assert seen in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_topics_of_one_name_in_two_clusters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSpec, match=r"operators.far.topic: has the same name as the topic of 'near' in another cluster; read one"
    ):
        load(project(tmp_path, SOURCES.replace('topic = "b"', 'topic = "a"') + OWN, None))


@pytest.mark.parametrize("text", ["", "host", "host:", "eu=", "EU=host:1", "host:1,", "a b:1"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write HOST:PORT, or NAME=HOST:PORT"):
        named_address(text)


def test_several_brokers_and_ipv6_are_addresses() -> None:
    assert named_address("eu=a:1,b:2") == ("eu", "a:1,b:2")
    assert named_address("[::1]:9092") == ("default", "[::1]:9092")


def test_a_driver_is_given_every_address_once() -> None:
    clusters = {"default": Cluster("a:1"), "eu": Cluster("b:1,c:1")}
    words = flags(clusters)
    assert words == ["--bootstrap", "default=a:1", "--bootstrap", "eu=b:1,c:1"]
    assert time_of(clusters) == Cluster("a:1")
    assert time_of({"us": Cluster("u:1"), "eu": Cluster("e:1")}) == Cluster("e:1")
