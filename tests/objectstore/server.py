"""Starts an S3-compatible server for tests and measurements."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark.control.process import wait_until
from tidemark.model.project.files import CHECKOUT

PROGRAM = CHECKOUT / ".venv-s3" / "bin" / "python"
BUCKET = "tests"


@contextmanager
def object_store(log: Path) -> Iterator[str]:
    """Yields the address of a server with BUCKET, which the environment names.

    It notes each request in *log*.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [str(PROGRAM), str(Path(__file__).with_name("moto_server.py")), str(port)]
    with pytest.MonkeyPatch.context() as env, log.open("w") as said:
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
