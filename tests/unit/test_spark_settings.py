"""Spark settings in topologies, and refusals of invalid tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import InvalidSpec
from tidemark.local import broker
from tidemark.model.project.spark_settings import (
    JAVA_OPTIONS,
    OF_ARCHIVES,
    SparkSettings,
    driver_settings,
    local_driver,
    read_spark,
    settings,
)
from tidemark.selection import outside

PROJECT = Path(__file__).parents[2]


def test_settings_are_those_of_the_file_jobs_are_submitted_with() -> None:
    found = dict(settings(PROJECT / "docker" / "spark-defaults.conf"))
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert not any(key.startswith("#") or not value for key, value in found.items())


def test_a_driver_starts_from_the_archive_where_there_is_one(tmp_path: Path) -> None:
    for folder in ("docker", ".jars"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docker" / "spark-defaults.conf").write_text(f"# Comment\n{JAVA_OPTIONS}  -Dx=1\nspark.a b\n")
    assert driver_settings(tmp_path) == {JAVA_OPTIONS: "-Dx=1", "spark.a": "b"}
    archive = tmp_path / ".jars" / "classes.jsa"
    archive.touch()
    assert driver_settings(tmp_path)[JAVA_OPTIONS].startswith(f"-Dx=1 -XX:SharedArchiveFile={archive} -Xlog:disable ")


def test_a_broker_starts_from_the_archive_where_there_is_one(tmp_path: Path) -> None:
    without = broker.server_command(tmp_path, tmp_path)
    archive = tmp_path / "broker.jsa"
    archive.touch()
    added = [f"-XX:SharedArchiveFile={archive}", *OF_ARCHIVES.split()]
    command = broker.server_command(tmp_path, tmp_path)
    assert (len(command) - len(without), outside(command, added)) == (len(added), without)


def test_a_topology_without_settings_changes_nothing() -> None:
    assert read_spark("x.toml", {}) == SparkSettings(master=None, deploy=None, properties={})


@pytest.mark.parametrize("master", [None, "yarn", "k8s://https://api:6443"])
def test_a_topology_says_where_its_drivers_run(master: str | None) -> None:
    said = {"deploy": "cluster"} | ({"master": master} if master else {})
    assert read_spark("x.toml", said).deploy == "cluster"
    assert read_spark("x.toml", {**said, "deploy": "client"}).deploy == "client"


def test_every_key_becomes_the_properties_of_each_cluster() -> None:
    said = {"master": "yarn", "executors": 3, "cores": 2, "memory": "2g", "driver_memory": "512m"}
    read = read_spark("x.toml", {**said, "conf": {"spark.task.cpus": "2", "spark.sql.shuffle.partitions": "8"}})
    assert read.master == "yarn"
    assert read.properties == {
        "spark.executor.instances": "3",  # YARN and Kubernetes count executors,
        "spark.cores.max": "6",  # a standalone cluster the cores of all of them
        "spark.executor.cores": "2",
        "spark.executor.memory": "2g",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "8",
        "spark.task.cpus": "2",
    }


def test_drivers_and_executors_have_the_named_python() -> None:
    read = read_spark("x.toml", {"python": "/spark/bin/python"})
    assert read.python == "/spark/bin/python"
    names = ("spark.pyspark.driver.python", "spark.pyspark.python")
    assert read.properties == dict.fromkeys(names, "/spark/bin/python")


def test_executors_may_have_a_python_of_their_own() -> None:
    read = read_spark("x.toml", {"python": "/spark/bin/python", "conf": {"spark.pyspark.python": "/there/python"}})
    assert read.properties["spark.pyspark.driver.python"] == "/spark/bin/python"
    assert read.properties["spark.pyspark.python"] == "/there/python"


def test_executors_have_one_core_unless_said_otherwise() -> None:
    properties = read_spark("x.toml", {"executors": 2}).properties
    assert (properties["spark.executor.cores"], properties["spark.cores.max"]) == ("1", "2")


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"master": "mesos://here"}, "x.toml: spark.master: is 'mesos://here'; write master = \"spark://spark-master"),
        ({"python": "bin/python"}, "x.toml: spark.python: is 'bin/python'; write python = \"/opt/spark/bin/python\""),
        ({"memory": "2 GB"}, "x.toml: spark.memory: is '2 GB'; write memory = \"2g\""),
        ({"deploy": "custer"}, "x.toml: spark.deploy: is 'custer'; use one of client, cluster"),
        (
            {"deploy": "cluster", "master": "spark://a:7077"},
            "x.toml: spark.deploy: is 'cluster', but Spark starts no Python driver in a standalone cluster; "
            'write deploy = "client", or master = "yarn" or "k8s://…"',
        ),
        (
            {"deploy": "cluster", "master": "local[2]"},
            "x.toml: spark.deploy: is 'cluster', but the driver of a local master is on the host that starts it; "
            'write deploy = "client", or master = "yarn" or "k8s://…"',
        ),
        (
            {"conf": {"spark.submit.deployMode": "cluster"}},
            'x.toml: spark.conf."spark.submit.deployMode": is reserved for Tidemark; leave it out',
        ),
        ({"executors": 0}, "x.toml: spark.executors: is 0; write 1 or more"),
        ({"core": 2}, "x.toml: spark.core: is not a valid key here; did you mean cores?"),
        ({"conf": {"spark.jars": "a.jar"}}, 'x.toml: spark.conf."spark.jars": is reserved for Tidemark; leave it out'),
        ({"conf": {"spark": {"ui": "1"}}}, "x.toml: spark.conf.\"spark\": is {'ui': '1'}; write names in quotes"),
        ({"conf": {"cores": "2"}}, "x.toml: spark.conf.\"cores\": is '2'; write names in quotes, and strings"),
        (
            {"cores": 2, "conf": {"spark.executor.cores": "1"}},
            'x.toml: spark.conf."spark.executor.cores": is also set by another key of this table; keep one of them',
        ),
    ],
)
def test_a_wrong_table_is_refused_with_file_key_and_remedy(said: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        read_spark("x.toml", said)
    assert str(raised.value).startswith(refusal)


SECRETS = [
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth2.client.secret",
    "spark.ssl.keyPassword",
    "spark.ssl.historyServer.trustStorePassword",
    "spark.executorEnv.KAFKA_PASSWORD",
    "spark.yarn.appMasterEnv.API_TOKEN",
    "spark.kafka.clusters.eu.sasl.jaas.config",
]
PLACES = [
    "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.kubernetes.driver.secretKeyRef.KAFKA_PASSWORD",
    "spark.kubernetes.executor.secrets.kafka",
    "spark.kubernetes.authenticate.driver.oauthTokenFile",
    "spark.kafka.clusters.eu.sasl.token.mechanism",
    "spark.security.credentials.hive.enabled",
    "spark.io.encryption.keySizeBits",
    "spark.io.encryption.enabled",
    "spark.network.crypto.enabled",
    "spark.redaction.string.regex",
    "spark.ssl.keyStore",
    "spark.executor.memoryOverhead",
    "spark.sql.columnNameOfCorruptRecord",
]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("value", ["hunter2-canary", 918273645])
def test_a_secret_that_would_be_an_argument_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSpec) as raised:
        read_spark("x.toml", {"conf": {name: value}})
    said = str(raised.value)
    assert said.startswith(f'x.toml: spark.conf."{name}": has a secret, which would be an argument of spark-submit')
    assert "[kafka.NAME]" in said
    assert str(value) not in said


@pytest.mark.parametrize("name", PLACES)
def test_a_property_that_names_a_place_is_allowed(name: str) -> None:
    assert read_spark("x.toml", {"conf": {name: "x"}}).properties == {name: "x"}


@pytest.mark.parametrize(
    ("master", "host"), [("local", "127.0.0.1"), ("local[2]", "127.0.0.1"), ("spark://a:7077", None)]
)
def test_a_driver_on_a_local_master_listens_on_loopback_alone_and_takes_results_from_its_tasks(
    master: str, host: str | None
) -> None:
    of_local = {"spark.driver.host": host, "spark.driver.bindAddress": host, "spark.task.maxDirectResultSize": "64m"}
    assert local_driver(master) == (of_local if host else {})
