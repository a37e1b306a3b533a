"""Measures the disk space of a topology's tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

from tidemark.maintenance.retention import report_tables
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.storage.delta.compaction import data_files_of
from tidemark.stream.write.declared import table_names


class WrittenTable(NamedTuple):
    """A table, and the sub-topology that writes it, or None if batch jobs do."""

    sub_topology: str | None
    table: str


class Size(NamedTuple):
    """The number of data files that a table names, their bytes and rows, and the number of other files.

    `log_files` are those of its log, and `unused_files` data files that the table does not name.
    """

    files: int
    bytes: int
    rows: int
    log_files: int
    unused_files: int


def sizes(layout: Layout, topology: Topology) -> dict[WrittenTable, Size]:
    """Returns the size of each table of *topology* that exists."""
    return {table: _size(path) for table, path in _tables(layout, topology) if DeltaTable.is_deltatable(str(path))}


def _tables(layout: Layout, topology: Topology) -> Iterator[tuple[WrittenTable, Path]]:
    for sub in topology.sub_topologies:
        for name in table_names(sub):
            yield WrittenTable(sub.name, name), layout.stream_table(topology.name, sub.name, name)
    for path in report_tables(layout, topology.name):
        yield WrittenTable(None, path.name), path


def _size(path: Path) -> Size:
    files = data_files_of(path)
    # Checkpoints are Parquet files too; they lie in `_delta_log`.
    there = [file for file in path.rglob("*.parquet") if file.relative_to(path).parts[0][0] != "_"]
    size = sum(file.bytes for file in files)
    rows = sum(file.rows for file in files)
    return Size(len(files), size, rows, len([*(path / "_delta_log").iterdir()]), len(there) - len(files))
