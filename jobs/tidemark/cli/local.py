"""The one door of the command line to the local stack, `tidemark.embedded`: other commands import it from here."""

from __future__ import annotations

from pathlib import Path

from tidemark.embedded import airflow, broker, guard, process, stack
from tidemark.embedded.airflow_api import AirflowApi
from tidemark.embedded.conductor import Conductor, Say
from tidemark.embedded.stack import Home

__all__ = [
    "AirflowApi",
    "Conductor",
    "Home",
    "Say",
    "addresses",
    "airflow",
    "broker",
    "guard",
    "process",
    "running_broker",
    "stack",
]


def running_broker(home: Path) -> str | None:
    """The address of the broker that `up` started in *home*; None when none runs."""
    folder = Home(home.resolve()).broker
    return broker.start(folder).address if process.find(folder, broker.NAME) else None


def addresses(home: Home) -> str:
    """Where the local stack in *home* is reached."""
    api = airflow.api(home.airflow)
    return (
        f"Airflow    {api.url}\n"
        f"login      {api.user}, password in {home.airflow / 'passwords.json'}\n"
        f"Kafka      {broker.start(home.broker).address}\n"
        f"warehouse  {home.warehouse}\n"
        "play flights into it with `tidemark replay`, stop everything with `tidemark down`"
    )
