"""Watches the Delta tables that a stream reads as sources, which others may change or replace.

Spark knows a table by its id. But once it has read all rows of a table, it does not notice that another table takes the
place of this one. So the ids are compared here.

When columns were renamed or dropped, Spark refuses to read on, although only the declared columns matter to a stream.
With UNSAFE it reads on, and takes the columns of the newest version for rows that were written before. So this module
refuses the change if a declared column is another one in these rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tidemark.clock import since_boot_s
from tidemark.errors import Contradiction, TidemarkError
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import outermost
from tidemark.model.topology import SubTopology
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.requirements import LOOK_S, description
from tidemark.storage.delta.snapshots import is_below, versions_in_log
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.checkpoint import TablePosition, positions_of_tables

UNSAFE = "spark.databricks.delta.streaming.unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled"
"""Delta's setting to read over renamed and dropped columns."""
LATER = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"
"""Delta's setting to begin a stream at an instant after the newest commit."""
PHYSICAL = "delta.columnMapping.physicalName"
_FROM_THE_START = 'or give the source another name and starting_offsets = "earliest": it reads the table as it is then'
_GONE = re.compile(r"FILE_NOT_EXIST|LOG_FILE_NOT_FOUND|FileNotFoundException|No such file or directory")
"""In the texts of Spark's errors over a data file or a commit that is not there."""
_UNREADABLE = (OSError, ValueError, KeyError)
"""Errors over a log that is missing, is being written, or is not whole."""


@dataclass
class _Watched:
    """A table at *path*, which *source* reads, and what was seen of it last."""

    source: Source
    path: Path
    id: str | None
    """The id of the table that the stream reads; None: it has not begun to."""
    seen: tuple[Any, ...] = ()
    seen_id: str | None = None

    def id_now(self) -> str | None:
        """Returns the id of the table that is there now; None: it cannot be read."""
        try:
            newest = self._newest()
            if newest != self.seen:
                self.seen_id = str(description(self.path)[1]["id"])
                self.seen = newest
        except _UNREADABLE:
            return None
        return self.seen_id

    def _newest(self) -> tuple[Any, ...]:
        """Returns what tells the newest commit from any other, and from that of another table."""
        if isinstance(self.path, ObjectPath):
            return (since_boot_s() // LOOK_S,)
        version = self.seen[0] if self.seen else -1
        if not commit_file(self.path, version).exists():
            version = max(versions_in_log(self.path))
        while commit_file(self.path, version + 1).exists():
            version += 1
        found = commit_file(self.path, version).stat()
        return version, found.st_ino, found.st_mtime_ns


class SourceTables:
    """The Delta tables that sources of *sub* read, with places relative to *warehouse*.

    *checkpoint*, Spark's, has their ids, and how far the stream has read.
    """

    def __init__(self, sub: SubTopology, warehouse: Path, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._tables: dict[int, _Watched] = {}
        positions = positions_of_tables(checkpoint)
        for number, operator in enumerate(sub.sources, start=1):  # source 0 of every query are the ticks
            if isinstance(operator, Source) and operator.delta is not None:
                at = positions.get(number)
                self._tables[number] = _Watched(operator, warehouse / operator.delta, at.table_id if at else None)

    def look(self) -> None:
        """Raises Contradiction if another table has taken the place of one."""
        for table in self._tables.values():
            now = table.id_now()
            if table.id is None:
                table.id = now
            elif now is not None and now != table.id:
                msg = (
                    f"operators.{table.source.name}.delta: {table.path}: the stream has read the Delta table with the "
                    f"id {table.id}, and the one that is there now has the id {now}: put the first one back, "
                    f"{_FROM_THE_START}"
                )
                raise Contradiction(msg)

    @property
    def is_replaced(self) -> bool:
        """True if `look` raises."""
        try:
            self.look()
        except Contradiction:
            return True
        return False

    def refuse_other_columns(self) -> None:
        """Raises Contradiction if the name of a declared column is that of another column in unread rows.

        The column was dropped and added anew, or another one has been renamed to its name.
        """
        for number, position in positions_of_tables(self._checkpoint).items():
            if (table := self._tables.get(number)) is None:
                continue
            try:
                newest = _physical_names(description(table.path)[1])
            except _UNREADABLE:
                continue  # Spark has a reason for it
            declared = outermost(table.source.field_of.values()) & newest.keys()
            for names in _columns_since(table.path, position.version):
                if other := sorted(name for name in declared & names.keys() if names[name] != newest[name]):
                    msg = (
                        f"operators.{table.source.name}.fields: {table.path}: {', '.join(other)} has become another "
                        f"column in a version from {position.version} on, which the stream has yet to read: name the "
                        f"column in `fields` as it is called now, {_FROM_THE_START}"
                    )
                    raise Contradiction(msg)

    def explained(self, error: Exception) -> Exception:
        """Returns *error*, with which Spark ended a query or a batch, or a clearer one."""
        if isinstance(error, TidemarkError):
            return error
        try:
            self.look()
        except Contradiction as replaced:
            return replaced
        text = str(error)
        # This is the error class of a rewritten source table in delta-spark.
        if "DELTA_SOURCE_TABLE_IGNORE_CHANGES" in text:
            return Contradiction(
                "a source must read an append-only Delta table, but rows of this one were rewritten; give the source "
                f"another table, {_FROM_THE_START}: {error}"
            )
        if _GONE.search(text):
            with suppress(*_UNREADABLE):
                return self._gone() or error
        return error

    def _gone(self) -> Contradiction | None:
        """Returns what is no longer there of the versions that are to be read, if anything."""
        for number, position in positions_of_tables(self._checkpoint).items():
            if (table := self._tables.get(number)) is None:
                continue
            at = f"operators.{table.source.name}.delta: {table.path}: the stream has yet to read"
            back = f"put them back from a backup, {_FROM_THE_START}"
            if versions := _without_commit(table.path, position):
                return Contradiction(f"{at} {versions}, whose commits the log of the table no longer has: {back}")
            if versions := _without_file(table.path, position):
                return Contradiction(f"{at} {versions}, whose files are gone, as VACUUM removes them: {back}")
        return None


def _physical_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Returns the name that each column has in files, of the action *metadata* of a log."""
    fields = json.loads(metadata["schemaString"])["fields"]
    return {field["name"]: (field.get("metadata") or {}).get(PHYSICAL, field["name"]) for field in fields}


def _columns_since(path: Path, version: int) -> Iterator[dict[str, str]]:
    """Yields the columns before *version* of the table at *path*, and those of each change from there on.

    Versions that the log no longer has are left out: if they are unread, Spark ends the query.
    """
    with suppress(*_UNREADABLE):
        yield _physical_names(description(path, until=version - 1)[1])
    for _, actions in _commits(path, version):
        for action in actions:
            if "metaData" in action:
                yield _physical_names(action["metaData"])


def _commits(path: Path, since: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yields number and actions of the commits of the table at *path* that its log has, from *since* on."""
    for number in versions_in_log(path):
        if number >= since:
            lines = commit_file(path, number).read_text(encoding="utf-8").splitlines()
            yield number, [json.loads(line) for line in lines if line]


def _without_commit(path: Path, position: TablePosition) -> str:
    """Returns the versions of the table at *path* that are to be read and have no commit in its log."""
    first = position.version if position.first_look is None else position.first_look + 1
    there = {number for number, _ in _commits(path, first)}
    return _listed(number for number in range(first, max(there, default=first)) if number not in there)


def _without_file(path: Path, position: TablePosition) -> str:
    """Returns the versions of the table at *path* that added files which are to be read and are gone."""
    added: dict[str, int] = {}
    first_look = position.first_look
    for version, actions in _commits(path, position.version if first_look is None else 0):
        is_in_first_look = first_look is not None and version <= first_look
        for action in actions:
            # What the table had at first is read as it was then, without what was removed before.
            if is_in_first_look and "remove" in action:
                added.pop(action["remove"]["path"], None)
            if (file := action.get("add")) and (is_in_first_look or file["dataChange"]):
                added[file["path"]] = version
    gone = {version for name, version in added.items() if is_below(name) and not (path / unquote(name)).exists()}
    return _listed(sorted(gone))


def _listed(versions: Iterable[int]) -> str:
    """Returns *versions*, ascending, as text: "versions 3 to 5 and 7"; empty without any."""
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and runs[-1][1] == version - 1:
            runs[-1] = (runs[-1][0], version)
        else:
            runs.append((version, version))
    if not runs:
        return ""
    *others, last = [str(first) if first == end else f"{first} to {end}" for first, end in runs]
    one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"version{'s' * (not one)} " + (f"{', '.join(others)} and {last}" if others else last)
