"""Stamps warehouses and tables with the format of their content.

Purpose: an older version must not write into what a newer one has changed, and must name the remedy.
How it works: each table has its format, and the version that gave it this format, as properties. `tidemark.json` in the
warehouse has the newest format of all that was written there. It is written before anything else has that format.
Each is read where a table or a warehouse is opened for writing, and never for a batch. Queries do not read them:
columns are only added, so an older version can read newer tables.
Known limitation: versions before the first stamp do not look for stamps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from deltalake import DeltaTable

from tidemark.errors import TidemarkError, UnreadableFile
from tidemark.storage.location import replace

VERSION = "0.1.0"
"""The version in `pyproject.toml`.

Code in an archive has no other record of it.
"""
FORMAT = 1
"""The format that this version writes.

It is raised by a change after which a version with the format before must not write. docs/upgrades.md has a table of
all formats.
"""
UNSTAMPED = 0
"""The format of what versions without stamps wrote."""
TABLE_FORMAT, TABLE_VERSION = "tidemark.format", "tidemark.version"
"""Properties of a table: its format, and the version that gave it."""
STAMPED = {TABLE_FORMAT: str(FORMAT), TABLE_VERSION: VERSION}
"""These properties of a table that this version creates."""
WRITER = {"tidemark": VERSION}
"""Notes of each commit: the version that wrote it."""
FILE = "tidemark.json"
"""Name of the warehouse's stamp."""


# The name opens the reason in heartbeats, where the DAGs find it: it is never renamed.
class NewerFormat(TidemarkError):
    """Raised before a write where a newer version has written."""


@dataclass(frozen=True)
class Stamp:
    """A format, and the version that wrote it first; None: unknown."""

    format: int = UNSTAMPED
    tidemark: str | None = None

    def refuse_newer(self, place: Path) -> None:
        """Raises NewerFormat if *place*, which has this stamp, is too new."""
        if self.format > FORMAT:
            writer = "an unknown version" if self.tidemark is None else f"version {self.tidemark}"
            msg = (
                f"{place}: this is Tidemark {VERSION}, which writes formats up to {FORMAT}, but {writer} has written "
                f"format {self.format}; nothing was changed; install {writer} or a newer one (docs/upgrades.md)"
            )
            raise NewerFormat(msg)


def table_stamp(table: DeltaTable) -> Stamp:
    """Returns the stamp of an open *table*."""
    return stamp_in(table.metadata().configuration)


def stamp_in(properties: Mapping[str, str]) -> Stamp:
    """Returns the stamp among the *properties* of a table."""
    number = properties.get(TABLE_FORMAT) or str(UNSTAMPED)
    return Stamp(int(number), properties.get(TABLE_VERSION))


def warehouse_stamp(warehouse: Path) -> Stamp:
    """Returns the stamp of *warehouse*.

    Raises:
        UnreadableFile: the file of the stamp is damaged.
    """
    file = warehouse / FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Stamp(int(content["format"]), str(content["tidemark"]))
    except FileNotFoundError:
        return Stamp()
    except (IsADirectoryError, ValueError, KeyError, TypeError, RecursionError) as error:
        found = f"a stamp has the keys format and tidemark, got {error!r}"
        remedy = "restore it, or remove it if no newer version has written to the warehouse"
        raise UnreadableFile(file, found, remedy) from error


def refuse_newer(warehouse: Path) -> None:
    """Raises NewerFormat if a newer version has written to *warehouse*."""
    warehouse_stamp(warehouse).refuse_newer(warehouse)


def stamp_warehouse(warehouse: Path) -> None:
    """Stamps *warehouse* with FORMAT, unless it has this stamp.

    Raises:
        NewerFormat: a newer version has written to it.
    """
    seen = warehouse_stamp(warehouse)
    seen.refuse_newer(warehouse)
    if seen.format < FORMAT:
        warehouse.mkdir(parents=True, exist_ok=True)
        # Processes that do this at once write the same.
        replace(warehouse / FILE, json.dumps(asdict(Stamp(FORMAT, VERSION))) + "\n")
