"""A project with a stream that needs no broker."""

from __future__ import annotations

from pathlib import Path

from packages.fresh import FreshEnvironment

from support.topologies import orders_in_files


def shop(environment: FreshEnvironment, folder: Path, more: str = "") -> Path:
    """Makes a project in *folder* with the topology `shop`; returns its folder.

    Two orders are there. *more* follows in the topology's file.
    """
    project, incoming = folder / "mine", folder / "incoming"
    environment.answer("tidemark", "init", str(project))
    incoming.mkdir()
    (incoming / "a.json").write_text('{"id": "a", "at": 1000}\n{"id": "b", "at": 2000}\n')
    (project / "topologies" / "shop.toml").write_text(orders_in_files("shop", str(incoming)) + more)
    return project
