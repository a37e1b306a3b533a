"""Compares the data files of a Delta table with its log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable


def damaged_data_files(path: Path) -> Iterator[tuple[Path, str]]:
    """Yields the files of the table at *path* that are not as its newest version has them, and what is wrong.

    A file must have the size in the log, a readable footer, the columns of the table, and the number of rows in the
    log. Changed bytes among its rows are not found.
    """
    table = DeltaTable(str(path))
    columns = frozenset(pa.schema(table.schema().to_arrow()).names)
    actions = pl.DataFrame(table.get_add_actions(flatten=True))
    rows = actions["num_records"] if "num_records" in actions else [None] * actions.height
    for name, size, n in zip(actions["path"], actions["size_bytes"], rows, strict=True):
        # The log has names as URLs have them.
        file = path / name if (path / name).exists() else path / unquote(name)
        if found := _damage_of(file, size, n, columns):
            yield file, found


def _damage_of(file: Path, size: int, rows: int | None, columns: Collection[str]) -> str:
    try:
        found = file.stat().st_size
        if found != size:
            return f"it has {found:,} bytes, and {size:,} in the table's log"
        with file.open("rb") as content:
            footer = pq.read_metadata(content)
            schema = footer.schema.to_arrow_schema()
    except FileNotFoundError:
        return "it is missing"
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"its footer cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}"
    if others := [name for name in schema.names if name not in columns]:
        return f"it is another table's: it has the column {others[0]}"
    if rows is not None and footer.num_rows != rows:
        return f"it has {footer.num_rows:,} rows, and {rows:,} in the table's log"
    return ""
