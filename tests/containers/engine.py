"""Docker Engine and Compose for the tests of docker/: those of this machine, or an engine of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.control import process
from tidemark.errors import TidemarkError

PROJECT = Path(__file__).resolve().parents[2]
COMPOSE = Path(".venv") / "docker-compose"
"""The program that `make docker-engine` compiles where Docker's client has no Compose."""
UP_WITHIN_S = 60.0


@dataclass(frozen=True)
class Engine:
    """A running engine: *environment* says where clients find it, *compose* is the command of Compose."""

    compose: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the client; a failure shows what it printed."""
        return run(["docker", *words], self.environment, check=check)

    def volumes(self) -> set[str]:
        """Returns the names of all volumes."""
        return {*self.docker("volume", "ls", "--quiet").stdout.split()}


def run(command: Sequence[str], environment: dict[str, str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs *command* in the checkout; a failure shows what it printed."""
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, check=False)
    if check and done.returncode:
        printed = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
        msg = f"{' '.join(command)} ended with status {done.returncode}:\n{printed}"
        raise TidemarkError(msg)
    return done


def missing() -> str | None:
    """Returns why no container can be run here, or None."""
    if shutil.which("docker") is None:
        return "no client of Docker; `make docker-engine` installs it"
    if _compose() is None:
        return "no Compose; `make docker-engine` compiles it where there is Go"
    if _answers({}):
        return None
    if shutil.which("dockerd") is None:
        return "no Docker Engine answers, and none is installed; `make docker-engine` installs one"
    return None if os.geteuid() == 0 else "no Docker Engine answers, and only root can start one"


@contextmanager
def served() -> Iterator[Engine]:
    """Yields Docker's engine of this machine. If none runs, it starts one, and removes its images at the end."""
    compose = _compose() or ()
    # The builder of older engines needs no further program.
    builder = {} if run(["docker", "buildx", "version"], {}, check=False).returncode == 0 else {"DOCKER_BUILDKIT": "0"}
    if _answers({}):
        yield Engine(compose, builder)
        return
    home = Path(tempfile.mkdtemp(prefix="tidemark-docker-"))
    environment = {"DOCKER_HOST": f"unix://{home}/docker.sock", **builder}
    places = ["--data-root", f"{home}/data", "--exec-root", f"{home}/exec", "--pidfile", f"{home}/docker.pid"]
    with (home / "dockerd.log").open("w") as log:
        command = ["dockerd", *places, "--host", environment["DOCKER_HOST"]]
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            process.wait_until(lambda: _answers(environment), f"Docker Engine; see {home}/dockerd.log", UP_WITHIN_S)
            yield Engine(compose, environment)
        finally:
            daemon.terminate()  # it stops its containers, too
            daemon.wait()
            subprocess.run(["rm", "--recursive", "--force", "--one-file-system", str(home)], check=True)


def _answers(environment: dict[str, str]) -> bool:
    return run(["docker", "version"], environment, check=False).returncode == 0


def _compose() -> Sequence[str] | None:
    for command in (("docker", "compose"), (str(PROJECT / COMPOSE),)):
        if shutil.which(command[0]) and run([*command, "version"], {}, check=False).returncode == 0:
            return command
    return None
