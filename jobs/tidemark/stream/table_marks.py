"""What the commits of a Delta table say of record time, up to the version that a batch reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from deltalake import DeltaTable

from tidemark.kernels.marks import MARK, Told, told_by
from tidemark.spec.operators import Source

LOOKS_BACK = 100
"""Commits, newest first, among which a mark is looked for: a driver's own has one each."""
_OF_SPARK = "userMetadata"
"""Where a commit of Spark has what its writer says of it."""


class NewestMarks(Protocol):
    """Tells what the newest mark of a table says."""

    def newest(self, source: Source, versions: Mapping[str, int]) -> Told | None:
        """As `TableMarks` has it."""


class TableMarks:
    """The marks of time in the logs of Delta tables, whose places are relative to *warehouse*."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._ids: dict[str, str] = {}
        self._known: dict[str, tuple[int, Told | None]] = {}

    def newest(self, source: Source, versions: Mapping[str, int]) -> Told | None:
        """What the newest mark says to *source* when its table is read before the one of *versions* by its id.

        None: there is no mark that is believed, or the log has forgotten it. Who has put rows in since is not idle.
        """
        if source.delta is None or not source.written_by or not versions:
            return None
        path = self._warehouse / source.delta
        if source.name not in self._ids:
            self._ids[source.name] = str(DeltaTable(str(path)).metadata().id)
        before = versions.get(self._ids[source.name], 0)
        known = self._known.get(source.name)
        if known is None or known[0] != before:
            known = self._known[source.name] = (before, _newest(source, path / "_delta_log", before))
        return known[1]


def _newest(source: Source, log: Path, before: int) -> Told | None:
    is_fresh = False
    for version in range(before - 1, max(before - 1 - LOOKS_BACK, -1), -1):
        commit = log / f"{version:020d}.json"
        if not commit.exists():
            return None
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        info: Mapping[str, object] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        for name in (MARK, _OF_SPARK):
            if (told := told_by(source, str(info.get(name, "")))) is not None:
                return told._replace(idle=told.idle and not is_fresh)
        is_fresh |= any("add" in action and action["add"].get("dataChange") for action in actions)
    return None
