"""Registers Tidemark with Airflow's API server: JSON under `/tidemark`, a page under Browse, and tabs.

The tabs are on the pages of DAGs, runs and tasks. Every part of Airflow imports this file, and only the API server
answers requests. So `tidemark_airflow.pages.api`, which answers them, is imported with the first request.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/tidemark"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Forwards to `tidemark_airflow.pages.api.application`, an ASGI application."""
    # In a thread: the import is slow, and Airflow's own requests share this loop.
    api = await asyncio.to_thread(import_module, "tidemark_airflow.pages.api")
    await api.application(scope, receive, send)


def _tab(destination: str, query: str) -> dict[str, str]:
    """Returns a tab on Airflow's pages of *destination*; Airflow fills in the names in braces."""
    route = f"tidemark-{destination.replace('_', '-')}"
    href = f"{PREFIX}/dags/{{DAG_ID}}{query}"
    return {"name": "Tidemark", "href": href, "destination": destination, "url_route": route}


class TidemarkPlugin(AirflowPlugin):
    """The plugin as Airflow reads it."""

    name = "tidemark"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "tidemark"}]  # noqa: RUF012  # declared so by Airflow
    external_views = [  # noqa: RUF012
        {
            "name": "Tidemark",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "tidemark",
        },
        *(_tab(destination, "") for destination in ("dag", "dag_run")),
        *(_tab(destination, "?task={TASK_ID}") for destination in ("task", "task_instance")),
    ]
