"""Keeps rows of Delta tables between scrapes of metrics, and reads only new files.

Prometheus scrapes every few seconds, and a scrape of an unchanged warehouse should read no table. The files of a Delta
table never change. So each is read once, and its rows are kept, until a file of the table is removed. While the newest
file of a log is the same, only its name, inode and time are looked at. Rows that no metric needs are dropped, and so
are the rows of a table that was removed and made anew.

Some tables are written once a minute (COMING). Their rows are also read from the journal, whenever `batches` has a new
version. Drivers write the other tables within ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl
from deltalake import DeltaTable

from tidemark.facts.fact_tables import Opener
from tidemark.facts.heartbeat_facts import BEAT_COLUMNS
from tidemark.facts.read_facts import PLACE
from tidemark.facts.stream_facts import MARK_COLUMNS
from tidemark.kernels.columns.buckets import in_rows
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.tables.catalog import (
    BATCHES,
    BECAME,
    COMPLETENESS,
    HEARTBEATS,
    INCIDENTS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    SLA_RESULTS,
    TABLE_AGES,
    TABLES,
    Table,
)
from tidemark.selection import omit, within
from tidemark.storage.delta.datasets import dataset_of, rows_of_files
from tidemark.storage.delta.snapshots import NO_TABLE, LogFile, ReadLog, log_file, read_log
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.unflushed import ComingRows

KEPT = {
    BATCHES.name: "finished_at",
    LATENCY_MINUTES.name: "finished_at",
    HEARTBEATS.name: "beat_at",
    SLA_RESULTS.name: "checked_at",
}
"""Tables of which only the rows of the last KEPT_FOR are needed, with the column of their instant."""
KEPT_FOR = timedelta(minutes=65)
"""Counters start with the last hour, and quantiles need the five minutes before it."""
DROPPED_EVERY = timedelta(minutes=5)
"""Dropping rows copies the others, so older rows are dropped only when they span this much time."""
NEWEST = {
    COMPLETENESS.name: (("operator", "interval_start"), ("batch_id",)),
    TABLE_AGES.name: (("table",), ("read_at", "version")),
}
"""Tables of which only the newest row for each value of some columns is needed, with the columns of their order."""
COMING = frozenset({PARTITION_BATCHES.name})
"""Tables whose rows are also read from the journal.

All rows about batches of the last AHEAD are needed. Of earlier ones, each partition needs the newest row, and the
newest with a `latest_offset`.
"""
AHEAD = timedelta(minutes=5)
"""Our clock may be this much behind the finish clocks of drivers; a batch counts once our clock has reached it."""
COLUMNS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        BATCHES.name: frozenset(
            {"topology", "sub_topology", "batch_id", "epoch", "decided_at", "started_at", "finished_at", "duration_ms"}
            | {"records_in", "read_traces"}
        ),
        OPERATOR_BATCHES.name: frozenset({"sub_topology", "batch_id", "operator", *BECAME}),
        HEARTBEATS.name: frozenset({"topology", "sub_topology", *BEAT_COLUMNS}),
        INCIDENTS.name: frozenset({"topology", "incident", "change", "severity", "changed_at"}),
        LATENCY_MINUTES.name: frozenset({"operator", "finished_at", "buckets"}),
        PARTITION_BATCHES.name: frozenset(
            {"topology", "sub_topology", "batch_id", *PLACE, *MARK_COLUMNS, "until_offset", "latest_offset"}
        ),
    }
)
"""The columns of wide tables that metrics need; of other tables all columns are read."""


Version = LogFile
"""The version of a table: the newest file of its log."""


class _KeptTable(NamedTuple):
    """What is kept of a table: the needed `rows` of its `files`.

    The first of `versions` is the version of the table. A table of COMING has a second one: the version of `batches`
    with which `coming` read the rows of the journal. `files` is None if delta-rs had to read the table.
    """

    versions: tuple[LogFile, ...]
    files: Set[str] | None
    rows: pl.DataFrame
    coming: ComingRows | None = None


class TableRows:
    """Keeps the rows of tables that metrics need."""

    def __init__(self) -> None:
        self._kept, self._logs = dict[Path, _KeptTable](), dict[Path, ReadLog]()

    def snapshot(self) -> TableSnapshot:
        """Returns the tables as they are now."""
        return TableSnapshot(self._kept, self._logs)


class TableSnapshot:
    """The tables that metrics need, each in the newest version at the time of the first question.

    *kept* has the rows of earlier versions, and *logs* what was read of the logs. Both are updated.
    """

    def __init__(self, kept: dict[Path, _KeptTable], logs: dict[Path, ReadLog]) -> None:
        self._kept, self._logs, self._log = kept, logs, cache(self._read_log)

    def version(self, path: Path) -> Version:
        """Returns the version of the table at *path*."""
        return self._log(path).newest

    def _read_log(self, path: Path) -> ReadLog:
        self._logs[path] = read_log(path, self._logs.get(path))
        return self._logs[path]

    def opener_of_kept(self, home: Path) -> Opener:
        """Returns an opener of the tables of the stream in *home* that reads kept rows."""
        return lambda table, name: self.rows(table, home / name).lazy()

    def rows(self, table: Table, path: Path) -> pl.DataFrame:
        """Returns the rows of *table* at *path* that metrics need.

        A missing table has none. `latency_minutes` comes with a row for each bucket.
        """
        of_batches = [self.version(path.with_name(BATCHES.name))] if table.name in COMING else []
        versions = (self.version(path), *of_batches)
        kept = self._kept.get(path)
        if kept is None or kept.versions != versions:
            kept = self._kept[path] = self._read(table, path, versions, kept)
        return kept.rows

    def _read(self, table: Table, path: Path, versions: tuple[LogFile, ...], kept: _KeptTable | None) -> _KeptTable:
        none, version = _none(table.name), versions[0]
        # In an object store each journal entry costs a request, so only the tables are read there.
        has_coming = table.name in COMING and not isinstance(path, ObjectPath)
        coming = ComingRows(path.parent, table.name) if has_coming else None
        no_files = frozenset[str]()
        nothing = _KeptTable(versions, no_files, _flat(none), coming)
        if version == NO_TABLE:
            return nothing
        if kept is not None and kept.versions[0] != log_file(path, kept.versions[0].name):
            kept = None  # the table was made anew
        snapshot = self._log(path).snapshot
        # These tables have no partition columns.
        files = None if snapshot is None else snapshot.data_files.keys()
        known = None if kept is None else kept.files
        # If a file was removed, its rows are in other files or gone, and everything is read anew.
        is_longer = known is not None and files is not None and known <= files
        old = kept if kept is not None and is_longer else nothing
        rows_of_journal = old.coming.take() if old.coming else None
        new = [] if rows_of_journal is None else [_as(none, pl.DataFrame(rows_of_journal))]
        if files is None:  # delta-rs has to read it
            stored = _as(none, pl.DataFrame(dataset_of(DeltaTable(str(path))).to_table()))
        else:
            names = sorted(files - (old.files or no_files))
            stored = rows_of_files([f"{path}/{name}" for name in names], none.schema).collect()
        new.append(_flat(stored))
        # Without `rechunk` the frame gets another chunk with each scrape, and all operations on it get slower.
        rows = pl.concat([old.rows, *new], rechunk=True)
        batches = partial(self.rows, BATCHES, path.with_name(BATCHES.name))
        return _KeptTable(versions, files, _needed(table, rows, batches), old.coming)


@cache
def _none(table: str) -> pl.DataFrame:
    """Returns the columns of *table* that metrics need, without rows."""
    whole = pl.DataFrame(schema=pl.Schema(arrow_schema(TABLES[table])))
    return whole.select(within(whole.columns, COLUMNS[table])) if table in COLUMNS else whole


def _as(none: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the columns of *none*, and with nulls for columns that were added after they were written."""
    if rows.schema == none.schema:
        return rows
    lacking = omit(none.schema, rows.columns)
    return rows.with_columns(pl.lit(None).cast(kind).alias(name) for name, kind in lacking.items()).select(
        pl.col(name).cast(kind) for name, kind in none.schema.items()
    )


def _flat(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with a row for each bucket, if they have buckets."""
    # A file is read once, but its buckets are counted whenever the table has grown: so they are unpacked here.
    return in_rows(rows.lazy()).collect() if "buckets" in rows.columns else rows


def _needed(table: Table, rows: pl.DataFrame, batches: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Returns those of *rows* that metrics still need; *batches* returns the kept rows of `batches` of that stream."""
    newest_at: Any
    if rows.is_empty():
        return rows
    if table.name in KEPT:
        at = rows[KEPT[table.name]]
        newest_at = at.max()
        return rows if newest_at - at.min() <= KEPT_FOR + DROPPED_EVERY else rows.filter(at >= newest_at - KEPT_FOR)
    if table.name in NEWEST:
        columns, order = NEWEST[table.name]
        newest = rows.lazy().sort(order, maintain_order=True)
        return newest.unique(columns, keep="last", maintain_order=True).collect()
    if table.name in COMING:
        number, finished_at = batches()["batch_id"], batches()["finished_at"]
        newest_at = finished_at.max()
        before = () if newest_at is None else number.filter(finished_at <= newest_at - AHEAD)
        return _newest_of_partitions(rows, until_batch=max(before, default=-1))
    return (
        rows.filter(pl.col("batch_id") >= min(batches()["batch_id"], default=0)) if table == OPERATOR_BATCHES else rows
    )


def _newest_of_partitions(rows: pl.DataFrame, *, until_batch: int) -> pl.DataFrame:
    """Returns all *rows* after the batch *until_batch*, and before that the newest of each partition.

    If the newest row has no `latest_offset`, the newest with one is kept, too.
    """
    is_later, was_asked = pl.col("batch_id") > until_batch, pl.col("latest_offset").is_not_null()
    marked = rows.lazy().with_columns(later_batch=pl.when(is_later).then("batch_id"), was_asked=was_asked)
    columns = [*PLACE, "was_asked", "later_batch"]
    newest = marked.sort("batch_id", maintain_order=True).unique(columns, keep="last", maintain_order=True)
    return newest.drop("was_asked", "later_batch").collect()
