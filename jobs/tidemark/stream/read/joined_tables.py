"""Reads the Delta tables that joins look up.

Other programs write these tables, with any feature that Spark knows. Arrow reads a table in a tenth of Spark's time,
but only if none of its features changes how its files are read. Spark reads all other tables. A task of Spark has no
session, so the driver of a stream in shards leaves a copy of the rows for its tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.errors import InvalidArgument
from tidemark.model.topology import SubTopology
from tidemark.storage.delta.datasets import dataset_of, has_plain_rows
from tidemark.storage.delta.snapshots import versions_in_log
from tidemark.storage.files import write_parquet
from tidemark.stream.operate.steps import Steps

log = logging.getLogger("tidemark.stream")

COPIES = "joined"
"""Folder, in the control folder of a stream in shards, with copies of joined tables.

Each driver has its own folder there, named by its epoch (the number of its lease).
"""


class Reference:
    """Reads whole Delta tables that other programs write, by their location below *warehouse*.

    Attributes:
        versions: by location, the version to read. A table without an entry is read in its newest version.
        copies: in a task of Spark, the folder that `leave_copy` has filled: tables that Arrow cannot read are read from
            there. None in a driver.
    """

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self.versions: Mapping[str, int] = {}
        self.copies: Path | None = None
        self._read: dict[str, tuple[int, pl.DataFrame]] = {}

    def __call__(self, location: str) -> pl.DataFrame:
        """Returns the rows at *location*."""
        version = self.versions.get(location)
        if version is None:
            version = self.version(location)
        if location not in self._read or self._read[location][0] != version:
            self._read[location] = (version, self._rows(location, version))
        return self._read[location][1]

    def version(self, location: str) -> int:
        """Returns the newest version of the table at *location*; raises InvalidArgument without a table."""
        path = self._warehouse / location
        try:
            return int(DeltaTable(str(path)).version())
        except TableNotFoundError:
            msg = f"{path}: no Delta table; create it before the stream starts"
            raise InvalidArgument(msg) from None
        except DeltaError:  # delta-rs does not open a table with features that it does not know
            return max(versions_in_log(path))

    def leave_copy(self, location: str, copies: Path) -> None:
        """Writes the rows at *location* into the folder *copies*, if only Spark can read them."""
        version = self.versions[location]
        if _plain(self._warehouse / location, version) is not None:
            return
        copy = _copy(copies, location, version)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(copy, self(location).to_arrow())
            for earlier in copy.parent.glob("*.parquet"):
                if earlier.name != copy.name:
                    earlier.unlink(missing_ok=True)

    def _rows(self, location: str, version: int) -> pl.DataFrame:
        path = self._warehouse / location
        if (table := _plain(path, version)) is not None:
            return pl.scan_pyarrow_dataset(dataset_of(table)).collect()
        if self.copies is not None:
            return pl.read_parquet(_copy(self.copies, location, version))
        return _by_spark(path, version)


def _plain(path: Path, version: int) -> DeltaTable | None:
    """Returns *version* of the table at *path*, or None if only Spark can read it."""
    with suppress(DeltaError):
        table = DeltaTable(str(path), version=version)
        if has_plain_rows(table):
            return table
    return None


def _copy(copies: Path, location: str, version: int) -> Path:
    return copies / quote(location, safe="") / f"{version}.parquet"


def _by_spark(path: Path, version: int) -> pl.DataFrame:
    # DAGs, pages and most commands read no such table, and start without Spark.
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tidemark.spark_session import session

    # With settings of its own, a builder changes those of the session that runs.
    runs = SparkContext._active_spark_context is not None
    spark = SparkSession.builder.getOrCreate() if runs else session("tidemark-joined-table")
    return pl.DataFrame(spark.read.format("delta").option("versionAsOf", version).load(str(path)).toArrow())


class ColumnsChanged(Exception):
    """Raised before a batch is decided if a joined table has other columns than at the start of the query.

    The query is then started again, with the new columns.
    """


class JoinedTables:
    """The Delta tables that the joins of *sub* look up.

    All operators of a batch read the same version of a table: the newest when the batch begins. *reference* reads the
    tables for *steps*.
    """

    def __init__(self, sub: SubTopology, reference: Reference, steps: Steps) -> None:
        self._joins = {o.name: o.joined_delta for o in sub.operators if o.joined_delta}
        self._reference, self._steps = reference, steps
        # The tables may have changed since the steps were made.
        self._columns = {name: steps.joined_columns(name) for name in self._joins}
        self._duplicate_keys: Mapping[str, int] = {}
        self._count_duplicate_keys()

    @property
    def ambiguous_keys(self) -> int | None:
        """How many keys have more than one row, over all joins; None if the stream joins no such table."""
        return sum(self._duplicate_keys.values()) if self._duplicate_keys else None

    def look(self) -> None:
        """Chooses the versions of the next batch; raises ColumnsChanged if the columns have changed."""
        self._reference.versions = {location: self._reference.version(location) for location in {*self._joins.values()}}
        for name, location in self._joins.items():
            if self._reference(location).schema != self._columns[name]:
                msg = f"the columns of {location}, which a join reads, have changed"
                raise ColumnsChanged(msg)
        self._count_duplicate_keys()

    def _count_duplicate_keys(self) -> None:
        duplicate_keys = {name: self._steps.keys_with_several_rows(name) for name in self._joins}
        for name, keys in duplicate_keys.items():
            if keys and keys != self._duplicate_keys.get(name):
                log.warning(
                    "%s: keys of %s with several rows: %s; the smallest row is joined, by its columns in their order",
                    name,
                    self._joins[name],
                    f"{keys:,}",
                )
        self._duplicate_keys = duplicate_keys
