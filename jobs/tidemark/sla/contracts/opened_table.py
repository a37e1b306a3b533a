"""Opens a table to count rows in some of its files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import polars as pl
from deltalake import DeltaTable

from tidemark.query.sql import identifier, rows_in_files
from tidemark.storage.delta.snapshots import Snapshot, snapshot_of
from tidemark.storage.delta.tables import in_files


@dataclass(frozen=True)
class OpenedTable:
    """The table at *path* in the version in which it was opened.

    `written_ms` has for each file when its youngest row was written, epoch ms of the writer's clock.
    """

    path: Path
    stored: Snapshot | DeltaTable
    written_ms: Mapping[str, int]

    @classmethod
    def at(cls, path: Path) -> OpenedTable:
        """Opens the table at *path*; raises as delta-rs does if it cannot be opened."""
        # delta-rs needs ten times as long for a small table.
        if (snapshot := snapshot_of(path)) is not None:
            return cls(path, snapshot, {name: file.written_ms for name, file in snapshot.data_files.items()})
        table = DeltaTable(str(path))
        files = pl.DataFrame(table.get_add_actions(flatten=True)).select("path", "modification_time")
        return cls(path, table, dict(files.iter_rows()))

    def files_since(self, written_ms: int) -> frozenset[str]:
        """Returns the files with rows that were written at *written_ms* or later."""
        return frozenset(file for file, at_ms in self.written_ms.items() if at_ms >= written_ms)

    def rows(self, connection: duckdb.DuckDBPyConnection, files: Collection[str]) -> str:
        """Returns the rows in *files* as SQL that *connection* understands after FROM."""
        if isinstance(self.stored, Snapshot) and (select := self._select(self.stored, files)) is not None:
            return select
        # By Arrow: it leaves out many files by their bounds, and reads object stores.
        stored = self.stored
        table = DeltaTable(str(self.path), version=stored.number) if isinstance(stored, Snapshot) else stored
        chosen = {Path(file).name for file in files}
        name = f"{self.path}: {' '.join(sorted(chosen))}"
        connection.register(name, in_files(table, lambda file: 0 if file in chosen else None))
        return identifier(name)

    def _select(self, snapshot: Snapshot, files: Collection[str]) -> str | None:
        chosen = {name: file for name, file in snapshot.data_files.items() if name in files}
        return rows_in_files(replace(snapshot, data_files=chosen))
