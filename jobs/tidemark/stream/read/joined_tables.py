"""Reads the Delta tables that joins look up.

Others write them, with any feature that Spark knows. Arrow reads a table in a tenth of Spark's time, but only if none
of its features changes how its files are read. Spark reads all other tables. A task of Spark has no session, so the
driver of a stream in shards leaves it a copy of their rows.
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
"""Folder with copies of joined tables, in the control folder of a stream in shards.

Each driver has a folder of its own there, named by its epoch.
"""


class Reference:
    """Reads whole Delta tables that others write.

    Their places are relative to *warehouse*. Each is read in its newest version, or in the one that `versions` has for
    its place. In a task of Spark `copies` is the folder that `leave_copy` has filled: tables that Arrow cannot read are
    read from there.
    """

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self.versions: Mapping[str, int] = {}
        self.copies: Path | None = None
        self._read: dict[str, tuple[int, pl.DataFrame]] = {}

    def __call__(self, place: str) -> pl.DataFrame:
        """Returns the rows at *place*."""
        version = self.versions.get(place)
        if version is None:
            version = self.version(place)
        if place not in self._read or self._read[place][0] != version:
            self._read[place] = (version, self._rows(place, version))
        return self._read[place][1]

    def version(self, place: str) -> int:
        """Returns the newest version of the table at *place*; raises InvalidArgument without a table."""
        path = self._warehouse / place
        try:
            return int(DeltaTable(str(path)).version())
        except TableNotFoundError:
            msg = f"{path}: no Delta table; create it before the stream starts"
            raise InvalidArgument(msg) from None
        except DeltaError:  # delta-rs does not open a table with features that it does not know
            return max(versions_in_log(path))

    def leave_copy(self, place: str, copies: Path) -> None:
        """Writes the rows at *place* into the folder *copies*, if only Spark can read them."""
        version = self.versions[place]
        if _plain(self._warehouse / place, version) is not None:
            return
        copy = _copy(copies, place, version)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(copy, self(place).to_arrow())
            for earlier in copy.parent.glob("*.parquet"):
                if earlier.name != copy.name:
                    earlier.unlink(missing_ok=True)

    def _rows(self, place: str, version: int) -> pl.DataFrame:
        path = self._warehouse / place
        if (table := _plain(path, version)) is not None:
            return pl.scan_pyarrow_dataset(dataset_of(table)).collect()
        if self.copies is not None:
            return pl.read_parquet(_copy(self.copies, place, version))
        return _by_spark(path, version)


def _plain(path: Path, version: int) -> DeltaTable | None:
    """Returns *version* of the table at *path*; None: only Spark can read it."""
    with suppress(DeltaError):
        table = DeltaTable(str(path), version=version)
        if has_plain_rows(table):
            return table
    return None


def _copy(copies: Path, place: str, version: int) -> Path:
    return copies / quote(place, safe="") / f"{version}.parquet"


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

    The next query has tables for them.
    """


class JoinedTables:
    """The Delta tables that the joins of *sub* look up, as its driver reads them.

    Each batch has one version of each, the newest at its beginning. *steps* read them by *reference*.
    """

    def __init__(self, sub: SubTopology, reference: Reference, steps: Steps) -> None:
        self._joins = {o.name: o.joined_delta for o in sub.operators if o.joined_delta}
        self._reference, self._steps = reference, steps
        # The tables may have changed since the steps were made.
        self._columns = {name: steps.joined_columns(name) for name in self._joins}
        self._several: Mapping[str, int] = {}
        self._count()

    @property
    def ambiguous_keys(self) -> int | None:
        """How many keys have several rows, over all joins; None without one."""
        return sum(self._several.values()) if self._several else None

    def look(self) -> None:
        """Chooses the versions of the next batch; raises ColumnsChanged if the columns have changed."""
        self._reference.versions = {place: self._reference.version(place) for place in {*self._joins.values()}}
        for name, place in self._joins.items():
            if self._reference(place).schema != self._columns[name]:
                msg = f"the columns of {place}, which a join reads, have changed"
                raise ColumnsChanged(msg)
        self._count()

    def _count(self) -> None:
        several = {name: self._steps.keys_with_several_rows(name) for name in self._joins}
        for name, keys in several.items():
            if keys and keys != self._several.get(name):
                log.warning(
                    "%s: keys of %s with several rows: %s; the smallest row is joined, by its columns in their order",
                    name,
                    self._joins[name],
                    f"{keys:,}",
                )
        self._several = several
