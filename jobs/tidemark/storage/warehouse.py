"""Finds the tables and views of a warehouse by name.

A name stands for all Delta tables of that name. This module reads no rows: `query.sql` does so by DuckDB, and
`query.spark` by Spark.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.graph import in_order
from tidemark.model.project.layout import CHANGES_OF, Layout
from tidemark.storage.object_path import ObjectPath

VIEWS = Path(__file__).parents[1] / "views"
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class View:
    """A view: its name, the meaning of a row, and its SELECT.

    Spark SQL and DuckDB both read the SELECT. It may use functions of Spark that `query.sql` defines in DuckDB.
    """

    name: str
    row: str
    select: str


def delta_tables(warehouse: Path, topology: str | None = None) -> Mapping[str, list[Path]]:
    """Returns the paths of the Delta tables of *warehouse* by name.

    A name has one path for each stream or topology that writes such a table. With *topology* only its tables are
    returned.
    """
    # The topology may come from a query. A path or a pattern in its place must not match any folder.
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
    return InvalidArgument(f"{warehouse} has no Delta tables yet; choose another place with --home or --warehouse")


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
    """Returns the table of appended rows beside the table at *path*.

    The table at *path* may not show these rows yet. None: it keeps no current rows.
    """
    changes = path.with_name(f"{CHANGES_OF}{path.name}")
    return changes if is_table(changes) else None


@cache
def views() -> tuple[View, ...]:
    """Returns all views, each after those that it reads, by name."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(VIEWS.glob("*.sql"))}
    by_name = {name: _view(name, text) for name, text in texts.items()}
    reads: dict[str, list[str]] = {}
    for name, view in by_name.items():
        # Its own name among its words, that of a column for example, is no cycle.
        reads[name] = sorted(by_name.keys() & set(re.findall(r"\w+", view.select)) - {name})
    return tuple(by_name[name] for name in in_order(reads))


def named_in(text: str, names: Collection[str], views: Iterable[View]) -> list[str]:
    """Returns those of *names* that *text* uses, directly or by *views*.

    Tables come first, and each view after the views that it reads. *views* are in that order, too.
    """
    words, last_first = _words(text), []
    # Backwards: each view adds the words of its SELECT before the views that it may read are looked at.
    for view in reversed([*views]):
        if view.name.lower() in words:
            last_first.append(view.name)
            words |= _words(view.select)
    quoted = text.replace('""', '"').lower()  # a folder may have any name, and a query names it in quotes
    named = {name for name in names if name.lower() in (words if WORD.fullmatch(name) else quoted)}
    return [*sorted(named - {*last_first}), *reversed(last_first)]


def _words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def _view(name: str, text: str) -> View:
    """Returns the view *name* of a file with *text*.

    The text has comment lines with the meaning of a row, then the SELECT.
    """
    match = re.match(r"(-- .*\n)*", text)
    comment = match.group() if match else ""
    return View(name, comment.replace("-- ", "").replace("\n", " ").strip(), text.removeprefix(comment).strip())
