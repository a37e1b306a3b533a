"""Opens Delta tables as Arrow datasets."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

from tidemark.storage.delta.snapshots import MOST_FILES

_STATS_MS = timedelta(milliseconds=1)


def dataset_of(table: DeltaTable, bounds: Collection[str] = ()) -> ds.Dataset:
    """Returns the rows of *table* as an unread dataset.

    Conditions on the columns *bounds* leave out files, by the bounds in the log. None named: those on all columns do.
    """
    place = urlsplit(table.table_uri)
    if place.scheme != "file":
        return table.to_pyarrow_dataset()
    folder = unquote(place.path)
    # Arrow reads local files itself. In the file system of delta-rs its threads need the interpreter lock, which a
    # thread of DuckDB may hold while it waits for them: a deadlock. For an object store there is no other way.
    filesystem = fs.SubTreeFileSystem(folder, fs.LocalFileSystem())
    files = _plain_files(table, place.path)
    if files is None or (len(files) > MOST_FILES and not bounds):
        return table.to_pyarrow_dataset(filesystem=filesystem)
    within = _bounds_of(table, bounds) if len(files) > MOST_FILES else {}
    form = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
    fragments = [
        form.make_fragment(file, filesystem=filesystem, partition_expression=within.get(file)) for file in files
    ]
    return ds.FileSystemDataset(fragments, pa.schema(table.schema().to_arrow()), form, filesystem)


def file_names(table: DeltaTable) -> set[str]:
    """Returns the names of the data files of *table*, without their folders."""
    return {PurePosixPath(uri).name for uri in table.file_uris()}


def _bounds_of(table: DeltaTable, columns: Collection[str]) -> dict[str, ds.Expression]:
    """Returns the condition that all rows of a file fulfil, by file.

    Of *columns*, those without nulls in the file.
    """
    # delta-rs makes such conditions of all columns: much slower in a table of hundreds of files.
    within: dict[str, ds.Expression] = {}
    for action in pl.DataFrame(table.get_add_actions(flatten=True)).iter_rows(named=True):
        bounded = [column for column in columns if action.get(f"null_count.{column}") == 0]
        for column in bounded:
            low, high = action.get(f"min.{column}"), action.get(f"max.{column}")
            if low is None or high is None:
                continue
            if isinstance(high, datetime):
                high += _STATS_MS  # Spark cuts instants in statistics to ms
            bound = (ds.field(column) >= low) & (ds.field(column) <= high)
            within[action["path"]] = bound if action["path"] not in within else within[action["path"]] & bound
    return within


def _plain_files(table: DeltaTable, folder: str) -> list[str] | None:
    """Returns the files of *table*, relative to its *folder*.

    None: their names are not all that a reader needs.
    """
    # For each file delta-rs makes an expression of the bounds in its log: slower than opening a few files.
    if table.protocol().min_reader_version > 1 or table.metadata().partition_columns:
        return None
    inside = folder.rstrip("/") + "/"
    files = [uri.removeprefix(inside) for uri in table.file_uris()]
    return None if any({"/", "%"} & {*file} for file in files) else files
