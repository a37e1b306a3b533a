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
from tidemark.model.settings import kubernetes, value_types
from tidemark.model.settings.declared_tables import TableForm, Values, inner_table, optional, refuse_mistakes
from tidemark.model.settings.kubernetes import SCHEME, KubernetesSettings, kubernetes_of
from tidemark.model.settings.value_types import ValueType, refuse

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
"""Keeps YARN from starting a driver again. Airflow starts the next driver itself.

A second attempt would find no secrets, because the first one has removed the file, and would report the launch of the
first.
"""
ROOM_FOR_PYTHON = {"spark.driver.memoryOverheadFactor": "1.0", "spark.executor.memoryOverheadFactor": "1.0"}
"""Memory that a container has beside the memory of its JVM, as a share of the JVM's.

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
    """Where the drivers run that Airflow starts."""

    CLIENT = "client"
    """Airflow's host."""
    CLUSTER = "cluster"
    """A host that the cluster manager chooses."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """How Spark runs the drivers of a topology.

    *master* and *deploy* (where drivers run) are None if Airflow's connection has them. *python* is the Python of an
    environment with Spark; None if Airflow's own environment has Spark. *properties* are Spark's, by name.
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
    """Returns True if executors are threads of the driver, so that they have its code and its address."""
    return master.startswith("local")


def no_driver_in(master: str) -> str | None:
    """Returns the reason why *master* cannot start drivers on other hosts, or None."""
    if is_local(master):
        return "the driver of a local master is on the host that starts it"
    return "Spark starts no Python driver in a standalone cluster" if master.startswith("spark://") else None


def local_driver(master: str) -> dict[str, str]:
    """Returns the properties that keep a local driver off the network.

    A driver is local if *master* is. By default it would fetch results of its own tasks over the network if they are
    larger than 1 MB.
    """
    if not is_local(master):
        return {}
    # Other drivers find their address by SPARK_LOCAL_HOSTNAME, SPARK_LOCAL_IP or the host's name.
    address = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {**address, "spark.task.maxDirectResultSize": "64m"}


def _of_form(pattern: re.Pattern[str]) -> ValueType[str]:
    """The type of texts of the form of *pattern*."""

    def judge(value: str, key: str, example: str) -> str:
        if not pattern.fullmatch(value):
            refuse(f"is {value!r}", f"write {key} = {example}, or another value of this form")
        return value

    return value_types.text({"type": "string", "pattern": f"^({pattern.pattern})$"}).then(judge)


MASTER = optional(
    "master",
    _of_form(_MASTER),
    example='"spark://spark-master:7077"',
    without="that of Airflow's connection",
    meaning="the cluster: `local[4]`, `spark://…`, `yarn` or `k8s://…`",
)
DEPLOY = optional(
    "deploy",
    value_types.choice(DeployMode),
    example='"cluster"',
    without="that of Airflow's connection",
    meaning=(
        "place of drivers: with `client` Airflow's host, with `cluster` a host that YARN or Kubernetes chooses. "
        "`cluster` is refused with a standalone cluster, in which Spark starts no Python driver, and with `local`"
    ),
)
PYTHON = optional(
    "python",
    _of_form(_ABSOLUTE),
    example='"/opt/spark/bin/python"',
    without="that of Airflow's environment",
    meaning=(
        "absolute path of the Python that jobs run with, if Airflow's environment has no Spark: "
        "[installation.md](installation.md#spark-in-another-environment). `spark-submit` is beside it. Executors on "
        "other hosts have it at the same path, or at the one in `spark.pyspark.python` of `conf`"
    ),
)
EXECUTORS = optional(
    "executors", value_types.count(), example="2", without="Spark's", meaning="number of executors of each job"
)
CORES = optional(
    "cores",
    value_types.count(),
    example="1",
    without="`1` with `executors`",
    meaning="cores of each executor: tasks that it runs at once",
)
MEMORY = optional(
    "memory",
    _of_form(_MEMORY),
    example='"2g"',
    without="Spark's",
    meaning="memory of each executor's JVM, in `g` or `m`; its Python processes need more",
)
DRIVER_MEMORY = optional(
    "driver_memory",
    _of_form(_MEMORY),
    example='"2g"',
    without="`docker/spark-defaults.conf`",
    meaning="memory of the driver's JVM; its Python process, which has the state, needs more",
)
KUBERNETES = inner_table(
    "kubernetes",
    kubernetes.FORM,
    example='{ image = "registry.example/tidemark-spark:1" }',
    meaning="pods of drivers and executors: [kubernetes.md](kubernetes.md#a-topology)",
)
CONF = optional(
    "conf",
    value_types.plain(dict),
    example='{ "spark.executor.memoryOverhead" = "1g" }',
    meaning=(
        "any other property of Spark by its name, except those that Tidemark sets itself, and those with a secret "
        "(`…password`, `…secret…`, `…token`, `….key`), because they would be arguments that every user of the host can "
        "read; the error names other ways. `spark.authenticate` is on, see "
        "[cluster.md](cluster.md#the-secret-of-a-cluster)"
    ),
)


def _refuse_deploy(values: Values) -> None:
    """Refuses drivers on other hosts if the master can start none there."""
    master = values[MASTER]
    if values[DEPLOY] is DeployMode.CLUSTER and master and (reason := no_driver_in(master)):
        values.fail(DEPLOY, f"is 'cluster', but {reason}", DEPLOY_REMEDY)


def _refuse_pods(values: Values) -> None:
    """Refuses settings of pods if the master is not Kubernetes."""
    master = values[MASTER]
    if values.has(KUBERNETES) and master and not master.startswith(SCHEME):
        values.fail(KUBERNETES, f"describes pods, but master is {master!r}", "leave one of them out")


def _refuse_properties(values: Values) -> None:
    """Notes a mistake for each property that `conf` must not set."""
    # A key with a mistake sets its property, too.
    others = values.repaired(FORM)
    own = {*_own_properties(others), *(OF_PODS if others[KUBERNETES] else ())}
    for name, value in values.get(CONF, {}).items():
        if mistake := _mistake_in(name, value, own):
            values.note(f'{CONF.name}."{name}"', *mistake)


def _mistake_in(name: str, value: object, own: Collection[str]) -> tuple[str, str] | None:
    """Returns the problem and the remedy of a property that `conf` must not have; None if it may have it.

    *own* are the properties that other keys of the table set.
    """
    if is_secret(name):
        problem = "has a secret, which would be an argument of spark-submit, and every user of the host can read that"
        return problem, _OTHER_WAYS
    if not name.startswith("spark.") or not isinstance(value, str):
        return f"is {value!r}", 'write names in quotes, and strings: "spark.executor.memoryOverhead" = "1g"'
    if name in TIDEMARKS_OWN:
        return "is reserved for Tidemark", "leave it out"
    if name in own:
        return "is also set by another key of this table", "keep one of them"
    return None


FORM = TableForm(
    keys=(MASTER, DEPLOY, PYTHON, EXECUTORS, CORES, MEMORY, DRIVER_MEMORY, KUBERNETES, CONF),
    rules=(_refuse_deploy, _refuse_pods, _refuse_properties),
)
"""The table `spark` of a topology file."""


def read_spark(file: str, content: Mapping[str, Any]) -> SparkSettings:
    """Reads *content*, the table `spark` of *file*.

    Raises:
        InvalidSpec: with a line for each mistake.
    """
    values = FORM.read(file, "spark", content)
    refuse_mistakes([values])
    return spark_of(values)


def _own_properties(values: Values) -> dict[str, str]:
    """Returns the properties that follow from keys other than `conf`."""
    executors = values[EXECUTORS]
    cores = values[CORES] or (executors and 1)
    by_property = {
        "spark.executor.instances": executors,
        "spark.executor.cores": cores,
        "spark.cores.max": executors and cores and executors * cores,  # how a standalone cluster counts executors
        "spark.executor.memory": values[MEMORY],
        "spark.driver.memory": values[DRIVER_MEMORY],
    }
    return {name: str(value) for name, value in by_property.items() if value is not None}


def spark_of(values: Values) -> SparkSettings:
    """Returns what a table of FORM says."""
    python, pods = values[PYTHON], values[KUBERNETES]
    # On other hosts Python may have another path, which `conf` names.
    here = {f"spark.pyspark.{of}python": python for of in ("driver.", "")} if python else {}
    return SparkSettings(
        master=values[MASTER],
        deploy=values[DEPLOY],
        python=python,
        kubernetes=None if pods is None else kubernetes_of(pods),
        properties={**here, **_own_properties(values), **values.get(CONF, {})},
    )
