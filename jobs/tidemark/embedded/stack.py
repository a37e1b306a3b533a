"""The whole of Tidemark on one machine: broker, Airflow, and the drivers that Airflow launches.

Everything lies under one folder. Whatever was launched has a pid file there, so what runs can be found, and stopped,
by a process that did not start it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.control import Control
from tidemark.embedded import airflow, broker, process
from tidemark.embedded.airflow_api import AirflowApi
from tidemark.embedded.topics import topics_of
from tidemark.spec.project import CHECKOUT, WAREHOUSE, Project
from tidemark.spec.topology import Topology

DRIVER = "driver"
DRAINED_WITHIN_S = 15.0


@dataclass(frozen=True)
class Home:
    """Where the state of one installation lies."""

    path: Path

    @property
    def warehouse(self) -> Path:
        """All Delta tables and control folders."""
        return self.path / WAREHOUSE

    @property
    def airflow(self) -> Path:
        """Airflow's own state."""
        return self.path / "airflow"

    @property
    def broker(self) -> Path:
        """Kafka's."""
        return self.path / "broker"

    def running(self) -> list[str]:
        """What was launched from here and lives, by its place under this folder."""
        pid_files = sorted(self.path.rglob("*.pid.json"))
        found = ((file.parent, file.name.removesuffix(".pid.json")) for file in pid_files)
        return [str((folder / name).relative_to(self.path)) for folder, name in found if process.find(folder, name)]

    def controls(self) -> list[Control]:
        """The control folders of all streams that were ever launched here."""
        return [Control(folder) for folder in sorted(self.warehouse.glob("control/*/*/")) if folder.is_dir()]


def start_broker(home: Home, topology: Topology) -> str:
    """The address of a running broker that has every topic of *topology*."""
    address = broker.start(home.broker).address
    broker.create_topics(address, topics_of(topology))
    return address


def start_airflow(home: Home, *, bootstrap: str, project: Project | None = None) -> AirflowApi:
    """The API of a healthy Airflow whose streams read from *bootstrap* and write to the warehouse.

    It has the topologies of *project*, else of the project in which it is started.
    """
    variables = {"tidemark_warehouse": str(home.warehouse), "tidemark_bootstrap": bootstrap}
    parts = airflow.start(home.airflow, root=CHECKOUT, project=project, variables=variables)
    return airflow.wait_until_healthy(home.airflow, parts)


def drain(home: Home, *, by: str, topologies: Collection[str] | None = None) -> None:
    """Ask every living driver, or those of *topologies*, to end, and wait as long as one may take for its last batch.

    On processing time a topology has drivers of another name, which end with it.
    """
    names = None if topologies is None else {n for name in topologies for n in (name, f"{name}_on_processing_time")}
    asked = [control for control in home.controls() if names is None or control.home.parent.name in names]
    living = [control for control in asked if control.is_held()]
    for control in living:
        control.request_drain(by=by, now_ms=wall_clock_ms())
    deadline = time.monotonic() + DRAINED_WITHIN_S
    while any(control.is_held() for control in living) and time.monotonic() < deadline:
        time.sleep(process.POLL_S)


def stop(home: Home) -> None:
    """End everything that runs here: Airflow first, which would launch drivers again, and the broker last.

    Once begun it is not interrupted by a signal that asks for the same.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for control in home.controls():
        control.request_drain(by="tidemark", now_ms=wall_clock_ms())
    process.stop(home.path, "replay")
    airflow.stop(home.airflow)
    drain(home, by="tidemark")
    for control in home.controls():
        process.stop(control.home, DRIVER, grace_s=5)
    broker.stop(home.broker)
