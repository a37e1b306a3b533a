"""Gives each test a warehouse in an S3-compatible server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from objectstore.server import BUCKET, PROGRAM, object_store

from tidemark.model.project.files import CHECKOUT
from tidemark.storage.location import location

collect_ignore = ["moto_server.py"]  # which the server's own environment runs


@pytest.fixture(scope="session")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server notes each request."""
    return tmp_path_factory.mktemp("store") / "server.log"


@pytest.fixture(scope="session")
def store(server_log: Path) -> Iterator[str]:
    """Returns the address of the server that the environment names.

    The test is skipped where it is not installed, unless it is required.
    """
    if not PROGRAM.exists() or not list((CHECKOUT / ".jars" / "s3").glob("*.jar")):
        if os.environ.get("TIDEMARK_OBJECT_STORE") == "required":
            pytest.fail("no server was found; `make object-store` installs it")
        pytest.skip("no server was found; `make object-store` installs it")
    with object_store(server_log) as address:
        yield address


@pytest.fixture
def warehouse(store: str) -> Path:
    """An empty warehouse of the test's own."""
    return location(f"s3://{BUCKET}/{uuid.uuid4().hex}/warehouse")
