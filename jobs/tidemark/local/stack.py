"""The whole of Tidemark on one machine: broker, Airflow, and drivers.

Everything lies under one folder. Every launched process has a pid file there, so another process can find and stop it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import Control
from tidemark.local import airflow, broker
from tidemark.local.airflow_api import AirflowApi
from tidemark.local.topics import topics_of
from tidemark.model.project.files import CHECKOUT, WAREHOUSE, Project
from tidemark.model.topology import Topology, name_on_processing_time

DRIVER = "driver"
DRAINED_WITHIN_S = 15.0
BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
"""The kind of a folder of DAGs in Airflow."""


@dataclass(frozen=True)
class Home:
    """The folder with the state of an installation."""

    path: Path

    @property
    def warehouse(self) -> Path:
        """Folder of all Delta tables and control folders."""
        return self.path / WAREHOUSE

    @property
    def airflow(self) -> Path:
        """Folder of Airflow's own state."""
        return self.path / "airflow"

    @property
    def broker(self) -> Path:
        """Folder of Kafka's state."""
        return self.path / "broker"

    def running(self) -> list[str]:
        """Returns the live processes that were launched from here.

        They are named by their place under this folder.
        """
        pid_files = sorted(self.path.rglob("*.pid.json"))
        names = ((file.parent, file.name.removesuffix(".pid.json")) for file in pid_files)
        return [str((folder / name).relative_to(self.path)) for folder, name in names if process.find(folder, name)]

    def drivers(self) -> list[Path]:
        """Returns the folders of the driver processes that were launched here."""
        control = self.warehouse / "control"
        of_one, of_several = control.glob(f"*/*/{DRIVER}.pid.json"), control.glob(f"*/*/*/{DRIVER}.pid.json")
        return [file.parent for file in (*of_one, *of_several)]


def start_broker(home: Home, topology: Topology) -> str:
    """Starts a broker with every topic of *topology*; returns its address."""
    address = broker.start(home.broker).address
    broker.create_topics(address, topics_of(topology))
    return address


def start_airflow(home: Home, *, bootstrap: str, project: Project | None = None, examples: bool = False) -> AirflowApi:
    """Starts Airflow; returns its API once it is healthy.

    Its streams read from *bootstrap* and write to the warehouse. It has the topologies of *project*, else of the
    project in which it is started, the DAGs of its folder `dags`, and with *examples* those of `dags/examples`.
    """
    variables = {"tidemark_warehouse": str(home.warehouse), "tidemark_bootstrap": bootstrap}
    settings = {"DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": dag_folders(project or Project.here(), examples=examples)}
    parts = airflow.start(home.airflow, root=CHECKOUT, project=project, variables=variables, settings=settings)
    return airflow.wait_until_healthy(home.airflow, parts)


def dag_folders(project: Project, *, examples: bool) -> str:
    """Returns Airflow's setting of the folders with DAGs.

    They are that of Tidemark, that of *project* if it has one, and with *examples* `dags/examples`.
    """
    own = project.folder / "dags"
    folders: dict[str, dict[str, str]] = {"dags-folder": {}}
    if examples:
        folders["examples"] = {"path": str(CHECKOUT / "dags" / "examples")}
    if own.is_dir() and not project.is_checkout:
        folders["project"] = {"path": str(own)}
    return json.dumps([{"name": name, "classpath": BUNDLE, "kwargs": where} for name, where in folders.items()])


def controls_in(warehouse: Path, topologies: Collection[str] | None = None) -> list[Control]:
    """Returns the control folders of streams that write to *warehouse*.

    With *topologies* only those of their streams.
    """
    # A topology on processing time has drivers of another name.
    names = None if topologies is None else {*topologies, *map(name_on_processing_time, topologies)}
    folders = sorted(warehouse.glob("control/[!.]*/[!.]*"), key=str)
    return [Control(each) for each in folders if each.is_dir() and (names is None or each.parent.name in names)]


def drain(controls: Iterable[Control], *, by: str, within_s: float = DRAINED_WITHIN_S) -> list[Control]:
    """Requests every live driver to end, and waits for its last batch.

    Returns the streams whose drivers have not ended after *within_s*.
    """
    living = [control for control in controls if control.is_held()]
    for control in living:
        control.request_drain(by=by, now_ms=wall_clock_ms())
    # All have been asked, so they finish their batches at the same time.
    deadline = time.monotonic() + within_s
    while (living := [control for control in living if control.is_held()]) and time.monotonic() < deadline:
        time.sleep(process.POLL_S)
    return living


def stop(home: Home) -> None:
    """Stops everything that runs here.

    Further signals that request a stop do not interrupt it.
    """
    # A second Ctrl-C would leave processes behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # All are asked first, so that they finish their batches at the same time.
    controls = controls_in(home.warehouse)
    for control in controls:
        control.request_drain(by="tidemark", now_ms=wall_clock_ms())
    process.stop(home.path, "replay")
    # Before the drivers: Airflow would launch them again.
    airflow.stop(home.airflow)
    drain(controls, by="tidemark")
    for driver in home.drivers():
        process.stop(driver, DRIVER, grace_s=5)
    # Last: drivers need it to finish their batches.
    broker.stop(home.broker)
