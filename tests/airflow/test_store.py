"""The connection of an object store gives processes its credentials."""

from __future__ import annotations

import json
import os

import pytest
from airflow.sdk import Connection

from tidemark_airflow.operators.store import CONNECTION, warehouse_at

VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")


def test_an_empty_field_of_a_connection_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "of the environment")
    extra = {"aws_session_token": None, "region_name": "", "role_arn": None}
    connection = Connection(
        conn_id=CONNECTION, conn_type="aws", login="ann", password="canary", extra=json.dumps(extra)
    )
    assert str(warehouse_at("s3://bucket/wh", lambda _: connection)) == "s3a://bucket/wh"
    assert {name: os.environ.get(name) for name in VARIABLES} == {
        "AWS_ACCESS_KEY_ID": "ann",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "AWS_SESSION_TOKEN": None,
        "AWS_REGION": "of the environment",
        "AWS_ENDPOINT_URL": "of the environment",
    }
