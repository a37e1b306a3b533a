"""Projects of a user, with streams that run in the foreground."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from packages.fresh import FreshEnvironment

from support.topologies import orders_in_files

COUNT, BOTH = "select count(*) as n from bought", "n\n2\n"
"""The number of rows of the sink of `shop`, and the answer when both orders are there."""
WITHIN_S = 240


def beside_spark(version: str) -> tuple[str, ...]:
    """Returns what streams and SLA checks need beside Spark 4, as docs/installation.md lists it."""
    return ("delta-spark==4.4.0", "great-expectations", "pandas", f"pyspark-client=={version}")


def shop(environment: FreshEnvironment, folder: Path, more: str = "") -> Path:
    """Makes a project in *folder* with the topology `shop`, which needs no broker; returns its folder.

    Two orders are there. *more* follows in the topology's file.
    """
    project, incoming = folder / "mine", folder / "incoming"
    environment.answer("tidemark", "init", str(project))
    incoming.mkdir()
    (incoming / "a.json").write_text("".join(f'{{"id": "{key}", "at": 1400000000000}}\n' for key in "ab"))
    (project / "topologies" / "shop.toml").write_text(orders_in_files("shop", str(incoming)) + more)
    return project


@contextmanager
def running(environment: FreshEnvironment, project: Path, *words: str, **env: str) -> Iterator[Callable[[], bool]]:
    """Runs `tidemark run` with *words*, and drains it at the end; yields whether it has ended by itself."""
    command = [str(environment.folder / "venv" / "bin" / "tidemark"), "run", *words]
    with subprocess.Popen(command, cwd=project, env=environment.environment(**env)) as process:
        try:
            yield lambda: process.poll() is not None
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 0


def awaited(
    environment: FreshEnvironment,
    project: Path,
    query: str,
    expected: str,
    has_ended: Callable[[], bool] = lambda: False,
) -> str:
    """Returns the answer to *query*, once it is the *expected* one.

    It returns another one if the stream has ended, or after a time.
    """
    deadline = time.monotonic() + WITHIN_S
    while True:
        ran = environment.run("tidemark", "sql", "--format", "csv", query, folder=project)
        if ran.stdout == expected or has_ended() or time.monotonic() > deadline:
            return ran.stdout
