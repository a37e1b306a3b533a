"""How Airflow gives Tidemark's jobs to Spark: local jars, common settings, the Spark provider's connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

ROOT = Path(__file__).resolve().parents[1]
JARS = ",".join(sorted(map(str, (ROOT / ".jars" / "spark").glob("*.jar"))))
PROPERTIES = str(ROOT / "docker" / "spark-defaults.conf")


def script(job: str) -> str:
    """The file that Spark runs for *job*."""
    return str(ROOT / "jobs" / f"{job}.py")


class DriverHook(SparkSubmitHook):
    """The Spark provider's hook, which also says its command without running it and refuses an unknown connection."""

    def _resolve_connection(self) -> dict[str, Any]:
        self.get_connection(self._conn_id)  # raises; the provider would go on and submit to YARN
        return super()._resolve_connection()

    def command(self, application: str) -> list[str]:
        """The spark-submit command line for *application*."""
        return self._build_spark_submit_command(application)


class BatchJob(SparkSubmitOperator):
    """Runs `jobs/<job>.py` to its end."""

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(
            application=script(job),
            name=f"tidemark-{job}",
            jars=JARS,
            properties_file=PROPERTIES,
            do_xcom_push=False,
            **kwargs,
        )

    def _get_hook(self) -> SparkSubmitHook:
        DriverHook(conn_id=self._conn_id)  # refuses an unknown connection
        return super()._get_hook()
