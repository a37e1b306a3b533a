"""Finds all Delta tables of a warehouse that have a name; `query.sql` and `query.spark` read their rows."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import CHANGES_OF, Layout
from tidemark.storage.object_path import ObjectPath

WORD = re.compile(r"\w+")


def delta_tables(warehouse: Path, topology: str | None = None) -> Mapping[str, list[Path]]:
    """Returns the paths of the Delta tables of *warehouse* by name.

    A name has one path for each stream or topology that writes such a table. With *topology* only its tables are
    returned.
    """
    # The topology may come from a query, where a path or a pattern would match other folders.
    if topology is not None and not WORD.fullmatch(topology):
        return {}
    layout, folder = Layout(warehouse), topology or "*"
    patterns = [layout.stream_table(folder, "*", "*"), layout.report_table(folder, "*")]
    paths_by_name = defaultdict(list)
    for pattern in patterns:
        for log in sorted(warehouse.glob(str(pattern.relative_to(warehouse) / "_delta_log"))):
            if _has_commit(log):
                paths_by_name[log.parent.name].append(log.parent)
    return dict(sorted(paths_by_name.items()))


def no_tables(warehouse: Path) -> InvalidArgument:
    """Returns the error for a *warehouse* without Delta tables."""
    return InvalidArgument(f"{warehouse} has no Delta tables yet; choose another folder with --home or --warehouse")


def stream_tables(layout: Layout, topology: str, table: str) -> list[Path]:
    """Returns the paths of *table*, one per sub-topology that created it."""
    pattern = layout.stream_table(topology, "*", table).relative_to(layout.warehouse)
    return [path for path in sorted(layout.warehouse.glob(str(pattern))) if is_table(path)]


def is_table(path: Path) -> bool:
    """Returns True if there is a Delta table at *path*."""
    log = path / "_delta_log"
    return log.is_dir() and _has_commit(log)


def _has_commit(log: Path) -> bool:
    # A maker of a table makes the folder first, and then the first commit. An object store has no empty folders.
    if isinstance(log, ObjectPath):
        return True
    # A log may be long, and the first commit that is met is enough.
    with suppress(OSError), os.scandir(log) as files:  # removed meanwhile, a file, or not ours to read
        return any(file.name.endswith(".json") for file in files)
    return False


def changes_of(path: Path) -> Path | None:
    """Returns the table with appended rows that the table at *path* may not show yet.

    The result is None if the table at *path* keeps no current rows.
    """
    changes = path.with_name(f"{CHANGES_OF}{path.name}")
    return changes if is_table(changes) else None
