"""Keeps rows of Delta tables between scrapes, and reads only new files.

Purpose: Prometheus scrapes every few seconds, and a scrape of an unchanged warehouse should read no table.
How it works: the files of a Delta table never change. So their rows are kept, and a file is read once, unless others
were removed. As long as the newest file of the log is the same, nothing is read but its name, inode and time. Rows that
no metric needs are not kept, and no rows of a table that was removed and made anew.
Of the facts that are still in a journal it reads those of tables that drivers write once a minute (COMING), whenever
`batches` is new. Drivers write the others within ten seconds.
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

from tidemark.collecting import omit, within
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
    TABLES,
    Table,
)
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
"""Tables that need only rows of the last KEPT_FOR, by their instant."""
KEPT_FOR = timedelta(minutes=65)
"""Counters begin with an hour, and quantiles need five minutes before it."""
DROPPED_EVERY = timedelta(minutes=5)
"""Older rows are dropped together, because the others are copied then."""
NEWEST = {COMPLETENESS.name: ("operator", "interval_start")}
"""Tables that need only the newest row of these columns."""
COMING = frozenset({PARTITION_BATCHES.name})
"""Tables whose rows are read from the journal, too.

They need all rows of the batches of the last AHEAD, and of each partition the newest earlier one, also with a
`latest_offset`.
"""
AHEAD = timedelta(minutes=5)
"""A batch counts when its driver's finish clock is no later than ours, which may be behind by so much."""
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
"""Columns of wide tables that metrics need; of others all are read."""


Version = LogFile
"""The version of a table: the newest file of its log."""


class _KeptTable(NamedTuple):
    """The needed *rows* of *files*, as of the first of *versions*.

    *files* is None if delta-rs had to read them. The second version is that of `batches`, with which *coming* reads the
    rows of a journal.
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
    """Reads the rows of tables that metrics need, each file once.

    A table is seen in one version, the newest when it is first asked for. *kept* has the rows of earlier ones, and
    *logs* what was read of logs.
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
        """Returns the opener of kept rows of the stream in *home*."""
        return lambda table, name: self.rows(table, home / name).lazy()

    def rows(self, table: Table, path: Path) -> pl.DataFrame:
        """Returns the rows of *table* at *path* that metrics need.

        A table that is not there has none. Of `latency_minutes` there is a row for each bucket.
        """
        of_batches = [self.version(path.with_name(BATCHES.name))] if table.name in COMING else []
        versions = (self.version(path), *of_batches)
        kept = self._kept.get(path)
        if kept is None or kept.versions != versions:
            kept = self._kept[path] = self._read(table, path, versions, kept)
        return kept.rows

    def _read(self, table: Table, path: Path, versions: tuple[LogFile, ...], kept: _KeptTable | None) -> _KeptTable:
        none, version = _none(table.name), versions[0]
        # In an object store drivers write all facts once a minute, and each entry would be a request.
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
        # Rows of a removed file are in others, or nowhere any more.
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
        # Otherwise the frame gets a part more with each scrape, and each of its operations takes longer.
        rows = pl.concat([old.rows, *new], rechunk=True)
        batches = partial(self.rows, BATCHES, path.with_name(BATCHES.name))
        return _KeptTable(versions, files, _needed(table, rows, batches), old.coming)


@cache
def _none(table: str) -> pl.DataFrame:
    """Returns the columns of *table* that metrics need, without rows."""
    whole = pl.DataFrame(schema=pl.Schema(arrow_schema(TABLES[table])))
    return whole.select(within(whole.columns, COLUMNS[table])) if table in COLUMNS else whole


def _as(none: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the columns of *none*.

    Those that were written before a column was added lack it.
    """
    if rows.schema == none.schema:
        return rows
    lacking = omit(none.schema, rows.columns)
    return rows.with_columns(pl.lit(None).cast(kind).alias(name) for name, kind in lacking.items()).select(
        pl.col(name).cast(kind) for name, kind in none.schema.items()
    )


def _flat(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with a row for each of their buckets, if they have any."""
    # A file is read once, but a metric counts its buckets again whenever the table has grown.
    return in_rows(rows.lazy()).collect() if "buckets" in rows.columns else rows


def _needed(table: Table, rows: pl.DataFrame, batches: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Returns those of *rows* that are needed beside the kept *batches* of the stream."""
    newest_at: Any
    if rows.is_empty():
        return rows
    if table.name in KEPT:
        at = rows[KEPT[table.name]]
        newest_at = at.max()
        return rows if newest_at - at.min() <= KEPT_FOR + DROPPED_EVERY else rows.filter(at >= newest_at - KEPT_FOR)
    if table.name in NEWEST:
        newest = rows.lazy().sort("batch_id", maintain_order=True)
        return newest.unique(NEWEST[table.name], keep="last", maintain_order=True).collect()
    if table.name in COMING:
        number, finished_at = batches()["batch_id"], batches()["finished_at"]
        newest_at = finished_at.max()
        before = () if newest_at is None else number.filter(finished_at <= newest_at - AHEAD)
        return _newest_of_partitions(rows, until_batch=max(before, default=-1))
    return (
        rows.filter(pl.col("batch_id") >= min(batches()["batch_id"], default=0)) if table == OPERATOR_BATCHES else rows
    )


def _newest_of_partitions(rows: pl.DataFrame, *, until_batch: int) -> pl.DataFrame:
    """Returns the newest *rows* of each partition up to a batch, and all later ones."""
    is_later, was_asked = pl.col("batch_id") > until_batch, pl.col("latest_offset").is_not_null()
    marked = rows.lazy().with_columns(later_batch=pl.when(is_later).then("batch_id"), was_asked=was_asked)
    each = [*PLACE, "was_asked", "later_batch"]
    newest = marked.sort("batch_id", maintain_order=True).unique(each, keep="last", maintain_order=True)
    return newest.drop("was_asked", "later_batch").collect()
