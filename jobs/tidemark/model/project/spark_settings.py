"""The table `spark` of a topology file: cluster and resources."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.model.project.files import jars_folder
from tidemark.model.project.jars import refuse_unexpected
from tidemark.model.settings.kubernetes import SCHEME, KubernetesSettings, read_kubernetes
from tidemark.model.settings.toml_keys import Keys, read_inner

LOOPBACK = "127.0.0.1"
WITHOUT_SPARK = "TIDEMARK_WITHOUT_SPARK"
"""A variable that keeps a batch job from starting a session.

The job ends with SPARK_NEEDED instead.
"""
SPARK_NEEDED = 77
"""Exit status of a batch job with much data.

It is more than one process should read.
"""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
OF_ARCHIVES = (
    # A JVM that cannot use its archive of classes would report that on standard output.
    "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr "
    # At another address than its own it writes to each page: 100 MB of its own memory, which it otherwise shares with
    # other JVMs, and half a second of a processor.
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
)
"""Options of a JVM that has an archive of classes."""
TIDEMARKS_OWN = frozenset(
    {
        "spark.authenticate",
        "spark.authenticate.secret",
        "spark.driver.supervise",
        JAVA_OPTIONS,
        "spark.executor.extraJavaOptions",
        "spark.jars",
        "spark.master",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.extensions",
        "spark.sql.session.timeZone",
        "spark.submit.deployMode",
        "spark.submit.pyFiles",
        "spark.yarn.appMasterEnv.PYTHONPATH",
        "spark.yarn.appMasterEnv.TIDEMARK_PROJECT",
        "spark.yarn.maxAppAttempts",
    }
)
"""Properties that Tidemark sets itself.

Without them tables would be wrong, jobs would not find their code, or other users could stop them.
"""
OF_PODS = frozenset(
    {
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.kubernetes.container.image",
        "spark.kubernetes.driver.container.image",
        "spark.kubernetes.driver.podTemplateFile",
        "spark.kubernetes.executor.container.image",
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.namespace",
    }
)
"""Properties that follow from the table `kubernetes`."""
ONE_ATTEMPT = {"spark.yarn.maxAppAttempts": "1"}
"""Keeps YARN from starting a driver again.

The second one would find no secrets, because the first has removed the file, and would have the launch of the first.
Airflow starts the next driver itself.
"""
ROOM_FOR_PYTHON = {"spark.driver.memoryOverheadFactor": "1.0", "spark.executor.memoryOverheadFactor": "1.0"}
"""Memory of a container beside the JVM's, as a share of that.

Python has the states there. Managers kill a container that needs more than it asked for.
"""
_SECRET = re.compile(
    r".*(password|passphrase|passwd|secret|token|credential|jaas|sas\b|(access|account|api|private|shared)[._-]?key)|.*\.key(\.|$)",
    re.IGNORECASE,
)
"""Properties whose values are secrets, by their names."""
_NO_SECRET = re.compile(
    r"spark\.kubernetes\.(driver|executor)\.(secrets|secretKeyRef)\..*|"
    r".*(\.|_|-|(?<=[a-z]))(path|file|location|dir|provider|providers|class|impl|enabled|name|mechanism|type|algorithm|regex|"
    r"ratio|interval|timeout|ms|length|bits|size)",
    re.IGNORECASE,
)
"""Properties that name the place or the kind of a secret."""
_MASTER = re.compile(r"local(\[.+\])?|yarn|(spark|k8s)://.+")
_OTHER_WAYS = (
    "leave it out: keys of object stores come from the environment (docs/object-store.md), secrets of Kafka from "
    "[kafka.NAME] (docs/connections.md), and others from the keystore in "
    '"spark.hadoop.hadoop.security.credential.provider.path"'
)
DEPLOY_REMEDY = 'write deploy = "client", or master = "yarn" or "k8s://…"'
_MEMORY = re.compile(r"\d+[mg]")
_ABSOLUTE = re.compile(r"/.*[^/]")


class DeployMode(StrEnum):
    """The place of drivers that Airflow starts."""

    CLIENT = "client"
    """Airflow's host."""
    CLUSTER = "cluster"
    """A host that the cluster manager chooses."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Spark's *master*, the place of drivers, pods, and *properties* by name.

    Airflow's connection has the first two where they are None. *python* is the Python of jobs, whose environment has
    Spark; None: Airflow's environment has it. Pods are used on Kubernetes alone.
    """

    master: str | None = None
    deploy: DeployMode | None = None
    python: str | None = None
    kubernetes: KubernetesSettings | None = None
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


def jars(project: Path) -> list[str]:
    """Returns the jars that jobs of the checkout *project* need."""
    # Jars for object stores exist only after `make object-store`.
    folder = jars_folder(project)
    refuse_unexpected(folder, project)
    return sorted(map(str, [*folder.glob("spark/*.jar"), *folder.glob("s3/*.jar")]))


def settings(file: Path) -> Iterator[tuple[str, str]]:
    """Yields key and value of each line of a spark-defaults.conf."""
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.strip().partition(" ")
        if key and not key.startswith("#"):
            yield key, value.strip()


def is_secret(name: str) -> bool:
    """Returns True if the value of the property *name* is a secret, by its name."""
    return _SECRET.match(name) is not None and _NO_SECRET.fullmatch(name) is None


def driver_settings(project: Path) -> dict[str, str]:
    """Returns `docker/spark-defaults.conf` for a driver on this machine."""
    properties = dict(settings(project / "docker" / "spark-defaults.conf"))
    # The JVM starts from the archive of Spark's classes. One of another build, or with another class path, silently
    # ignores it.
    archive = jars_folder(project) / "classes.jsa"
    # Java options are separated by blanks, and a path in them cannot be quoted.
    if archive.is_file() and " " not in str(archive):
        properties[JAVA_OPTIONS] += f" -XX:SharedArchiveFile={archive} {OF_ARCHIVES}"
    return properties


def is_local(master: str) -> bool:
    """Returns True if executors are threads of the driver.

    They have its code and its address.
    """
    return master.startswith("local")


def no_driver_in(master: str) -> str | None:
    """Returns the reason why *master* starts no drivers elsewhere, or None."""
    if is_local(master):
        return "the driver of a local master is on the host that starts it"
    return "Spark starts no Python driver in a standalone cluster" if master.startswith("spark://") else None


def local_driver(master: str) -> dict[str, str]:
    """Returns the properties that keep a local driver off the network.

    A driver is local if *master* is. Its tasks hand over their results, which would be fetched like blocks of another
    host if they are larger than 1 MB.
    """
    if not is_local(master):
        return {}
    # Other drivers find their address by SPARK_LOCAL_HOSTNAME, SPARK_LOCAL_IP or the host's name.
    address = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {**address, "spark.task.maxDirectResultSize": "64m"}


def read_spark(file: str, content: Mapping[str, Any]) -> SparkSettings:
    """Reads *content*, the table `spark` of *file*.

    Raises:
        InvalidSpec: it is not valid.
    """
    keys = Keys(file, "spark", content)
    master = _pattern_value(keys, "master", "spark://spark-master:7077", _MASTER)
    deploy = _deploy(keys, master)
    python = _pattern_value(keys, "python", "/opt/spark/bin/python", _ABSOLUTE)
    executors = keys.count("executors", "2", None)
    cores = keys.count("cores", "1", executors and 1)
    by_property = {
        "spark.executor.instances": executors,
        "spark.executor.cores": cores,
        "spark.cores.max": executors and executors * cores,  # how a standalone cluster counts executors
        "spark.executor.memory": _pattern_value(keys, "memory", "2g", _MEMORY),
        "spark.driver.memory": _pattern_value(keys, "driver_memory", "2g", _MEMORY),
    }
    kubernetes = _kubernetes(keys, master)
    conf = keys.get("conf", dict, '{ "spark.executor.memoryOverhead" = "1g" }', {})
    keys.done()
    own = {name: str(value) for name, value in by_property.items() if value is not None}
    for name, value in conf.items():
        _check_property(keys, name, value, {*own, *(OF_PODS if kubernetes else ())})
    # On other hosts it may have another path, which `conf` names.
    here = {f"spark.pyspark.{of}python": python for of in ("driver.", "")} if python else {}
    properties = {**here, **own, **conf}
    return SparkSettings(master=master, deploy=deploy, python=python, kubernetes=kubernetes, properties=properties)


def _deploy(keys: Keys, master: str | None) -> DeployMode | None:
    """Returns the place of drivers; None if Airflow's connection has it."""
    deploy = keys.choice_if_set("deploy", DeployMode)
    if deploy is DeployMode.CLUSTER and master and (reason := no_driver_in(master)):
        keys.fail("deploy", f"is 'cluster', but {reason}", DEPLOY_REMEDY, beside="master")
    return deploy


def _kubernetes(keys: Keys, master: str | None) -> KubernetesSettings | None:
    """Returns the pods of drivers and executors, if they are described."""
    content = keys.get("kubernetes", dict, '{ image = "registry.example/tidemark:1" }', None)
    if content is None:
        return None
    if master and not master.startswith(SCHEME):
        keys.fail("kubernetes", f"describes pods, but master is {master!r}", "leave one of them out", beside="master")
    return read_inner(keys, "kubernetes", content, read_kubernetes)


def _pattern_value(keys: Keys, key: str, example: str, form: re.Pattern[str]) -> str | None:
    value: str | None = keys.text(key, example, None)
    if value is not None and not form.fullmatch(value):
        keys.fail(key, f"is {value!r}", f'write {key} = "{example}", or another value of this form')
    return value


def _check_property(keys: Keys, name: str, value: object, own: Collection[str]) -> None:
    """Raises InvalidSpec unless `conf` may set the property *name*.

    *own* are the properties that other keys of the table set.
    """
    key = f'conf."{name}"'
    if is_secret(name):
        problem = "has a secret, which would be an argument of spark-submit, and every user of the host can read that"
        keys.fail(key, problem, _OTHER_WAYS)
    if not name.startswith("spark.") or not isinstance(value, str):
        keys.fail(key, f"is {value!r}", 'write names in quotes, and strings: "spark.executor.memoryOverhead" = "1g"')
    if name in TIDEMARKS_OWN:
        keys.fail(key, "is reserved for Tidemark", "leave it out")
    if name in own:
        keys.fail(key, "is also set by another key of this table", "keep one of them")
