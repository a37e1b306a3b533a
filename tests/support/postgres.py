"""An empty PostgreSQL on the loopback interface."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemark.control import process

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


@contextmanager
def served() -> Iterator[Database]:
    """Serves an empty database, and removes it at the end."""
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
        command = [*AS_NOBODY, str(PROGRAMS / "postgres"), "-D", str(home / "data"), "-p", str(port), *listening]
        running = Database(home, port, command, f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/postgres")
        running.start()
        yield running
    finally:
        process.stop(home, "postgres")
        shutil.rmtree(home)
