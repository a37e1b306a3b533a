"""What the tables of a topology take on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

from tidemark.maintenance.kept import report_tables
from tidemark.spec.layout import Layout
from tidemark.spec.topology import Topology
from tidemark.stream.commit import table_names
from tidemark.table_files import files_of


class Place(NamedTuple):
    """A table by its name, and the sub-topology whose stream writes it; None: the batch jobs do."""

    sub_topology: str | None
    table: str


class Size(NamedTuple):
    """Data files that a table names, their bytes and rows; the files of its log; files that it does not name."""

    files: int
    bytes: int
    rows: int
    log_files: int
    unused_files: int


def sizes(layout: Layout, topology: Topology) -> dict[Place, Size]:
    """Those of all tables of *topology* that are there."""
    return {place: _size(path) for place, path in _tables(layout, topology) if DeltaTable.is_deltatable(str(path))}


def _tables(layout: Layout, topology: Topology) -> Iterator[tuple[Place, Path]]:
    for sub in topology.sub_topologies:
        for name in table_names(sub):
            yield Place(sub.name, name), layout.stream_table(topology.name, sub.name, name)
    for path in report_tables(layout, topology.name):
        yield Place(None, path.name), path


def _size(path: Path) -> Size:
    files = files_of(path)
    there = sum(1 for file in path.rglob("*.parquet") if "_delta_log" not in file.relative_to(path).parts)
    log_files = sum(1 for _ in (path / "_delta_log").iterdir())
    return Size(len(files), sum(f.bytes for f in files), sum(f.rows for f in files), log_files, there - len(files))
