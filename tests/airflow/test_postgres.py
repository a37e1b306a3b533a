"""Airflow on PostgreSQL supervises a stream as on SQLite."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.supervised_streams import Supervised, staged
from tidemark.control import process

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path())
# It refuses to run as root.
AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups") if os.geteuid() == 0 else ()


@pytest.fixture
def database() -> Iterator[str]:
    """The address of an empty database on the loopback interface."""
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
        process.launch("postgres", served, home=home, env={"PATH": os.environ["PATH"]})
        is_ready = [PROGRAMS / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        process.wait_until(lambda: subprocess.run(is_ready, check=False).returncode == 0, "PostgreSQL", 30)
        yield f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/postgres"
    finally:
        process.stop(home, "postgres")
        shutil.rmtree(home)


@pytest.mark.long
@pytest.mark.skipif(not PROGRAMS.name, reason="no PostgreSQL; `make postgres` installs it")
def test_a_stream_outlives_scheduler_and_triggerer(database: str, tmp_path: Path) -> None:
    with staged(tmp_path / "stage", {"DATABASE__SQL_ALCHEMY_CONN": database}) as stage:
        stream = Supervised(stage, tmp_path / "warehouse")
        try:
            run_id = stream.run()
            pid = stream.running()
            stage.kill("scheduler", "triggerer")
            stage.start()
            assert stream.running() == pid
            stream.running(but=stream.kill())
            stream.drain(run_id)
            assert stream.epoch() == 2
        finally:
            stream.end()
