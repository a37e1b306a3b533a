"""Gives all other commands access to the local stack, `tidemark.local`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tidemark.control import process
from tidemark.errors import InvalidArgument
from tidemark.local import airflow, broker, guard, stack
from tidemark.local.airflow_api import SUCCESS, AirflowApi
from tidemark.local.conductor import (
    EXAMPLE,
    PARTS,
    Conductor,
    Say,
    dag_id,
    once_every,
    parts_of,
    step,
    wait_for_drained,
)
from tidemark.local.remembered import InstallationState
from tidemark.local.stack import Home
from tidemark.local.topics import topics_of
from tidemark.model.project.files import Project

AIRFLOW_URL, AIRFLOW_TOKEN = "TIDEMARK_AIRFLOW_URL", "TIDEMARK_AIRFLOW_TOKEN"
"""Variables with the address of an Airflow that `up` has not started, and a token for its REST API."""

__all__ = [
    "EXAMPLE",
    "PARTS",
    "SUCCESS",
    "AirflowApi",
    "Conductor",
    "Home",
    "InstallationState",
    "Say",
    "addresses",
    "airflow",
    "broker",
    "dag_id",
    "guard",
    "known_airflow",
    "once_every",
    "parts_of",
    "process",
    "program",
    "running_broker",
    "stack",
    "step",
    "stopped_broker",
    "topics_of",
    "wait_for_drained",
    "writable_home",
]


def writable_home(folder: Path) -> Home:
    """Returns the local stack in *folder*, which need not exist yet.

    Raises:
        InvalidArgument: the folder cannot be written or made.
    """
    path = folder.resolve()
    nearest = next(each for each in (path, *path.parents) if each.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        msg = f"the state folder {path} cannot be written, see {nearest}; name another one by --home or TIDEMARK_HOME"
        raise InvalidArgument(msg)
    return Home(path)


def running_broker(home: Path) -> str | None:
    """Returns the address of the broker that `up` started, if it runs."""
    folder = Home(home.resolve()).broker
    return broker.start(folder).address if process.find(folder, broker.NAME) else None


def stopped_broker(home: Path) -> str | None:
    """Returns that the broker that `up` started does not run, and how it is started; None: it runs, or never did."""
    folder = Home(home.resolve()).broker
    if not folder.is_dir() or process.find(folder, broker.NAME):
        return None
    return "the broker of this machine does not run, and keeps its records; `tidemark up` starts it again"


def known_airflow(home: Path) -> AirflowApi | None:
    """Returns the Airflow that AIRFLOW_URL names, else the one that `up` started; None: neither is known."""
    if url := os.environ.get(AIRFLOW_URL):
        return AirflowApi(url.rstrip("/"), token=os.environ.get(AIRFLOW_TOKEN))
    folder = Home(home.resolve()).airflow
    return airflow.api(folder) if airflow.runs(folder) else None


def addresses(home: Home) -> str:
    """Returns the addresses of the local stack in *home*, as text."""
    api = airflow.api(home.airflow)
    kafka = f"Kafka      {address}\n" if (address := running_broker(home.path)) else ""
    return (
        f"Airflow    {api.url}\n"
        f"login      {api.user}, password in {home.airflow / 'passwords.json'}\n"
        f"{kafka}"
        f"warehouse  {home.warehouse}\n"
        f"stop everything with `{program(home)} down`"
    )


def program(home: Home) -> str:
    """Returns the beginning of a command line that finds *home* from here: `tidemark`, with --home if it needs that."""
    named = os.environ.get("TIDEMARK_HOME")
    found = Path(named) if named else Project.here().state
    return "tidemark" if found.resolve() == home.path.resolve() else f"tidemark --home {shlex.quote(str(home.path))}"
