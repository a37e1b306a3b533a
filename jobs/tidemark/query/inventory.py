"""Lists the Delta tables of a warehouse with their rows, files and bytes, which are read from the logs alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.storage.warehouse import delta_tables


class StoredTable(NamedTuple):
    """Size of a Delta table at *version*; *where* is its folder relative to the warehouse."""

    table: str
    where: str
    rows: int
    files: int
    bytes: int
    version: int


def inventory(warehouse: Path) -> list[StoredTable]:
    """Returns all Delta tables of *warehouse*, sorted by name and folder."""
    tables: list[StoredTable] = []
    for name, paths in delta_tables(warehouse).items():
        tables += [size_of_table(name, path, str(path.parent.relative_to(warehouse))) for path in paths]
    return tables


def size_of_table(name: str, path: Path, where: str) -> StoredTable:
    """Returns the size of the table *name* at *path*; *where* is its folder as users see it."""
    table = DeltaTable(str(path))
    files = pa.table(table.get_add_actions(flatten=True))
    rows, size = (pc.sum(files[column]).as_py() or 0 for column in ("num_records", "size_bytes"))
    return StoredTable(name, where, rows, files.num_rows, size, table.version())
