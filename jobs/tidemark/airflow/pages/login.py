"""Checks the login of requests, and their rights.

It is the only place that uses Airflow's modules for it, which are not a stable interface.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.dag import DagModel
from fastapi import Depends, Request

SIGNED_IN = Depends(requires_access_view(AccessView.WEBSITE))
"""Refuses a request without a login (401) or without access (403).

Access is the right to see Airflow's pages.
"""


def dag_of(topology: str) -> str:
    """Returns the DAG whose readers may see the pages of *topology*."""
    return f"tidemark_{topology}_streams"


def _require_topology(request: Request, user: GetUserDep) -> None:
    """Refuses (403) users who may not read the topology's DAG."""
    if name := request.path_params.get("name"):
        requires_access_dag("GET", param_dag_id=dag_of(name))(request, user)


MAY_READ = Depends(_require_topology)
"""Refuses (403) users who may not read the topology's DAG."""


class Readable:
    """Chooses the topologies that *user* may read."""

    def __init__(self, user: GetUserDep) -> None:
        self._user = user

    def of(self, topologies: Iterable[str]) -> list[str]:
        """Returns those of *topologies* whose DAG the user may read, in order."""
        names: Collection[str] = [*topologies]
        teams = DagModel.get_dag_id_to_team_name_mapping([dag_of(name) for name in names])
        manager = get_auth_manager()
        readable = []
        for name in names:
            details = DagDetails(id=dag_of(name), team_name=teams.get(dag_of(name)))
            if manager.is_authorized_dag(method="GET", details=details, user=self._user):
                readable.append(name)
        return readable


def _readers_choice(user: GetUserDep) -> Readable:
    return Readable(user)


READABLE = Depends(_readers_choice)
"""Gives an answer the topologies that its reader may see."""


def login_url(request: Request) -> str:
    """Returns Airflow's login page, which leads back to *request*."""
    airflow = request.scope.get("app_root_path", "")
    return f"{airflow}/api/v2/auth/login?{urlencode({'next': str(request.url)})}"
