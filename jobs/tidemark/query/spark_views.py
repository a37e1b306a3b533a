"""Writes the names and the SQL by which Spark and its catalogs show a warehouse.

There is one view for each name, over all Delta tables of that name, as in `tidemark sql`. In a catalog each Delta table
is an external table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES
from tidemark.storage.delta.current_view import current_rows_sql
from tidemark.storage.delta.snapshots import columns_of
from tidemark.storage.delta.types import type_text
from tidemark.storage.warehouse import changes_of, no_tables


def external_names(layout: Layout, paths: Sequence[Path]) -> dict[Path, str]:
    """Returns the name of the external table of each path.

    The name is `<topology>__<sub_topology>__<table>`, for a report `<topology>__<table>`. `_` replaces the characters
    `.` and `-`, which Hive and Spark's own catalog refuse.

    Raises:
        InvalidArgument: there are no tables, or two would have one name.
    """
    parts = {path: path.relative_to(layout.warehouse).parts[1:] for path in paths}
    names = {path: re.sub(r"[.-]", "_", "__".join(of_path)) for path, of_path in parts.items()}
    for name, count in Counter(name.lower() for name in names.values()).items():
        if count > 1:
            alike = ", ".join(str(path) for path, other in names.items() if other.lower() == name)
            msg = f"{alike} would both be the table {name} of the catalog; rename a topology or a query"
            raise InvalidArgument(msg)
    if not names:
        raise no_tables(layout.warehouse)
    return names


def location_of(path: Path) -> str:
    """Returns the absolute path or the URL of a table."""
    return str(path if "://" in str(path) else path.absolute())


def identifier(name: str) -> str:
    """Returns *name* as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def union_of(name: str, paths: Sequence[Path], read: Callable[[Path], str]) -> tuple[dict[str, Any], str]:
    """Returns the columns, with Delta's types (JSON), and a SELECT of the current rows of all tables of one *name*.

    Args:
        name: name of the tables.
        paths: paths of the tables; without any the SELECT has no rows.
        read: returns the SQL that reads the table at a path.
    """
    types_by_path = {path: columns_of(path) for path in paths}
    columns = _columns(name, list(types_by_path.values()))
    empty = _shown({}, columns)
    parts = [f"SELECT {', '.join(empty)} WHERE false"]
    for path, types in types_by_path.items():
        parts.append(f"SELECT {', '.join(_shown(types, columns))} FROM {_current(path, read)}")
    return columns, "\nUNION ALL\n".join(parts)


def _columns(name: str, of_paths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the columns of a union with Delta's types (JSON)."""
    if name in TABLES:
        return TABLES[name].delta_types
    columns: dict[str, Any] = {}
    for types in of_paths:
        for column, kind in types.items():
            columns.setdefault(column, kind)
    return columns


def _shown(types: Mapping[str, Any], columns: Mapping[str, Any]) -> Iterator[str]:
    """Yields the *columns* of a union as they are selected from a table with *types*; missing ones are null."""
    for column, kind in columns.items():
        name = identifier(column)
        if column not in types:
            yield f"CAST(NULL AS {type_text(kind)}) AS {name}"
        else:
            yield name


def _current(path: Path, read: Callable[[Path], str]) -> str:
    """Returns the SQL that reads a table; one with current rows includes the rows appended since it was merged."""
    changes = changes_of(path)
    return read(path) if changes is None else f"({current_rows_sql(path, changes, read, identifier)})"
