"""Airflow on PostgreSQL supervises a stream as on SQLite."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from support.supervised_streams import Stage, Supervised, staged
from tidemark.control import process
from tidemark.errors import TidemarkError

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path())
# It refuses to run as root.
AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups") if os.geteuid() == 0 else ()

NEEDS_POSTGRES = pytest.mark.skipif(not PROGRAMS.name, reason="no PostgreSQL; `make postgres` installs it")


@dataclass(frozen=True)
class Database:
    """A database at *address*, served by a command in *home*."""

    home: Path
    port: int
    served: Sequence[str]
    address: str

    def start(self) -> None:
        """Starts it with what it had, and waits until it answers."""
        process.launch("postgres", self.served, home=self.home, env={"PATH": os.environ["PATH"]})
        is_ready = [PROGRAMS / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        process.wait_until(lambda: subprocess.run(is_ready, check=False).returncode == 0, "PostgreSQL", 30)

    def kill(self) -> None:
        """Ends its processes at once, as a crash of its host would."""
        process.stop(self.home, "postgres", grace_s=0)


@pytest.fixture
def database() -> Iterator[Database]:
    """An empty database on the loopback interface."""
    home = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
    try:
        password, port = secrets.token_urlsafe(12), process.free_port()
        (home / "password").write_text(password)
        if AS_NOBODY:
            for path in (home, home / "password"):
                shutil.chown(path, "nobody", "nogroup")
        made = ("--pgdata", home / "data", "--username", "airflow", "--auth", "scram-sha-256")
        subprocess.run(
            [*AS_NOBODY, PROGRAMS / "initdb", *made, "--pwfile", home / "password"], check=True, capture_output=True
        )
        listening = ("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={home}")
        served = [*AS_NOBODY, str(PROGRAMS / "postgres"), "-D", str(home / "data"), "-p", str(port), *listening]
        running = Database(home, port, served, f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/postgres")
        running.start()
        yield running
    finally:
        process.stop(home, "postgres")
        shutil.rmtree(home)


@pytest.fixture
def stream(database: Database, tmp_path: Path) -> Iterator[Supervised]:
    """A stream that runs under an Airflow with *database*."""
    with staged(tmp_path / "stage", {"DATABASE__SQL_ALCHEMY_CONN": database.address}) as stage:
        supervised = Supervised(stage, tmp_path / "warehouse")
        try:
            yield supervised
        finally:
            supervised.end()


@pytest.mark.long
@NEEDS_POSTGRES
def test_a_stream_outlives_scheduler_and_triggerer(stream: Supervised) -> None:
    stage, run_id, pid = stream.stage, stream.run(), stream.running()
    stage.kill("scheduler", "triggerer")
    stage.start()
    assert stream.running() == pid
    stream.running(but=stream.kill())
    stream.drain(run_id)
    assert stream.epoch() == 2


def has_noticed(stage: Stage, name: str) -> bool:
    """Returns true if *name* has ended, or misses its database."""
    home = stage.home / "airflow"
    return process.find(home, name) is None or "OperationalError" in (home / f"{name}.log").read_text()


def is_started(stage: Stage) -> bool:
    """Starts the parts that have ended, as their supervisor would."""
    try:
        stage.start()
    except TidemarkError:  # one has ended meanwhile: some time after it lost its database
        return False
    return True


@pytest.mark.long
@NEEDS_POSTGRES
def test_a_stream_outlives_a_restart_of_the_database(database: Database, stream: Supervised) -> None:
    stage, run_id, pid = stream.stage, stream.run(), stream.running()
    database.kill()
    for name in ("scheduler", "triggerer"):
        process.wait_until(partial(has_noticed, stage, name), f"{name} without its database", 60)
    assert not stage.api.is_healthy()
    assert stream.running() == pid
    database.start()
    process.wait_until(partial(is_started, stage), "a healthy Airflow", 120)
    assert stream.running() == pid
    assert stream.state(run_id) == "deferred"
    stream.kill()

    def is_replaced() -> bool:
        return is_started(stage) and stream.drivers() not in ([], [pid])

    process.wait_until(is_replaced, "the next driver", 180)
    stream.running(but=pid)
    stream.drain(run_id)
    assert stream.epoch() == 2
