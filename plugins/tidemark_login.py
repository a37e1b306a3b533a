"""Who may ask: the one place that knows the modules which Airflow has for it and does not promise to keep."""

from __future__ import annotations

from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, Request

SIGNED_IN = Depends(requires_access_view(AccessView.WEBSITE))
"""Refuses a request without a login (401), and of somebody who may not see Airflow's pages (403)."""


def login_url(request: Request) -> str:
    """Airflow's page to sign in, which leads back to *request*."""
    airflow = request.scope.get("app_root_path", "")
    return f"{airflow}/api/v2/auth/login?{urlencode({'next': str(request.url)})}"
