"""Builds the image of docker/ and starts all services, once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from containers import engine
from containers.bases import base_images
from containers.running import PROJECT, Containers

from tidemark.local.airflow_api import AirflowApi


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """The services, built and started as docs/cluster.md says, until the end of the tests."""
    if (reason := engine.missing()) is not None:
        pytest.skip(reason)
    with engine.served() as docker:
        images = base_images(docker, tmp_path_factory.mktemp("bases"))
        subprocess.run([sys.executable, "docker/make_secrets.py", "docker/secrets"], cwd=PROJECT, check=True)
        started = Containers(docker, images, docker.volumes())
        try:
            started.compose("up", "-d", "--build")
            started.wait_until_healthy()
            yield started
        finally:
            logs = started.compose("logs", "--no-color", "--timestamps", check=False)
            (PROJECT / ".venv" / "containers.log").write_text(logs.stdout + logs.stderr)
            started.compose("down", "--volumes", check=False)


@pytest.fixture(scope="session")
def airflow(containers: Containers) -> AirflowApi:
    """Airflow's API, by the password that `make secrets` made."""
    return containers.airflow()
