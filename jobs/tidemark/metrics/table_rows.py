"""Keeps rows of Delta tables between scrapes, and reads only new files.

Purpose: Prometheus scrapes every few seconds, and a scrape of an unchanged warehouse should read no table.
How it works: the files of a Delta table never change. So their rows are kept, and a file is read once, unless others
were removed. As long as the newest file of the log is the same, nothing is read but its name, inode and time. Rows that
no metric needs are not kept, and no rows of a table that was removed and made anew.
What it does not do: read facts that are still in a journal. Drivers write them to the tables within ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidemark.collecting import omit, within
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.tables.catalog import (
    BATCHES,
    BECAME,
    COMPLETENESS,
    HEARTBEATS,
    INCIDENTS,
    LATENCY_BUCKETS,
    OUTCOMES,
    SLA_RESULTS,
    TABLES,
    WATERMARKS,
    Table,
)
from tidemark.storage.delta.datasets import dataset_of
from tidemark.storage.delta.snapshots import files_between, snapshot_of
from tidemark.why.evidence.fact_tables import Opener
from tidemark.why.evidence.heartbeat_facts import BEAT_COLUMNS

KEPT = {
    BATCHES.name: "finished_at",
    LATENCY_BUCKETS.name: "finished_at",
    HEARTBEATS.name: "at",
    SLA_RESULTS.name: "checked_at",
}
"""Tables that need only rows of the last KEPT_FOR, by their instant."""
KEPT_FOR = timedelta(minutes=65)
"""Counters begin with an hour, and quantiles need five minutes before it."""
DROPPED_EVERY = timedelta(minutes=5)
"""Older rows are dropped together, because the others are copied then."""
NEWEST = {WATERMARKS.name: ("source", "partition"), COMPLETENESS.name: ("operator", "interval_start")}
"""Tables that need only the newest row of these columns."""
COLUMNS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        BATCHES.name: frozenset(
            {"topology", "sub_topology", "batch_id", "epoch", "decided_at", "started_at", "finished_at", "duration_ms"}
            | {"sources", "records_in", "read_traces"}
        ),
        OUTCOMES.name: frozenset({"sub_topology", "batch_id", "operator", *BECAME}),
        HEARTBEATS.name: frozenset({"topology", "sub_topology", *BEAT_COLUMNS}),
        INCIDENTS.name: frozenset({"topology", "incident", "change", "severity", "changed_at"}),
        LATENCY_BUCKETS.name: frozenset({"operator", "finished_at", "bucket", "n"}),
    }
)
"""Columns of wide tables that metrics need; of others all are read."""


class LogFile(NamedTuple):
    """A file of a Delta log.

    That of a table made anew is another one. `inode` is 0 in object stores, and `written_ns` is epoch ns.
    """

    name: str
    inode: int
    written_ns: int


NO_TABLE = LogFile("", 0, 0)


class _KeptTable(NamedTuple):
    """The needed *rows* of *files*, as of *version*."""

    version: LogFile
    files: frozenset[str]
    rows: pl.DataFrame


class TableRows:
    """Keeps the rows of tables that metrics need."""

    def __init__(self) -> None:
        self._kept: dict[Path, _KeptTable] = {}

    def snapshot(self) -> TableSnapshot:
        """Returns the tables as they are now."""
        return TableSnapshot(self._kept)


class TableSnapshot:
    """Reads the rows of tables that metrics need, each file once.

    A table is seen in one version, the newest when it is first asked for. *kept* has the rows of earlier ones.
    """

    def __init__(self, kept: dict[Path, _KeptTable]) -> None:
        self._kept, self.version = kept, cache(_version)

    def opener_of_kept(self, home: Path) -> Opener:
        """Returns the opener of kept rows of the stream in *home*."""
        return lambda table, name: self.rows(table, home / name).lazy()

    def rows(self, table: Table, path: Path) -> pl.DataFrame:
        """Returns the rows of *table* at *path* that metrics need.

        A table that is not there has none.
        """
        version = self.version(path)
        kept = self._kept.get(path)
        if kept is None or kept.version != version:
            kept = self._kept[path] = self._read(table, path, version, kept)
        return kept.rows

    def _read(self, table: Table, path: Path, version: LogFile, kept: _KeptTable | None) -> _KeptTable:
        none = _none(table.name)
        if version == NO_TABLE:
            return _KeptTable(version, frozenset(), none)
        if kept is not None and kept.version != _log_file(path, kept.version.name):
            kept = None  # the table was made anew
        files = _files(path, version, kept)
        if files is None:  # delta-rs has to read it
            files, rows = frozenset(), _as(none, pl.DataFrame(dataset_of(DeltaTable(str(path))).to_table()))
        else:
            # Rows of a removed file are in others, or nowhere any more.
            old = kept if kept is not None and kept.files <= files else _KeptTable(NO_TABLE, frozenset(), none)
            new = (_file(path / name, none) for name in sorted(files - old.files))
            # Otherwise the frame gets a part more with each scrape, and each of its operations takes longer.
            rows = pl.concat([old.rows, *new], rechunk=True)
        since_batch = self._first_batch(path) if table.name == OUTCOMES.name else None
        return _KeptTable(version, files, _needed(table, rows, since_batch))

    def _first_batch(self, path: Path) -> int:
        """Returns the first batch that is kept of the stream."""
        first = self.rows(BATCHES, path.with_name(BATCHES.name))["batch_id"].min()
        return first if isinstance(first, int) else 0


@cache
def _none(table: str) -> pl.DataFrame:
    """Returns the columns of *table* that metrics need, without rows."""
    whole = pl.DataFrame(arrow_schema(TABLES[table]).empty_table())
    return whole.select(within(whole.columns, COLUMNS[table])) if table in COLUMNS else whole


def _version(path: Path) -> LogFile:
    """Returns the newest file of a log, or NO_TABLE."""
    try:
        names = [file.name for file in (path / "_delta_log").iterdir() if file.suffix == ".json"]
    except OSError:
        return NO_TABLE
    return _log_file(path, max(names)) if names else NO_TABLE


def _log_file(path: Path, name: str) -> LogFile:
    """Returns the file *name* of the log of the table at *path*.

    NO_TABLE: it is gone.
    """
    try:
        status = (path / "_delta_log" / name).stat()
    except OSError:
        return NO_TABLE
    return LogFile(name, status.st_ino, status.st_mtime_ns)


def _files(path: Path, version: LogFile, kept: _KeptTable | None) -> frozenset[str] | None:
    """Returns the files at *version*; None: delta-rs has to read them."""
    # The log since its checkpoint may have a hundred commits. Of a known table only the last ones are read.
    later = files_between(path, kept.version.name, version.name) if kept is not None and kept.files else None
    if kept is not None and later is not None:
        return kept.files | later
    snapshot = snapshot_of(path)
    # These tables have no partition columns.
    return None if snapshot is None else frozenset(chain.from_iterable(snapshot.files.values()))


def _file(path: Path, none: pl.DataFrame) -> pl.DataFrame:
    # `read_table` would make a dataset of the one file first, which takes as long as to read it.
    with pq.ParquetFile(path) as file:
        rows = file.read(within(none.columns, file.schema_arrow.names), use_threads=False)
    # No rechunk: `_read` rechunks the whole frame.
    frame = pl.from_arrow(rows, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return _as(none, frame)


def _as(none: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the columns of *none*.

    A file that was written before a column was added lacks it.
    """
    if rows.schema == none.schema:
        return rows
    lacking = omit(none.schema, rows.columns)
    return rows.with_columns(pl.lit(None).cast(kind).alias(name) for name, kind in lacking.items()).select(
        pl.col(name).cast(kind) for name, kind in none.schema.items()
    )


def _needed(table: Table, rows: pl.DataFrame, since_batch: int | None) -> pl.DataFrame:
    if rows.is_empty():
        return rows
    if table.name in KEPT:
        at = rows[KEPT[table.name]]
        newest_at: Any = at.max()
        return rows if newest_at - at.min() <= KEPT_FOR + DROPPED_EVERY else rows.filter(at >= newest_at - KEPT_FOR)
    if table.name in NEWEST:
        newest = rows.lazy().sort("batch_id", maintain_order=True)
        return newest.unique(NEWEST[table.name], keep="last", maintain_order=True).collect()
    return rows if since_batch is None else rows.filter(pl.col("batch_id") >= since_batch)
