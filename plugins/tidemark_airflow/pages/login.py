"""Checks the login of requests, their rights, and where they come from.

No other module uses Airflow's modules for logins and rights, which are not a stable interface.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable
from urllib.parse import urlencode, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, Request

SIGNED_IN = Depends(requires_access_view(AccessView.WEBSITE))
"""Refuses a request without a login (401), or without the right to see Airflow's pages (403)."""


def dag_of(topology: str) -> str:
    """Returns the DAG whose readers may see the pages of *topology*."""
    return f"tidemark_{topology}_streams"


def _require_topology(request: Request, user: GetUserDep) -> None:
    if name := request.path_params.get("name"):
        requires_access_dag("GET", param_dag_id=dag_of(name))(request, user)


MAY_READ = Depends(_require_topology)
"""Refuses (403) users who may not read the topology's DAG."""


def _require_editor(request: Request, user: GetUserDep) -> None:
    requires_access_dag("PUT", param_dag_id=dag_of(request.path_params["name"]))(request, user)


MAY_EDIT = Depends(_require_editor)
"""Refuses (403) users who may not edit the topology's DAG."""
FORM_VALID_S = 3_600
"""Time for which the token of a form is valid, in s."""


class Editor:
    """The signed-in user who decides about alerts.

    Browsers send the cookie of a login with the forms of any site. So a form has a token, which other sites cannot
    read: the end of its validity (epoch s), and a signature of that and the user by Airflow's secret key.
    """

    def __init__(self, user: GetUserDep) -> None:
        self.name, self._id = user.get_name(), str(user.get_id())

    def form_token(self, now_s: int) -> str:
        """Returns a token for a form of this user at *now_s*."""
        until = str(now_s + FORM_VALID_S)
        return f"{until}.{self._signature(until)}"

    def has_sent(self, token: str, now_s: int) -> bool:
        """Returns True if *token* is of this user and valid at *now_s*."""
        until, _, signature = token.partition(".")
        # Only an end that was signed here is sure to be a number.
        is_ours = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        return is_ours and int(until) >= now_s

    def _signature(self, until: str) -> str:
        key = conf.get("api", "secret_key")
        return hmac.new(key.encode(), f"tidemark form|{until}|{self._id}".encode(), hashlib.sha256).hexdigest()


def _signed_in_editor(user: GetUserDep) -> Editor:
    return Editor(user)


EDITOR = Depends(_signed_in_editor)
"""Gives a handler the signed-in user."""


def has_header_token(request: Request) -> bool:
    """Returns True if the header `Authorization` is the login."""
    # A form cannot set this header, and browsers refuse it to scripts of other sites.
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def is_from_other_site(request: Request) -> bool:
    """Returns True if a page of another site sent *request*."""
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = request.headers.get("origin")
    our_hosts = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="")).netloc} - {None, ""}
    # A browser that hides the origin sends "null", which has no host.
    return origin is not None and urlsplit(origin).netloc not in our_hosts


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
    """Returns Airflow's login page, which leads back to *request*, or after a lost form to the SLAs of its topology."""
    back = request.url
    if request.method == "POST":
        back = back.replace(path=f"{back.path.rpartition('/')[0]}/slas", query="")
    airflow = request.scope.get("app_root_path", "")
    return f"{airflow}/api/v2/auth/login?{urlencode({'next': str(back)})}"
