"""Gives all other commands access to the local stack, `tidemark.embedded`."""

from __future__ import annotations

from pathlib import Path

from tidemark.control import process
from tidemark.embedded import airflow, broker, guard, stack
from tidemark.embedded.airflow_api import AirflowApi
from tidemark.embedded.conductor import PARTS, Conductor, Say, dag_id, once_every, step, wait_for_drained
from tidemark.embedded.remembered import InstallationState
from tidemark.embedded.stack import Home
from tidemark.embedded.topics import topics_of

__all__ = [
    "PARTS",
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
    "once_every",
    "process",
    "running_broker",
    "stack",
    "step",
    "topics_of",
    "wait_for_drained",
]


def running_broker(home: Path) -> str | None:
    """Returns the address of the broker that `up` started, if it runs."""
    folder = Home(home.resolve()).broker
    return broker.start(folder).address if process.find(folder, broker.NAME) else None


def addresses(home: Home) -> str:
    """Returns the addresses of the local stack in *home*, as text."""
    api = airflow.api(home.airflow)
    kafka = f"Kafka      {address}\n" if (address := running_broker(home.path)) else ""
    return (
        f"Airflow    {api.url}\n"
        f"login      {api.user}, password in {home.airflow / 'passwords.json'}\n"
        f"{kafka}"
        f"warehouse  {home.warehouse}\n"
        "stop everything with `tidemark down`"
    )
