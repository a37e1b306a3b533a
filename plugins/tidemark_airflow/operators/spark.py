"""Runs Tidemark's jobs from Airflow, in Python or on Spark.

A job with much to read runs on Spark. Spark gets jobs by its provider's connection, with the topology's settings and
local jars. Executors on other machines get the library as an archive; they need the Python packages of
requirements.lock. A driver that YARN starts gets an archive with the library and the files of the project.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow.configuration import AIRFLOW_HOME
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from airflow.sdk.log import mask_secret

from tidemark.control import cluster_manager
from tidemark.control.cluster_manager import ClusterManager, ManagedDriver
from tidemark.control.process import without_airflow
from tidemark.control.spark_files import LOCAL_DIRS, PREFIX
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import Clusters, addressed_clusters
from tidemark.model.project.extras import with_extras
from tidemark.model.project.files import CHECKOUT, VARIABLE, Project
from tidemark.model.project.kafka_security import OPEN_KEYS
from tidemark.model.project.secrets import KAFKA, PlaceKind, SecretPlace, Vault
from tidemark.model.project.spark_settings import (
    DEPLOY_REMEDY,
    JAVA_OPTIONS,
    ONE_ATTEMPT,
    ROOM_FOR_PYTHON,
    SPARK_NEEDED,
    WITHOUT_SPARK,
    DeployMode,
    SparkSettings,
    driver_settings,
    is_local,
    jars,
    local_driver,
    no_driver_in,
)
from tidemark.model.settings.kubernetes import SCHEME
from tidemark.model.topology import Topology
from tidemark.safe_text import hide
from tidemark.storage.library import OF_PROJECT, archive, driver_archive
from tidemark.storage.private_folder import private_folder
from tidemark_airflow.operators.pods import image_address, pod_properties

PROPERTIES = str(CHECKOUT / "docker" / "spark-defaults.conf")
LIBRARIES = Path(AIRFLOW_HOME) / "tidemark"
"""Folder with an archive of the library, 350 kB, for each version that was ever launched."""
ON_YARN = "tidemark-driver"
"""Folder of a driver's files in the working directory of its container."""
ARCHIVES = "spark.yarn.dist.archives"
OF_ANOTHER_PYTHON = ("PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME")
"""Variables through which a job would get packages of another environment."""

COMMIT_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
"""The property of Spark whose text is in each commit that it makes to a Delta table."""
# Without the first blank, a DAG with `render_template_as_native_obj` would make a dictionary of the text.
NOTE_RUN = {
    COMMIT_NOTE: ' {{ {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id} | tojson }}',
}
"""For `conf` of a SparkSubmitOperator: its commits name the task and the run that made them."""


def noted_run(context: Context) -> dict[str, str]:
    """Returns the property by which Spark's commits name the task and the run of *context*."""
    ti = context.get("ti")
    if ti is None:
        return {}
    return {COMMIT_NOTE: json.dumps({"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id})}


def script(job: str) -> str:
    """Returns the file that Spark runs for *job*."""
    return str(CHECKOUT / "jobs" / f"{job}.py")


def kafka_address(cluster: str) -> str | None:
    """Returns the address in Airflow's connection `tidemark_kafka_<cluster>`, or None if there is no such connection.

    That is `bootstrap.servers` of its extra, as the Kafka provider has it, or else its host and port.
    """
    try:
        connection = BaseHook.get_connection(f"tidemark_kafka_{cluster}")
    except AirflowNotFoundException:
        return None
    address: str | None = connection.extra_dejson.get("bootstrap.servers")
    return address or (f"{connection.host}:{connection.port or 9092}" if connection.host else None)


def airflow_secret(at: str, reference: SecretPlace) -> str:
    """Returns the secret in Airflow's connection, masked in logs.

    *reference* says which field of which connection it is, and *at* is the dotted key that names it.

    Raises:
        InvalidArgument: there is no such connection, or it does not have the field.
    """
    try:
        connection = BaseHook.get_connection(reference.name)
    except AirflowNotFoundException:
        msg = f"{at}: Airflow has no connection {reference.name}; create it, or correct the name"
        raise InvalidArgument(msg) from None
    columns = {"login": connection.login, "password": connection.password}
    secret = columns[reference.field] if reference.field in columns else connection.extra_dejson.get(reference.field)
    if not secret:
        where = reference.field if reference.field in columns else f"key {reference.field} in its extra"
        msg = f"{at}: Airflow's connection {reference.name} has no {where}; add it, or name another field"
        raise InvalidArgument(msg)
    # A user's name is no secret, and occurs in other lines of the log.
    if reference.field != "login":
        mask_secret(str(secret))
    return str(secret)


def kafka_clusters(topology: Topology, bootstrap: str) -> Clusters:
    """Returns the clusters of *topology*.

    An Airflow connection `tidemark_kafka_NAME` takes precedence over files. *bootstrap* is the address of the cluster
    `default` if neither names it, or empty.
    """
    addresses = [(name, address) for name in topology.clusters_used if (address := kafka_address(name))]
    return addressed_clusters(
        topology.clusters_used, topology.clusters, addresses, os.environ, otherwise=bootstrap or None
    )


def airflow_secrets(topology: Topology, clusters: Clusters) -> dict[str, str]:
    """Returns the secrets of *topology*'s *clusters* and registries that Airflow keeps, by their dotted keys."""
    secrets: dict[str, str] = {}
    for cluster in clusters.values():
        secrets |= _secrets_in_airflow(cluster.references, f"{KAFKA}.")
    for registry in topology.registries_used.values():
        secrets |= _secrets_in_airflow(registry.references)
    return secrets


def _secrets_in_airflow(references: Mapping[str, SecretPlace], table: str = "") -> dict[str, str]:
    """Returns the secrets of *references* that Airflow keeps, by their keys in *table*."""
    kept = {key: place for key, place in references.items() if place.kind is PlaceKind.AIRFLOW}
    return {key: airflow_secret(f"{table}{key}", place) for key, place in kept.items()}


def hide_secrets(topology: Topology) -> None:
    """Has `without_secrets` hide the secrets of the clusters and registries of *topology*.

    A secret that only the driver's host has is not known here.
    """
    references: dict[str, SecretPlace] = {}
    for cluster in topology.clusters.values():
        references |= cluster.references
    for registry in topology.registries_used.values():
        references |= registry.references
    vault = Vault(os.environ, {})
    for key, place in references.items():
        if key.rpartition(".")[2] in OPEN_KEYS:
            continue
        with suppress(InvalidArgument):
            hide(airflow_secret(key, place) if place.kind is PlaceKind.AIRFLOW else vault.text(key, place))


def job_environment(spark: SparkSettings) -> dict[str, str]:
    """Returns the environment of jobs with *spark*, without Airflow's settings."""
    env = without_airflow(os.environ)
    if spark.python is None:
        return env
    kept = {name: value for name, value in env.items() if name not in OF_ANOTHER_PYTHON}
    # `spark-submit` uses this Python to find its Spark.
    return {**kept, "PYSPARK_PYTHON": spark.python}


class DriverHook(SparkSubmitHook):
    """The Spark provider's hook with a topology's settings, *spark*; *labels* are those of pods on Kubernetes.

    Unlike the provider's hook it refuses an unknown connection, can return its command without running it, and hands no
    secrets of Airflow on to its processes. *noted* are properties that *spark* and *conf* may replace.
    """

    def __init__(
        self,
        *,
        spark: SparkSettings,
        conf: dict[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        noted: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        self._spark = spark
        super().__init__(jars=",".join(jars(CHECKOUT)), properties_file=PROPERTIES, **kwargs)
        master = self._connection["master"]
        is_here = self._connection["deploy_mode"] != DeployMode.CLUSTER
        # These options name a file of this host.
        java = {JAVA_OPTIONS: driver_settings(CHECKOUT)[JAVA_OPTIONS]} if is_here else {}
        of_yarn = {**ONE_ATTEMPT, **ROOM_FOR_PYTHON} if master == "yarn" else {}
        self._conf = {**local_driver(master), **java, **of_yarn, **noted, **spark.properties, **(conf or {})}
        self._project = Project.here() if master == "yarn" and not is_here else None
        if self._project is not None:
            self._conf |= self._driver_files(self._project)
        pods = spark.kubernetes if master.startswith(SCHEME) else None
        self._is_in_image = pods is not None and not is_here
        if pods is not None:
            self._conf = {**pod_properties(pods, labels or {}, folder=LIBRARIES), **self._conf}
        if self._is_in_image:
            # Spark would upload other addresses to a file system that all pods share.
            self._jars = ",".join(map(image_address, jars(CHECKOUT)))
        elif not is_local(master):
            self._py_files = str(archive(LIBRARIES))

    def _resolve_connection(self) -> dict[str, Any]:
        self.get_connection(self._conn_id)  # raises; the provider would continue and submit to YARN
        resolved = super()._resolve_connection()
        master, deploy = self._spark.master or resolved["master"], self._spark.deploy or resolved["deploy_mode"]
        if deploy == DeployMode.CLUSTER and (reason := no_driver_in(master)):
            key = "[spark] deploy" if self._spark.deploy else f"deploy-mode of the connection {self._conn_id}"
            msg = f"{key} is 'cluster', but {reason} ({master}); {DEPLOY_REMEDY}, in the topology's file"
            raise InvalidArgument(msg)
        pods = self._spark.kubernetes
        namespace = (pods and pods.namespace) or resolved["namespace"]
        return {**resolved, "master": master, "deploy_mode": deploy, "namespace": namespace}

    def _get_spark_binary_path(self) -> list[str]:
        if self._spark.python is None:
            binary: list[str] = super()._get_spark_binary_path()
            return binary
        beside = Path(self._spark.python).with_name("spark-submit")
        if not beside.is_file():
            msg = f"spark.python: {beside} does not exist; install '{with_extras('spark')}' for {self._spark.python}"
            raise InvalidArgument(msg)
        return [str(beside)]

    def command(self, application: str) -> list[str]:
        """Returns the spark-submit command line for *application*."""
        return self._build_spark_submit_command(self._address(application))

    @property
    def python(self) -> str | None:
        """The Python that spark-submit chooses on this host, or None for drivers elsewhere."""
        if self._connection["deploy_mode"] == DeployMode.CLUSTER:
            return None
        named = (self._conf.get(f"spark.pyspark.{of}python") for of in ("driver.", ""))
        chosen = (os.environ.get(f"PYSPARK_{of}PYTHON") for of in ("DRIVER_", ""))
        return next((python for python in (*named, *chosen) if python), "python3")

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Runs *application* to its end, without Airflow's environment."""
        folder = private_folder(PREFIX)
        try:
            env = job_environment(self._spark)
            # Folders that Spark makes itself, in /tmp, can be read by every user.
            env[LOCAL_DIRS] = env.get(LOCAL_DIRS) or str(folder)
            return super().submit(self._address(application), env=env, **kwargs)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def on_kill(self) -> None:
        """Ends `spark-submit`, and the application that YARN runs for it."""
        # The provider would call a program of Hadoop, which PySpark does not have.
        application, self._yarn_application_id = self._yarn_application_id, None
        super().on_kill()
        if application:
            job = ManagedDriver("", ClusterManager.YARN, application)
            cluster_manager.end(job, self._get_spark_binary_path(), job_environment(self._spark))

    def file(self, topology: Path) -> str:
        """Returns the path of the file *topology* for its driver."""
        if self._project is None or not topology.is_relative_to(self._project.topologies):
            return str(topology)
        return f"{ON_YARN}/{OF_PROJECT}/topologies/{topology.relative_to(self._project.topologies).as_posix()}"

    def _driver_files(self, project: Project) -> dict[str, str]:
        """Returns the properties by which YARN unpacks a driver's files on a host without a checkout."""
        files = f"{driver_archive(LIBRARIES, project)}#{ON_YARN}"
        return {
            # The topology may name other archives, such as one with Python.
            ARCHIVES: ",".join(filter(None, (self._conf.get(ARCHIVES), files))),
            # YARN puts the working directory of the container in place of {{PWD}}.
            "spark.yarn.appMasterEnv.PYTHONPATH": f"{{{{PWD}}}}/{ON_YARN}",
            f"spark.yarn.appMasterEnv.{VARIABLE}": f"{{{{PWD}}}}/{ON_YARN}/{OF_PROJECT}",
        }

    def _address(self, application: str) -> str:
        """Returns the address of *application* for its driver."""
        return image_address(application) if self._is_in_image else application


class BatchJob(SparkSubmitOperator):
    """Runs `jobs/<job>.py` to its end, with a topology's settings, *spark*.

    The job first runs without Spark, because starting two JVMs takes longer than most jobs. If it has much to read, its
    exit status requests Spark, and it is submitted.
    """

    def __init__(self, *, job: str, spark: SparkSettings, **kwargs: Any) -> None:
        if kwargs.get("env_vars"):  # with them the provider passes on the whole environment
            msg = "a job cannot have env_vars; use [spark.conf] of its topology"
            raise InvalidArgument(msg)
        super().__init__(application=script(job), name=f"tidemark-{job}", do_xcom_push=False, **kwargs)
        # A job that runs again replaces its results. On YARN the provider would refuse to submit without this.
        self.durable = False
        self._spark = spark
        self._noted: Mapping[str, str] = {}
        self._process = SubprocessHook()

    def execute(self, context: Context) -> None:
        """Runs the job.

        Raises:
            AirflowException: the job failed.
        """
        self._noted = noted_run(context)
        self._hook = hook = self._get_hook()
        if hook.python is None or self._ran_without_spark(hook.python) == SPARK_NEEDED:
            super().execute(context)

    def _ran_without_spark(self, python: str) -> int:
        """Runs the job as a process of *python*; returns its exit status, which is 0 or SPARK_NEEDED."""
        command = [python, self.application, *map(str, self.application_args or ())]
        env = {**job_environment(self._spark), WITHOUT_SPARK: "1"}
        # Without `cwd` the hook runs it in a new folder, where relative paths lead nowhere.
        status: int = self._process.run_command(command, env=env, cwd=os.getcwd()).exit_code
        if status not in {0, SPARK_NEEDED}:
            msg = f"{Path(self.application).name} ended with status {status}; its output above has the reason"
            raise AirflowException(msg)
        return status

    def on_kill(self) -> None:
        """Ends the job, in Python or on Spark."""
        with suppress(ProcessLookupError):  # it has ended
            self._process.send_sigterm()  # type: ignore[no-untyped-call]
        super().on_kill()

    def _get_hook(self) -> DriverHook:
        return DriverHook(
            spark=self._spark,
            conf=self.conf,
            conn_id=self._conn_id,
            name=self.name,
            labels={"job": Path(self.application).stem},
            noted=self._noted,
            application_args=self.application_args,
        )
