"""Describes the files with the states of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 3
"""The format of entries that are written now."""
ZIPPED = 2
"""The previous format, whose runs are zip files.

Such a run has the form of a journal entry. Entries of this format may lack `held`.
"""


@dataclass(frozen=True)
class StateRun:
    """The file *name* with so many *rows* of states."""

    name: str
    rows: int


@dataclass(frozen=True)
class StateRuns:
    """The runs of a shard, oldest first.

    They have the state after batch `batch_id`; -1: there is none. `held` is the number of updates, by operator, that
    wait after the batch of the entry; None: not counted.
    """

    batch_id: int = -1
    runs: tuple[StateRun, ...] = ()
    held: Mapping[str, int] | None = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows of its runs."""
        return sum(run.rows for run in self.runs)


def states_to_json(shards: Sequence[StateRuns]) -> dict[str, Any]:
    """Returns the runs of all *shards* as a JSON object."""
    return {"format": FORMAT, "shards": [asdict(runs) for runs in shards]}


def states_from_json(content: Mapping[str, Any] | None) -> tuple[StateRuns, ...] | None:
    """Returns what `states_to_json` wrote; None without, or in another format."""
    if content is None or content.get("format") not in {FORMAT, ZIPPED}:
        return None
    runs_of_shards = []
    for shard in content["shards"]:
        runs = tuple(StateRun(**run) for run in shard["runs"])
        runs_of_shards.append(StateRuns(shard["batch_id"], runs, shard.get("held")))
    return tuple(runs_of_shards)
