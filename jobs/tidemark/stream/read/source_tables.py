"""Watches the Delta tables that a stream reads as sources, which other programs may change or replace.

Spark knows a table by its id. But once it has read all rows of a table, it does not notice when another table is put at
the same path. So the ids are compared here.

When columns were renamed or dropped, Spark refuses to read on, although only the declared columns matter to a stream.
With the setting UNSAFE it reads on, and reads older rows with the columns of the newest version. So this module refuses
the change if the name of a declared column means another column in unread rows.
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
from tidemark.storage.delta.requirements import LOOK_S, protocol_and_metadata
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
    """A table that a source reads, and the newest commit that was seen there.

    Attributes:
        source: the source.
        path: where the table is.
        id: the id of the table that the stream reads, or None if it has not begun to read.
        seen: identifies the newest commit that was seen, as `_newest` does.
        seen_id: the id of the table that had this commit.
    """

    source: Source
    path: Path
    id: str | None
    seen: tuple[Any, ...] = ()
    seen_id: str | None = None

    def id_now(self) -> str | None:
        """Returns the id of the table that is at the path now, or None if it cannot be read."""
        try:
            newest = self._newest()
            if newest != self.seen:
                self.seen_id = str(protocol_and_metadata(self.path)[1]["id"])
                self.seen = newest
        except _UNREADABLE:
            return None
        return self.seen_id

    def _newest(self) -> tuple[Any, ...]:
        """Returns values that identify the newest commit: another commit, also of another table, has other values.

        In an object store the result changes every LOOK_S seconds, so that the table is looked at that often.
        """
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
    """The Delta tables that sources of *sub* read, below *warehouse*.

    Spark's *checkpoint* has the ids of the tables, and how far the stream has read.
    """

    def __init__(self, sub: SubTopology, warehouse: Path, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._tables: dict[int, _Watched] = {}
        positions = positions_of_tables(checkpoint)
        for number, operator in enumerate(sub.sources, start=1):  # source 0 of every query are the ticks
            if isinstance(operator, Source) and operator.delta is not None:
                position = positions.get(number)
                table_id = position.table_id if position else None
                self._tables[number] = _Watched(operator, warehouse / operator.delta, table_id)

    def look(self) -> None:
        """Raises Contradiction if another table is at the path of a table that the stream has read."""
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
        """Raises Contradiction if another column has the name of a declared column in unread rows.

        The column was dropped and added anew, or another one has been renamed to its name.
        """
        for number, position in positions_of_tables(self._checkpoint).items():
            if (table := self._tables.get(number)) is None:
                continue
            try:
                newest = _physical_names(protocol_and_metadata(table.path)[1])
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
        """Returns a clearer error than *error*, with which Spark ended a query or a batch, or *error* itself."""
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
        """Returns an error that names commits or files that the stream has yet to read and that are gone, if any."""
        for number, position in positions_of_tables(self._checkpoint).items():
            if (table := self._tables.get(number)) is None:
                continue
            found = f"operators.{table.source.name}.delta: {table.path}: the stream has yet to read"
            remedy = f"put them back from a backup, {_FROM_THE_START}"
            if versions := _without_commit(table.path, position):
                return Contradiction(f"{found} {versions}, whose commits the log of the table no longer has: {remedy}")
            if versions := _without_file(table.path, position):
                return Contradiction(f"{found} {versions}, whose files are gone, as VACUUM removes them: {remedy}")
        return None


def _physical_names(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Returns, by column, the name that it has in files, from the action *metadata* of a Delta log."""
    fields = json.loads(metadata["schemaString"])["fields"]
    return {field["name"]: (field.get("metadata") or {}).get(PHYSICAL, field["name"]) for field in fields}


def _columns_since(path: Path, version: int) -> Iterator[dict[str, str]]:
    """Yields the columns of the table at *path* before *version*, and after each later change of them.

    Versions that the log no longer has are left out: if they are unread, Spark ends the query.
    """
    with suppress(*_UNREADABLE):
        yield _physical_names(protocol_and_metadata(path, until=version - 1)[1])
    for _, actions in _commits(path, version):
        for action in actions:
            if "metaData" in action:
                yield _physical_names(action["metaData"])


def _commits(path: Path, since: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yields version and actions of each commit from *since* on that the log of the table at *path* still has."""
    for number in versions_in_log(path):
        if number >= since:
            lines = commit_file(path, number).read_text(encoding="utf-8").splitlines()
            yield number, [json.loads(line) for line in lines if line]


def _without_commit(path: Path, position: TablePosition) -> str:
    """Returns a text with the versions of the table at *path* that are yet to be read and not in its log any more."""
    first = position.version if position.first_look is None else position.first_look + 1
    there = {number for number, _ in _commits(path, first)}
    return _listed(number for number in range(first, max(there, default=first)) if number not in there)


def _without_file(path: Path, position: TablePosition) -> str:
    """Returns a text with the versions of the table at *path* whose files are yet to be read, and are gone."""
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
    """Returns *versions*, which ascend, as text such as "versions 3 to 5 and 7", or empty without a version."""
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
