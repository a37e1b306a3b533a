"""Opens Delta tables as Arrow datasets."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

from tidemark.storage.delta.snapshots import MOST_FILES


def dataset_of(table: DeltaTable) -> ds.Dataset:
    """Returns the rows of *table* as an unread dataset."""
    place = urlsplit(table.table_uri)
    if place.scheme != "file":
        return table.to_pyarrow_dataset()
    folder = unquote(place.path)
    # Arrow reads local files itself. In the file system of delta-rs its threads need the interpreter lock, which a
    # thread of DuckDB may hold while it waits for them: a deadlock. For an object store there is no other way.
    filesystem = fs.SubTreeFileSystem(folder, fs.LocalFileSystem())
    files = _few_files(table, place.path)
    if files is None:
        return table.to_pyarrow_dataset(filesystem=filesystem)
    form = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
    fragments = [form.make_fragment(file, filesystem=filesystem) for file in files]
    return ds.FileSystemDataset(fragments, pa.schema(table.schema().to_arrow()), form, filesystem)


def file_names(table: DeltaTable) -> set[str]:
    """Returns the names of the data files of *table*, without their folders."""
    return {PurePosixPath(uri).name for uri in table.file_uris()}


def _few_files(table: DeltaTable, folder: str) -> list[str] | None:
    """Returns the files of *table*, relative to its *folder*.

    None: there are more than MOST_FILES, or their names are not all that a reader needs.
    """
    # For each file delta-rs makes an expression of the bounds in its log: slower than opening a few files.
    if table.protocol().min_reader_version > 1 or table.metadata().partition_columns:
        return None
    inside = folder.rstrip("/") + "/"
    files = [uri.removeprefix(inside) for uri in table.file_uris()]
    return None if len(files) > MOST_FILES or any({"/", "%"} & {*file} for file in files) else files
