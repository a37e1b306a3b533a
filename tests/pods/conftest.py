"""Installs the official client of Kubernetes beside the tests' own packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pods.api_server import AcceptedObjects, serving

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
BINARIES = Path(sys.executable).parent
CONNECTION = '{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client", "namespace": "other"}}'
ENDS_WITHIN_S = 120
Run = Callable[..., str]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command with the client, which succeeds; returns its output."""
    client = tmp_path_factory.mktemp("client")
    lock = HERE / "requirements.lock"
    install = [str(BINARIES / "uv"), "pip", "install", "-q", "--python", sys.executable, "--target", str(client)]
    subprocess.run([*install, "--no-deps", "--require-hashes", "-r", str(lock)], check=True)
    home = str(tmp_path_factory.mktemp("airflow"))
    # The environment of another checkout has that one's code installed.
    code = os.pathsep.join([str(client), str(PROJECT / "jobs")])
    env = {"PYTHONPATH": code, "AIRFLOW_HOME": home, "AIRFLOW_CONN_SPARK_DEFAULT": CONNECTION}
    path = {"PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(*command: str, given: str = "") -> str:
        ran = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=False,
            env={**os.environ, **env, **path},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


@pytest.fixture(scope="session")
def read_by_models(run: Run) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Returns objects as the models of Kubernetes read them."""

    def read(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        read_objects: list[dict[str, Any]] = json.loads(
            run(sys.executable, str(HERE / "accepted.py"), given=json.dumps(objects))
        )
        return read_objects

    return read


@pytest.fixture
def api() -> Iterator[AcceptedObjects]:
    """The API that accepts all objects."""
    with serving() as accepted:
        yield accepted


@pytest.fixture
def flights(tmp_path: Path) -> Callable[..., Path]:
    """Writes the demo's topology with the tables of the page."""

    def write(*, deploy: str, address: str = "https://kubernetes.default.svc") -> Path:
        page = (PROJECT / "docs" / "kubernetes.md").read_text()
        (block,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
        tables, _, _ = block.partition("[spark.conf]")  # files of a pod
        tables = tables.replace("https://kubernetes.default.svc", address)
        deployed = tables.replace('deploy = "cluster"', f'deploy = "{deploy}"')
        file = tmp_path / "flights.toml"
        demo = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text()
        file.write_text(f"{demo}\n{deployed}")
        return file

    return write
