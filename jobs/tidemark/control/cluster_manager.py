"""Kills drivers through the manager of their cluster.

Purpose: a driver in cluster mode is on a host that a supervisor cannot reach, and perhaps hangs.

How it works: before the driver starts its query it writes `manager.json` into its control folder, with the manager that
runs it, and its name there. A supervisor asks that manager to kill the driver, and then for the driver's state. The
requests are commands of PySpark, so they need the settings and the login of `spark-submit`, and no installation of
Hadoop or Kubernetes.

| manager | name of the driver | command that kills | the driver is gone when |
|---|---|---|---|
| YARN | id of the application | Hadoop's client, which is in PySpark's jars | its state is final |
| Kubernetes | `NAMESPACE:POD` | `spark-submit --kill` | it is not found, or its phase is final |

Known limitation: a manager that has lost the driver's host says that the driver is gone, although it may still live.
Such a driver writes nothing any more, because a newer driver has a higher epoch.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from tidemark.control.files import parsed, read
from tidemark.errors import TidemarkError
from tidemark.storage import location

FILE = "manager.json"
POLL_S = 0.5
ANSWERS_WITHIN_S, KILLED_WITHIN_S = 20.0, 20.0
_YARN_CLIENT = ("org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application")
_IS_GONE = re.compile(
    r"\tState : (FINISHED|FAILED|KILLED)\b|doesn't exist in RM|"
    r"(Application not found|No applications found)|phase: (Succeeded|Failed)\b"
)
"""Matches a manager's answer about an application that has ended."""


class ClusterManager(StrEnum):
    """A manager that starts drivers, and can kill them."""

    YARN = "yarn"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class ManagedDriver:
    """A driver that a cluster manager runs.

    Attributes:
        launch_id: id of its launch.
        manager: the manager.
        application: the name of the driver there.
        ended: True once the manager has killed it.
    """

    launch_id: str
    manager: ClusterManager
    application: str
    ended: bool = False

    @property
    def log_command(self) -> str:
        """The command that shows the whole log of the driver."""
        if self.manager is ClusterManager.YARN:
            return f"yarn logs -applicationId {self.application}"
        namespace, _, pod = self.application.partition(":")
        return f"kubectl logs --namespace {namespace} {pod}"


def managed_driver(
    launch_id: str, environ: Mapping[str, str], conf: Callable[[], Mapping[str, str]]
) -> ManagedDriver | None:
    """Returns this driver as its cluster manager knows it, or None if the driver runs in client mode.

    Args:
        launch_id: id of its launch.
        environ: its environment, in which each manager leaves its own variables.
        conf: returns Spark's properties.
    """
    # YARN sets this variable in the container of a driver, and in none of an executor.
    if application := re.search(r"application_\d+_\d+", environ.get("APPLICATION_WEB_PROXY_BASE", "")):
        return ManagedDriver(launch_id, ClusterManager.YARN, application[0])
    # Spark sets the first variable in the pod of a driver in cluster mode. In client mode a driver runs in a pod of
    # Airflow, which must not be killed.
    if "SPARK_APPLICATION_ID" in environ and "KUBERNETES_SERVICE_HOST" in environ:
        properties = conf()
        pod = properties.get("spark.kubernetes.driver.pod.name") or environ["HOSTNAME"]
        namespace = properties.get("spark.kubernetes.namespace", "default")
        return ManagedDriver(launch_id, ClusterManager.KUBERNETES, f"{namespace}:{pod}")
    return None


def record(home: Path, driver: ManagedDriver) -> None:
    """Writes *driver* into the control folder *home*."""
    location.replace(home / FILE, json.dumps(asdict(driver)))


def recorded(home: Path, launch_id: str) -> ManagedDriver | None:
    """Returns the driver of *launch_id* that *home* names, or None."""
    driver = read(home, FILE, partial(parsed, ManagedDriver))
    return driver if driver is not None and driver.launch_id == launch_id else None


def kill(home: Path, driver: ManagedDriver, submit: Sequence[str], env: Mapping[str, str]) -> None:
    """Kills *driver*, and records in *home* that it has ended."""
    end(driver, submit, env)
    record(home, replace(driver, ended=True))


def end(driver: ManagedDriver, submit: Sequence[str], env: Mapping[str, str]) -> None:
    """Kills *driver*, and returns when its manager reports that it is gone.

    *submit* is the beginning of the command that submitted it: `spark-submit` with its options.

    Raises:
        TidemarkError: the manager does not answer, or the driver still runs.
    """
    if driver.manager is ClusterManager.KUBERNETES and not submit:
        msg = f"{driver.application} was not submitted by this Airflow; end it by kubectl delete pod"
        raise TidemarkError(msg)
    _answer(_kill_command(driver, submit), env)
    deadline = time.monotonic() + KILLED_WITHIN_S
    while not _IS_GONE.search(state := _answer(_status_command(driver, submit), env)):
        if time.monotonic() > deadline:
            msg = f"{driver.application} still runs, {driver.manager.value} says: {state.strip()[-500:]}"
            raise TidemarkError(msg)
        time.sleep(POLL_S)


def _kill_command(driver: ManagedDriver, submit: Sequence[str]) -> list[str]:
    if driver.manager is ClusterManager.YARN:
        return [*_yarn_client(submit), "-kill", driver.application]
    at_once = ("--conf", "spark.kubernetes.appKillPodDeletionGracePeriod=0")
    return [*submit, *at_once, "--kill", driver.application]


def _status_command(driver: ManagedDriver, submit: Sequence[str]) -> list[str]:
    if driver.manager is ClusterManager.YARN:
        return [*_yarn_client(submit), "-status", driver.application]
    return [*submit, "--status", driver.application]


def _yarn_client(submit: Sequence[str]) -> list[str]:
    """Returns the command of YARN's client in the PySpark of *submit*."""
    # `spark-submit` may be that of another environment, which has its Python beside it.
    program = Path(next(iter(submit), ""))
    if not program.is_absolute() or program.name != "spark-submit":
        return ["spark-class", *_YARN_CLIENT]
    python = f"PYSPARK_PYTHON={program.with_name('python')}"
    return ["env", python, str(program.with_name("spark-class")), *_YARN_CLIENT]


def _answer(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Returns the output of *command*, whatever its exit status, which says too little."""
    try:
        ran = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
    except FileNotFoundError as error:
        msg = f"{command[0]} was not found; add PySpark's programs to PATH"
        raise TidemarkError(msg) from error
    except subprocess.TimeoutExpired as error:
        msg = f"the cluster manager does not answer {command[0]} within {ANSWERS_WITHIN_S:g} s"
        raise TidemarkError(msg) from error
    return ran.stdout
