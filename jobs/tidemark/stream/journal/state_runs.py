"""Describes the files with the states of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


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


def states_to_json(shards: Sequence[StateRuns]) -> list[dict[str, Any]]:
    """Returns the runs of all *shards* as JSON objects."""
    return [asdict(runs) for runs in shards]


def states_from_json(content: Sequence[Mapping[str, Any]]) -> tuple[StateRuns, ...]:
    """Returns what `states_to_json` wrote."""
    shards: list[StateRuns] = []
    for shard in content:
        runs = tuple(StateRun(**run) for run in shard["runs"])
        shards.append(StateRuns(shard["batch_id"], runs, shard["held"]))
    return tuple(shards)
