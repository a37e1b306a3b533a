"""What lies in a warehouse: rows, files and bytes of each Delta table, from its log alone (ring 2)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.warehouse import delta_tables


class Stored(NamedTuple):
    """One Delta table: its name, where it lies within the warehouse, and its size at *version*."""

    table: str
    where: str
    rows: int
    files: int
    bytes: int
    version: int


def inventory(warehouse: Path) -> list[Stored]:
    """Every Delta table of *warehouse*, by name and place."""
    return [
        stored(name, path, str(path.parent.relative_to(warehouse)))
        for name, paths in delta_tables(warehouse).items()
        for path in paths
    ]


def stored(name: str, path: Path, where: str) -> Stored:
    """The table *name* at *path*; *where* says so for people."""
    table = DeltaTable(str(path))
    files = pa.table(table.get_add_actions(flatten=True))
    rows, size = (pc.sum(files[column]).as_py() or 0 for column in ("num_records", "size_bytes"))
    return Stored(name, where, rows, files.num_rows, size, table.version())
