"""Compares the data files of a Delta table with its log, and names the damaged file where reading fails.

Purpose: a damaged table makes its readers raise many kinds of errors, and few of these name a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.errors import UnreadableFile
from tidemark.storage.delta.snapshots import damage_of_log
from tidemark.storage.object_path import ObjectPath

RESTORE_TABLE = "restore its table from a backup; of a stream's table `tidemark doctor` says what belongs to it"


@contextmanager
def naming_damage(tables: Callable[[], Iterable[Path]]) -> Iterator[None]:
    """Raises UnreadableFile in place of an error of the block if one of the *tables* that it may read is damaged."""
    try:
        yield
    except UnreadableFile:
        raise
    except Exception as error:
        for damage in map(damage_of_table, tables()):
            if damage is not None:
                raise damage from error
        raise


def damage_of_table(path: Path) -> UnreadableFile | None:
    """Returns what is damaged in the log of the local table at *path* or in its data files, or None if nothing is.

    Data files are compared with the log by their sizes.
    """
    if isinstance(path, ObjectPath) or not (path / "_delta_log").is_dir():
        return None
    if (damage := damage_of_log(path)) is not None:
        return UnreadableFile(damage.file, damage.found, RESTORE_TABLE)
    try:
        file, found = next(damaged_data_files(path, footers=False), (None, ""))
    # Only delta-rs reads some logs, and changed bytes may make it raise anything.
    except (DeltaError, OSError, ValueError) as error:
        file, found = path / "_delta_log", f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None if file is None else UnreadableFile(file, found, RESTORE_TABLE)


def damaged_data_files(path: Path, *, footers: bool = True) -> Iterator[tuple[Path, str]]:
    """Yields the damaged data files of the newest version of the table at *path*, and what is wrong with each.

    A file must have the size that the log says. With *footers* it must also have a readable footer, columns of the
    table, and the number of rows that the log says. Changed bytes among its rows are not found.
    """
    table = DeltaTable(str(path))
    columns = frozenset(pa.schema(table.schema().to_arrow()).names)
    actions = pl.DataFrame(table.get_add_actions(flatten=True))
    rows = actions["num_records"] if "num_records" in actions else [None] * actions.height
    for name, size, n in zip(actions["path"], actions["size_bytes"], rows, strict=True):
        # The log has names as URLs have them.
        file = path / name if (path / name).exists() else path / unquote(name)
        if found := _damage_of_size(file, size) or (footers and _damage_of_footer(file, n, columns)):
            yield file, found


def _damage_of_size(file: Path, size: int) -> str:
    try:
        found = file.stat().st_size
    except FileNotFoundError:
        return "it is missing"
    return "" if found == size else f"it has {found:,} bytes, and {size:,} in the table's log"


def _damage_of_footer(file: Path, rows: int | None, columns: Collection[str]) -> str:
    try:
        with file.open("rb") as content:
            footer = pq.read_metadata(content)
            schema = footer.schema.to_arrow_schema()
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"its footer cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}"
    if others := [name for name in schema.names if name not in columns]:
        return f"it is another table's: it has the column {others[0]}"
    if rows is not None and footer.num_rows != rows:
        return f"it has {footer.num_rows:,} rows, and {rows:,} in the table's log"
    return ""
