"""Stamps warehouses and tables with the format of their content.

Purpose: a version must not write into what a version with another format has written, and must name the remedy.
How it works: each table has its format, and the version that created it, as properties. `tidemark.json` in the
warehouse has the format of all that was written there, and is written before anything else. Each is read where a table
or a warehouse is opened for writing, and never for a batch. Commands that read ask whether the warehouse is older.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.errors import TidemarkError, UnreadableFile
from tidemark.storage.location import replace

if TYPE_CHECKING:
    from deltalake import DeltaTable  # commands ask for a stamp without it

VERSION = "0.1.0"
"""The version in `pyproject.toml`. Code in an archive has no other record of it."""
FORMAT = 3
"""The format that this version writes. A change raises it if versions before the change must not write any more."""
TABLE_FORMAT, TABLE_VERSION = "tidemark.format", "tidemark.version"
"""Properties of a table: its format, and the version that created it."""
STAMPED = {TABLE_FORMAT: str(FORMAT), TABLE_VERSION: VERSION}
"""The values of these properties in tables that this version creates."""
WRITER = {"tidemark": VERSION}
"""Notes of each commit: the version that wrote it."""
FILE = "tidemark.json"
"""Name of the warehouse's stamp."""


# The name opens the reason in heartbeats, where the DAGs find it: it is never renamed.
class OtherFormat(TidemarkError):
    """Raised before a write where a version with another format has written."""


@dataclass(frozen=True)
class Stamp:
    """A format, and the version that wrote it first, or None if a table does not name the version."""

    format: int
    tidemark: str | None

    def refuse_older(self, path: Path) -> None:
        """Raises OtherFormat if *path*, which has this stamp, has a format before FORMAT, which no version reads."""
        if self.format < FORMAT:
            msg = (
                f"{path} has format {self.format}, but Tidemark {VERSION} reads and writes format {FORMAT} alone; "
                "nothing was changed; choose an empty folder with --home or --warehouse, and let the streams start "
                "anew there (docs/upgrades.md)"
            )
            raise OtherFormat(msg)

    def refuse_other(self, path: Path) -> None:
        """Raises OtherFormat if *path*, which has this stamp, has another format than FORMAT."""
        self.refuse_older(path)
        if self.format > FORMAT:
            writer = "an unknown version" if self.tidemark is None else f"version {self.tidemark}"
            msg = (
                f"{path}: {writer} of Tidemark has written format {self.format}, but this is version {VERSION}, which "
                f"writes format {FORMAT}; nothing was changed; install {writer} (docs/upgrades.md)"
            )
            raise OtherFormat(msg)


def table_stamp(table: DeltaTable) -> Stamp | None:
    """Returns the stamp of an open *table*, or None if it has none."""
    properties = table.metadata().configuration
    number = properties.get(TABLE_FORMAT)
    return None if number is None else Stamp(int(number), properties.get(TABLE_VERSION))


def warehouse_stamp(warehouse: Path) -> Stamp | None:
    """Returns the stamp of *warehouse*, or None if nothing was written to it yet.

    Raises:
        UnreadableFile: the file of the stamp is damaged.
    """
    file = warehouse / FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Stamp(int(content["format"]), str(content["tidemark"]))
    except FileNotFoundError:
        return None
    except (IsADirectoryError, ValueError, KeyError, TypeError, RecursionError) as error:
        found = f"a stamp has the keys format and tidemark, got {error!r}"
        remedy = "restore it, or remove it if no other version has written to the warehouse"
        raise UnreadableFile(file, found, remedy) from error


def refuse_other(warehouse: Path) -> None:
    """Raises OtherFormat if *warehouse* has another format."""
    seen = warehouse_stamp(warehouse)
    if seen is not None:
        seen.refuse_other(warehouse)


def refuse_older(warehouse: Path) -> None:
    """Raises OtherFormat if *warehouse* has a format before FORMAT, which readers do not know either."""
    # A damaged stamp stops drivers, whose reason has it, and no reader.
    with suppress(UnreadableFile):
        seen = warehouse_stamp(warehouse)
        if seen is not None:
            seen.refuse_older(warehouse)


def stamp_warehouse(warehouse: Path) -> None:
    """Stamps *warehouse* with FORMAT, unless it has this stamp.

    Raises:
        OtherFormat: a version with another format has written to it.
    """
    refuse_other(warehouse)
    if warehouse_stamp(warehouse) is None:
        warehouse.mkdir(parents=True, exist_ok=True)
        # Processes that do this at once write the same.
        replace(warehouse / FILE, json.dumps(asdict(Stamp(FORMAT, VERSION))) + "\n")
