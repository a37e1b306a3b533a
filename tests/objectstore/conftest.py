"""Starts an S3-compatible server, with a warehouse for each test."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.control.process import wait_until
from tidemark.storage.location import location

PROJECT = Path(__file__).resolve().parents[2]
SERVER = PROJECT / ".venv-s3" / "bin" / "python"
BUCKET = "tests"
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
    if not SERVER.exists() or not list((PROJECT / ".jars" / "s3").glob("*.jar")):
        if os.environ.get("TIDEMARK_OBJECT_STORE") == "required":
            pytest.fail("no server was found; `make object-store` installs it")
        pytest.skip("no server was found; `make object-store` installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [str(SERVER), str(Path(__file__).with_name("moto_server.py")), str(port)]
    with pytest.MonkeyPatch.context() as env, server_log.open("w") as said:
        env.setenv("AWS_ACCESS_KEY_ID", "test")
        env.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
        env.setenv("AWS_REGION", "us-east-1")
        env.setenv("AWS_ENDPOINT_URL", address)
        env.setenv("AWS_ALLOW_HTTP", "true")
        with subprocess.Popen(command, stdout=said, stderr=said) as server:
            try:
                wait_until(lambda: _made(f"{address}/{BUCKET}"), "an object store", 60)
                yield address
            finally:
                server.terminate()


def _made(bucket: str) -> bool:
    """Tries to create *bucket* and returns true on success."""
    try:
        urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture
def warehouse(store: str) -> Path:
    """An empty warehouse of the test's own."""
    return location(f"s3://{BUCKET}/{uuid.uuid4().hex}/warehouse")
