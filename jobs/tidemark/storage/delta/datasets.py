"""Opens Delta tables as Arrow datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache, reduce
from operator import and_
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import polars as pl
import polars.selectors as cs
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.schema import PrimitiveType

from tidemark.storage.delta.snapshots import MOST_FILES, Snapshot, is_below, snapshot_of
from tidemark.storage.location import path_of_url

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyarrow import fs

BOUNDS = (
    *("batch_id", "finished_at", "decided_at", "beat_at", "window_end", "interval_start", "checked_at"),
    *("timestamp", "offset", "source_offset"),
)
"""Columns of instants or whole numbers on which queries have conditions: their bounds in the log leave files out."""
READ = frozenset({"timestampNtz"})
"""Features of tables that a reader may ignore: the rows of a table are still those in its files."""
TEXT = PrimitiveType("string")
_STATS_MS = timedelta(milliseconds=1)
_AS_DECLARED = pl.ScanCastOptions(
    integer_cast="upcast",
    float_cast="upcast",
    datetime_cast=("nanosecond-downcast", "convert-timezone"),
    missing_struct_fields="insert",
    extra_struct_fields="ignore",
    categorical_to_string="allow",
)
"""How types of files may differ from those of the table: a file is narrower if its column was widened since."""


def open_to_read(path: Path, snapshot: Snapshot | None = None) -> DeltaTable | Snapshot:
    """Opens the newest version of the table at *path* to read it; *snapshot* is that version, if the caller has it.

    Raises:
        TableNotFoundError: there is no table.
    """
    # delta-rs needs ten times as long for a small table.
    snapshot = snapshot or snapshot_of(path)
    if snapshot is None or len(snapshot.data_files) > MOST_FILES or snapshot.partitioned_by:
        return DeltaTable(str(path))
    return snapshot


def frame_of(table: DeltaTable | Snapshot) -> pl.LazyFrame:
    """Returns the rows of *table*, as `open_to_read` has opened it, as an unread frame."""
    # Polars reads a few files in a quarter of the time that it takes through Arrow's datasets. Of many files, datasets
    # have the bounds by which most are left out.
    if not isinstance(table, Snapshot):
        return pl.scan_pyarrow_dataset(dataset_of(table))
    folder = table.path.absolute()
    return rows_of_files([f"{folder}/{name}" for name in table.data_files], _columns_of(table.schema))


def rows_of_files(files: list[str], columns: pl.Schema) -> pl.LazyFrame:
    """Returns the rows of data *files* of a local table as an unread frame with the *columns* that it declares.

    Other programs that rewrite files may change their types, and a file may be older than a column.
    """
    if not files:
        return pl.LazyFrame(schema=columns)
    return pl.scan_parquet(
        files,
        schema=columns,
        glob=False,
        hive_partitioning=False,
        missing_columns="insert",
        extra_columns="ignore",
        cast_options=_AS_DECLARED,
    )


@lru_cache(maxsize=256)
def _columns_of(schema: str) -> pl.Schema:
    """Returns polars' types of the columns in a *schema* of Delta (JSON)."""
    return pl.Schema(Schema.from_json(schema))


def schema_of(table: DeltaTable | Snapshot) -> Schema:
    """Returns the columns of *table*."""
    return Schema.from_json(table.schema) if isinstance(table, Snapshot) else table.schema()


def properties_of(table: DeltaTable | Snapshot) -> Mapping[str, str]:
    """Returns the properties of *table*."""
    return table.properties if isinstance(table, Snapshot) else table.metadata().configuration


def local_folder(table: DeltaTable) -> Path | None:
    """Returns the folder of *table*, or None if it is in an object store."""
    return path_of_url(table.table_uri) if urlsplit(table.table_uri).scheme == "file" else None


def dataset_of(table: DeltaTable | Snapshot) -> ds.Dataset:
    """Returns the rows of *table*, as `open_to_read` has opened it, as an unread dataset."""
    from pyarrow import fs

    if isinstance(table, Snapshot):
        folder = fs.SubTreeFileSystem(str(table.path.absolute()), fs.LocalFileSystem())
        return _dataset(table.data_files, schema_of(table), folder, {})
    local = local_folder(table)
    if local is None:
        return table.to_pyarrow_dataset()
    # Arrow reads local files itself. In the file system of delta-rs its threads need the interpreter lock, which a
    # thread of DuckDB may hold while it waits for them: a deadlock. For an object store there is no other way.
    filesystem = fs.SubTreeFileSystem(str(local), fs.LocalFileSystem())
    files = _plain_files(table, urlsplit(table.table_uri).path)
    if files is None:
        return table.to_pyarrow_dataset(filesystem=filesystem)
    is_needed = len(files) > MOST_FILES or table.metadata().partition_columns
    within = _conditions_of(table) if is_needed else {}
    return _dataset(files, schema_of(table), filesystem, within)


def _dataset(
    files: Iterable[str], schema: Schema, folder: fs.FileSystem, within: Mapping[str, ds.Expression]
) -> ds.Dataset:
    """Returns the rows of *files* in *folder* as an unread dataset.

    *within* has, by file, a condition that all of its rows fulfil.
    """
    # Most processes need no dataset, and the import takes as long as reading ten tables.
    import pyarrow.dataset as ds

    form = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
    fragments = [form.make_fragment(file, filesystem=folder, partition_expression=within.get(file)) for file in files]
    return ds.FileSystemDataset(fragments, pa.schema(schema.to_arrow()), form, folder)


def has_plain_rows(table: DeltaTable) -> bool:
    """Returns True if `dataset_of` reads the same rows of *table* as Spark.

    With other features a file may have columns under other names, deleted rows, or values of an earlier type. Files of
    a shallow clone are in the folder of another table.
    """
    protocol = table.protocol()
    # Reader version 2 is that of column mapping; version 3 names the features.
    named = protocol.min_reader_version == 3 and {*(protocol.reader_features or ())} <= READ
    return (protocol.min_reader_version == 1 or named) and all(
        map(is_below, pl.DataFrame(table.get_add_actions())["path"])
    )


def file_names(table: DeltaTable) -> set[str]:
    """Returns the names of the data files of *table*, without their folders."""
    return {PurePosixPath(uri).name for uri in table.file_uris()}


def _conditions_of(table: DeltaTable) -> dict[str, ds.Expression]:
    """Returns, by file, a condition that all of its rows fulfil.

    The condition has the values of partition columns, which the file itself does not have, and the bounds of those
    columns of BOUNDS in which the file has no nulls.
    """
    import pyarrow.dataset as ds

    # delta-rs makes such conditions of all columns: 0.4 s of CPU for 366 files, and ten times that of these.
    actions = pl.DataFrame(table.get_add_actions(flatten=True))
    parts = table.metadata().partition_columns
    bounds = [column for column in BOUNDS if {*_bounds([column])} <= {*actions.columns}]
    conditions: dict[str, ds.Expression] = {}
    for action in actions.select("path", cs.starts_with("partition."), *_bounds(bounds)).iter_rows(named=True):
        values = {part: action[f"partition.{part}"] for part in parts}
        expressions = [
            ds.field(part).is_null() if value is None else ds.field(part) == value for part, value in values.items()
        ]
        for column in bounds:
            low, high = action[f"min.{column}"], action[f"max.{column}"]
            is_bounded = isinstance(low, int | datetime) and isinstance(high, int | datetime)
            if not is_bounded or action[f"null_count.{column}"] != 0:
                continue
            if isinstance(high, datetime):
                try:
                    high += _STATS_MS  # Spark cuts instants in statistics to ms
                except OverflowError:  # its last millisecond is that of the year 9999
                    continue
            expressions.append((ds.field(column) >= low) & (ds.field(column) <= high))
        if expressions:
            conditions[action["path"]] = reduce(and_, expressions)
    return conditions


def _bounds(columns: list[str]) -> list[str]:
    return [f"{word}.{column}" for column in columns for word in ("min", "max", "null_count")]


def _plain_files(table: DeltaTable, folder: str) -> list[str] | None:
    """Returns the files of *table*, relative to its *folder*, or None if a reader needs more than their names."""
    # For each file delta-rs makes an expression of the bounds in its log: slower than opening a few files.
    parts = table.metadata().partition_columns
    are_texts = all(field.type == TEXT for field in table.schema().fields if field.name in parts)
    if table.protocol().min_reader_version > 1 or not are_texts:
        return None
    inside = folder.rstrip("/") + "/"
    files = [uri.removeprefix(inside) for uri in table.file_uris()]
    encoded = {"%"} if parts else {"/", "%"}
    return None if any(encoded & {*file} for file in files) else files
