"""Reads marks of record time from the commits of a Delta table, up to the version that a batch reads.

A mark is what the writer of the table says about its own watermark, and about being idle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from deltalake import DeltaTable

from tidemark.kernels.records.marks import MARK, USER_METADATA, TimeMark, mark_in
from tidemark.model.kinds.source import Source
from tidemark.storage.delta.log import commit_file

LOOKS_BACK = 100
"""How many commits are searched for a mark, newest first. Each commit of a driver of Tidemark has one."""


class NewestMarks(Protocol):
    """Returns the newest mark of a table."""

    def newest(self, source: Source, versions: Mapping[str, int]) -> TimeMark | None:
        """Returns the newest mark, as `TableMarks` does."""


class TableMarks:
    """Reads marks of time from the logs of Delta tables below *warehouse*."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._ids: dict[str, str] = {}
        self._newest_marks: dict[str, tuple[int, TimeMark | None]] = {}

    def newest(self, source: Source, versions: Mapping[str, int]) -> TimeMark | None:
        """Returns the newest mark in the table of *source*, or None without a mark of a writer that is trusted.

        *versions* has, by the id of a table, the version before which commits count. If the writer has added rows after
        a mark that says that it is idle, it is not idle any more.
        """
        if source.delta is None or not source.written_by or not versions:
            return None
        path = self._warehouse / source.delta
        # Spark's checkpoint names tables by id, which a table keeps when it is moved.
        if source.name not in self._ids:
            self._ids[source.name] = str(DeltaTable(str(path)).metadata().id)
        # Spark's offset says before which version a batch reads, empty commits included.
        before = versions.get(self._ids[source.name], 0)
        newest_mark = self._newest_marks.get(source.name)
        if newest_mark is None or newest_mark[0] != before:
            newest_mark = self._newest_marks[source.name] = (before, _newest(source, path, before))
        return newest_mark[1]


def _newest(source: Source, table: Path, before: int) -> TimeMark | None:
    is_fresh = False
    for version in range(before - 1, max(before - 1 - LOOKS_BACK, -1), -1):
        commit = commit_file(table, version)
        # The log was cleaned up, so older commits are missing, too.
        if not commit.exists():
            return None
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        info: Mapping[str, object] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        for name in (MARK, USER_METADATA):
            if (mark := mark_in(source, str(info.get(name, "")))) is not None:
                return mark._replace(idle=mark.idle and not is_fresh)
        # Rows of a newer commit without a mark show that the writer is active.
        is_fresh |= any("add" in action and action["add"].get("dataChange") for action in actions)
    return None
