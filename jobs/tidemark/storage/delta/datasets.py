"""Opens Delta tables as Arrow datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from pyarrow import fs

from tidemark.storage.delta.snapshots import MOST_FILES, Snapshot, snapshot_of

_STATS_MS = timedelta(milliseconds=1)


def open_to_read(path: Path) -> DeltaTable | Snapshot:
    """Opens the table at *path* to read its newest version.

    Raises TableNotFoundError if there is none.
    """
    # delta-rs needs ten times as long for a small table.
    snapshot = snapshot_of(path)
    if snapshot is None or snapshot.file_count > MOST_FILES or snapshot.partitioned_by:
        return DeltaTable(str(path))
    return snapshot


def schema_of(table: DeltaTable | Snapshot) -> Schema:
    """Returns the columns of *table*."""
    return Schema.from_json(table.schema) if isinstance(table, Snapshot) else table.schema()


def properties_of(table: DeltaTable | Snapshot) -> Mapping[str, str]:
    """Returns the properties of *table*."""
    return table.properties if isinstance(table, Snapshot) else table.metadata().configuration


def dataset_of(table: DeltaTable | Snapshot, bounds: Collection[str] = ()) -> ds.Dataset:
    """Returns the rows of *table* as an unread dataset.

    Conditions on the columns *bounds* leave out files, by the bounds in the log. None named: those on all columns do. A
    snapshot is one of `open_to_read`.
    """
    if isinstance(table, Snapshot):
        folder = fs.SubTreeFileSystem(str(table.path.absolute()), fs.LocalFileSystem())
        return _dataset(chain.from_iterable(table.files.values()), schema_of(table), folder, {})
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
    return _dataset(files, schema_of(table), filesystem, within)


def _dataset(
    files: Iterable[str], schema: Schema, folder: fs.FileSystem, within: Mapping[str, ds.Expression]
) -> ds.Dataset:
    """Returns the rows of *files* in *folder* as an unread dataset.

    *within* has conditions that all rows of a file fulfil, by file.
    """
    form = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
    fragments = [form.make_fragment(file, filesystem=folder, partition_expression=within.get(file)) for file in files]
    return ds.FileSystemDataset(fragments, pa.schema(schema.to_arrow()), form, folder)


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
