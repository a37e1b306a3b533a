"""What `tidemark up` has to remember of an installation: which topologies are to run, and which DAGs it unpaused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidemark.embedded.stack import Home


@dataclass
class Remembered:
    """Names of topologies: those *running*, and those that *ran* at the last `tidemark down` (None: there was none).

    A DAG that is paused although it was *unpaused* here was paused by a person.
    """

    running: list[str] = field(default_factory=list)
    ran: list[str] | None = None
    unpaused: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, home: Home) -> Remembered:
        """What was kept in *home*."""
        file = _file(home)
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else cls()

    def keep(self, home: Home) -> None:
        """Write it into *home*."""
        home.path.mkdir(parents=True, exist_ok=True)
        partial = _file(home).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(_file(home))

    def started(self, names: Iterable[str]) -> None:
        """The topologies *names* are to run."""
        self.running = sorted({*self.running, *names})

    def stopped(self, names: Iterable[str]) -> None:
        """The topologies *names*, which ran with others or alone, are to run no more."""
        self.ran = self.running or self.ran
        self.running = sorted({*self.running} - {*names})


def _file(home: Home) -> Path:
    return home.path / "up.json"
