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
    """The runs of a shard, oldest first.

    They have the state after batch `batch_id`; -1: there is none. `held` is the number of updates, by operator, that
    wait after the batch of the entry.
    """

    batch_id: int = -1
    runs: tuple[StateRun, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows of its runs."""
        return sum(run.rows for run in self.runs)
