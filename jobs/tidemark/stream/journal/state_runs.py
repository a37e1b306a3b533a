"""Describes the files with the states of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StateRun:
    """The file *name* with so many *rows* of states."""

    name: str
    rows: int


@dataclass(frozen=True)
class StateRuns:
    """The files (runs) with the state of a shard, as an entry names them.

    Attributes:
        batch_id: the batch after which the files are the state, or -1 if there is no state yet. It may be older than
            the batch of the entry: the entries in between have the changes.
        runs: the files, oldest first.
        held: by operator or source, how many updates or records wait after the batch of the entry.
    """

    batch_id: int = -1
    runs: tuple[StateRun, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(run.rows for run in self.runs)
