"""A project with a stream that needs no broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from packages.fresh import FreshEnvironment

from support.topologies import orders_in_files

COUNT = "select count(*) as n from bought"
WITHIN_S = 240


def shop(environment: FreshEnvironment, folder: Path, more: str = "") -> Path:
    """Makes a project in *folder* with the topology `shop`; returns its folder.

    Two orders are there. *more* follows in the topology's file.
    """
    project, incoming = folder / "mine", folder / "incoming"
    environment.answer("tidemark", "init", str(project))
    incoming.mkdir()
    (incoming / "a.json").write_text("".join(f'{{"id": "{key}", "at": 1400000000000}}\n' for key in "ab"))
    (project / "topologies" / "shop.toml").write_text(orders_in_files("shop", str(incoming)) + more)
    return project


def written(environment: FreshEnvironment, project: Path, has_ended: Callable[[], bool] = lambda: False) -> str:
    """Returns the count of rows of the sink, once it has some.

    It returns at once if the stream has ended.
    """
    deadline = time.monotonic() + WITHIN_S
    while True:
        ran = environment.run("tidemark", "sql", "--format", "csv", COUNT, folder=project)
        if ran.stdout not in {"", "n\n0\n"} or has_ended() or time.monotonic() > deadline:
            return ran.stdout
