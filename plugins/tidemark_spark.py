"""How Airflow runs Tidemark's jobs: as a process of Python, or by Spark where there is much to read.

Spark gets them by its provider's connection, with the topology's settings and local jars. Executors on other machines
get the library as an archive; they need the Python packages of requirements.lock.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow.configuration import AIRFLOW_HOME
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from tidemark.embedded.process import without_airflow
from tidemark.errors import InvalidArgument
from tidemark.library import archive
from tidemark.spec.spark_settings import SPARK_NEEDED, WITHOUT_SPARK, SparkSettings, driver_address, is_local, jars

ROOT = Path(__file__).resolve().parents[1]
PROPERTIES = str(ROOT / "docker" / "spark-defaults.conf")
LIBRARIES = Path(AIRFLOW_HOME) / "tidemark"
"""Where archives of the library are kept; one is 350 kB, and each version that was ever launched has one."""


def script(job: str) -> str:
    """The file that Spark runs for *job*."""
    return str(ROOT / "jobs" / f"{job}.py")


def kafka_address(cluster: str) -> str | None:
    """The address in Airflow's connection `tidemark_kafka_<cluster>`; None where there is no such connection.

    It is `bootstrap.servers` of its extra, as the Kafka provider has it, or else its host and port.
    """
    try:
        found = BaseHook.get_connection(f"tidemark_kafka_{cluster}")
    except AirflowNotFoundException:
        return None
    address: str | None = found.extra_dejson.get("bootstrap.servers")
    return address or (f"{found.host}:{found.port or 9092}" if found.host else None)


class DriverHook(SparkSubmitHook):
    """The Spark provider's hook with the settings of a topology, *spark*; it refuses an unknown connection.

    It also says its command without running it. What it runs does not inherit Airflow's secrets.
    """

    def __init__(self, *, spark: SparkSettings, conf: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._spark = spark
        super().__init__(jars=",".join(jars(ROOT)), properties_file=PROPERTIES, **kwargs)
        master = self._connection["master"]
        self._conf = {**driver_address(master), **spark.properties, **(conf or {})}
        if not is_local(master):
            self._py_files = str(archive(LIBRARIES))

    def _resolve_connection(self) -> dict[str, Any]:
        self.get_connection(self._conn_id)  # raises; the provider would go on and submit to YARN
        found = super()._resolve_connection()
        return {**found, "master": self._spark.master or found["master"]}

    def command(self, application: str) -> list[str]:
        """The spark-submit command line for *application*."""
        return self._build_spark_submit_command(application)

    @property
    def python(self) -> str | None:
        """The Python of a driver on this host, as spark-submit chooses it; None where drivers are elsewhere."""
        if self._connection["deploy_mode"] == "cluster":
            return None
        named = (self._conf.get(f"spark.pyspark.{of}python") for of in ("driver.", ""))
        chosen = (os.environ.get(f"PYSPARK_{of}PYTHON") for of in ("DRIVER_", ""))
        return next((python for python in (*named, *chosen) if python), "python3")

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run *application* to its end, in this environment without what is Airflow's."""
        return super().submit(application, env=without_airflow(os.environ), **kwargs)


class BatchJob(SparkSubmitOperator):
    """Runs `jobs/<job>.py` to its end, with the settings of a topology, *spark*.

    First without Spark, for starting two JVMs takes longer than most jobs; one that has much to read says so by its
    exit status, and is submitted.
    """

    def __init__(self, *, job: str, spark: SparkSettings, **kwargs: Any) -> None:
        if kwargs.get("env_vars"):  # with them the provider hands on all of the environment
            msg = "a job has the environment without what is Airflow's, got env_vars; use [spark.conf] of its topology"
            raise InvalidArgument(msg)
        super().__init__(application=script(job), name=f"tidemark-{job}", do_xcom_push=False, **kwargs)
        self._spark = spark
        self._process = SubprocessHook()

    def execute(self, context: Context) -> None:
        """Run the job; raises AirflowException where it fails."""
        self._hook = hook = self._get_hook()
        if hook.python is None or self._ran_without_spark(hook.python) == SPARK_NEEDED:
            super().execute(context)

    def _ran_without_spark(self, python: str) -> int:
        """Return the exit status of the job as a process of *python*: 0, or SPARK_NEEDED."""
        command = [python, self.application, *map(str, self.application_args or ())]
        env = {**without_airflow(os.environ), WITHOUT_SPARK: "1"}
        status: int = self._process.run_command(command, env=env, cwd=os.getcwd()).exit_code
        if status not in {0, SPARK_NEEDED}:
            msg = f"{Path(self.application).name} ended with status {status}; its output above says why"
            raise AirflowException(msg)
        return status

    def on_kill(self) -> None:
        """End the job, whoever runs it."""
        with suppress(ProcessLookupError):  # it has ended
            self._process.send_sigterm()  # type: ignore[no-untyped-call]
        super().on_kill()

    def _get_hook(self) -> DriverHook:
        return DriverHook(
            spark=self._spark,
            conf=self.conf,
            conn_id=self._conn_id,
            name=self.name,
            application_args=self.application_args,
        )
