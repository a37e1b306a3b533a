"""Delta tables as Arrow reads them."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs


def dataset_of(table: DeltaTable) -> ds.Dataset:
    """The rows of *table*, not read yet.

    Arrow reads files of this machine itself. Through the file system of delta-rs its threads need the interpreter, and
    wait for ever for a thread of DuckDB that has it and waits for them; of an object store there is no other way.
    """
    place = urlsplit(table.table_uri)
    if place.scheme != "file":
        return table.to_pyarrow_dataset()
    return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(unquote(place.path), fs.LocalFileSystem()))
