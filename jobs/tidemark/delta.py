"""Writes a driver's tables through delta-rs; each commit carries its batch as Delta's transaction and happens once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from tidemark.clock import Clock
from tidemark.errors import InvalidArgument

SETTINGS = {
    "delta.enableDeletionVectors": "false",  # not every reader of the tables knows them
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
}


WRITTEN = WriterProperties(compression="ZSTD")


def create(path: Path, schema: pa.Schema, *, description: str | None = None) -> None:
    """An empty Delta table at *path* with *schema* and its comments; nothing when there is one."""
    DeltaTable.create(
        str(path), schema=schema, mode="ignore", description=description, configuration=SETTINGS
    )  # fmt: skip


def scan(path: Path) -> pl.LazyFrame:
    """The rows of the Delta table at *path*, not read yet; raises when there is no table."""
    # Not pl.scan_delta, which takes a folder with a blank in its name for one with %20.
    return pl.scan_pyarrow_dataset(DeltaTable(str(path)).to_pyarrow_dataset())


def read_before(path: Path, batch_id: int, columns: list[str]) -> pl.DataFrame:
    """The *columns* of the rows at *path* of batches before *batch_id*, oldest batch first."""
    frame = scan(path).filter(pl.col("batch_id") < batch_id).select("batch_id", *columns)
    return frame.collect().sort("batch_id", maintain_order=True)


class Reference:
    """Reads Delta tables that others write, whole and in their newest version; places are relative to *warehouse*."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._read: dict[str, tuple[int, pl.DataFrame]] = {}

    def __call__(self, place: str) -> pl.DataFrame:
        """The rows at *place*; raises InvalidArgument when there is no table."""
        path = self._warehouse / place
        if not DeltaTable.is_deltatable(str(path)):
            msg = f"{path}: there is no Delta table; create it before the stream starts"
            raise InvalidArgument(msg)
        version = DeltaTable(str(path)).version()
        if place not in self._read or self._read[place][0] != version:
            self._read[place] = (version, scan(path).collect())
        return self._read[place][1]


class Committer:
    """Appends to the tables of one driver.

    Purpose: each batch of each table is committed once, however often it is tried.
    How it works: the commit carries the transaction (*app*/<table>, batch id) which the log keeps; a batch that the log
    knows is not written again, and of two commits at once with one transaction the log takes one.
    *check_lease* is called before each commit, and raises when this driver may not write any more.
    """

    def __init__(self, app: str, clock: Clock, *, check_lease: Callable[[], None] = lambda: None) -> None:
        self._app, self._clock, self._check_lease = app, clock, check_lease
        self._open: dict[Path, DeltaTable] = {}

    def commit(self, path: Path, rows: pa.Table, batch_id: int) -> int:
        """Append *rows* at *path*; the clock after that (epoch ms), or that of the commit if it was made before."""

        def append(table: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(table, rows, mode="append", commit_properties=properties, writer_properties=WRITTEN)

        return self._once(path, batch_id, append)

    def upsert(self, path: Path, rows: pa.Table, batch_id: int, *, key: Sequence[str]) -> int:
        """Make *rows*, one per *key*, the current ones at *path*, less those `deleted`; the clock as in `commit`."""
        same = " and ".join(f'(old."{column}" is not distinct from new."{column}")' for column in key)
        columns = {f'"{name}"': f'new."{name}"' for name in rows.column_names if name != "deleted"}

        def merge(table: DeltaTable, properties: CommitProperties) -> None:
            merging = table.merge(
                rows,
                same,
                source_alias="new",
                target_alias="old",
                commit_properties=properties,
                writer_properties=WRITTEN,
            )
            merging = merging.when_matched_delete("new.deleted").when_matched_update(columns)
            merging.when_not_matched_insert(columns, predicate="not new.deleted").execute()

        return self._once(path, batch_id, merge)

    def newest(self, path: Path) -> int | None:
        """The newest batch that was committed at *path*; None before the first."""
        table = DeltaTable(str(path))
        return table.transaction_version(f"{self._app}/{path.name}")

    def _table(self, path: Path) -> DeltaTable:
        if path not in self._open:
            self._open[path] = DeltaTable(str(path))
        return self._open[path]

    def _once(self, path: Path, batch_id: int, write: Callable[[DeltaTable, CommitProperties], None]) -> int:
        """Have *write* commit the batch at *path*, unless the log knows it; the clock as in `commit`."""
        app_id = f"{self._app}/{path.name}"
        table = self._table(path)
        if (done := table.transaction_version(app_id)) is not None and done >= batch_id:
            return self._committed_at_ms(table, batch_id)
        properties = CommitProperties(
            app_transactions=[Transaction(app_id, batch_id)], custom_metadata={"batch_id": str(batch_id)}
        )
        self._check_lease()
        write(table, properties)
        return self._clock()

    def _committed_at_ms(self, table: DeltaTable, batch_id: int) -> int:
        for commit in table.history(100):
            if commit.get("batch_id") == str(batch_id):
                return int(commit["timestamp"])
        return self._clock()
