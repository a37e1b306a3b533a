"""Checks the login of requests.

It is the only place that uses Airflow's modules for it, which are not a stable interface.
"""

from __future__ import annotations

from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, Request

SIGNED_IN = Depends(requires_access_view(AccessView.WEBSITE))
"""Refuses a request without a login (401) or without access (403).

Access is the right to see Airflow's pages.
"""


def login_url(request: Request) -> str:
    """Returns Airflow's login page, which leads back to *request*."""
    airflow = request.scope.get("app_root_path", "")
    return f"{airflow}/api/v2/auth/login?{urlencode({'next': str(request.url)})}"
