"""Keeps an installation's topologies to run, and the DAGs it unpaused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidemark.local.stack import Home


@dataclass
class InstallationState:
    """Topologies of an installation.

    Attributes:
        running: those that are to run.
        ran: those that ran at the last `tidemark down`; None: there was none.
        unpaused: DAGs that were unpaused here. If one of them is paused, a person paused it.
    """

    running: list[str] = field(default_factory=list)
    ran: list[str] | None = None
    unpaused: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, home: Home) -> InstallationState:
        """Reads the state of *home*."""
        file = _file(home)
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else cls()

    def keep(self, home: Home) -> None:
        """Writes the state into *home*."""
        home.path.mkdir(parents=True, exist_ok=True)
        partial = _file(home).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(_file(home))

    def started(self, names: Iterable[str]) -> None:
        """Adds *names* to the topologies that are to run."""
        self.running = sorted({*self.running, *names})

    def stopped(self, names: Iterable[str]) -> None:
        """Removes *names* from the topologies that are to run."""
        self.ran = self.running or self.ran
        self.running = sorted({*self.running} - {*names})


def _file(home: Home) -> Path:
    return home.path / "up.json"
