"""Registers Tidemark with Airflow's API server.

It has JSON under `/tidemark`, and a page under Browse. Every part of Airflow imports this file, and only the API server
answers requests. So `tidemark.airflow.pages.api`, which answers them, is imported with the first one.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/tidemark"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Forwards to `tidemark.airflow.pages.api.application`, an ASGI application."""
    # In a thread: the import is slow, and Airflow's own requests share this loop.
    api = await asyncio.to_thread(import_module, "tidemark.airflow.pages.api")
    await api.application(scope, receive, send)


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
        }
    ]
