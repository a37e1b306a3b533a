"""The tables of one query of a job, and how `measured` and `changed` write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import TimestampType

from tidemark.clock import Clock
from tidemark.errors import Contradiction, InvalidArgument
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.project.layout import Layout, usable
from tidemark.model.tables.catalog import BATCHES, BECAME, CAME_IN, TABLES
from tidemark.storage.delta.format import stamp_warehouse
from tidemark.storage.delta.tables import Committer, create
from tidemark.storage.fence import Fence
from tidemark.storage.files import Rows

TAKES_ARROW = hasattr(DataFrame, "toArrow")
"""False in Spark 3.5, which neither returns nor accepts Arrow's tables."""


@dataclass(frozen=True)
class Query:
    """A query of *topology* in a warehouse; *name* is its sub-topology.

    Raises:
        InvalidArgument: a name cannot be used.
    """

    layout: Layout
    topology: str
    name: str

    def __post_init__(self) -> None:
        for name in (self.topology, self.name):
            usable(name)

    @property
    def control(self) -> Path:
        """Its control folder."""
        return self.layout.control(self.topology, self.name)

    def table(self, name: str) -> Path:
        """Returns the path of its table *name*."""
        return self.layout.stream_table(self.topology, self.name, name)

    def same(self, batch_id: int) -> dict[str, object]:
        """Returns the columns that have the same value in all of its rows of one batch."""
        return {"topology": self.topology, "sub_topology": self.name, "batch_id": batch_id}


_written_about: set[tuple[Query, str]] = set()
"""Operators whose rows of `operator_batches` are written by `measured` or `changed` of this process.

There is one row for each batch and operator, so a listener writes none for these.
"""
_measured_now: dict[tuple[Query, str], dict[str, int]] = {}
"""While `measured` measures a batch of an operator: the updates that `changed` has counted in it, by outcome."""


def write_about(query: Query, operator: str) -> None:
    """Notes that `measured` or `changed` writes the rows of *operator* of *query*."""
    _written_about.add((query, operator))


def is_written_about(query: Query, operator: str) -> bool:
    """Returns True if `measured` or `changed` of this process writes the rows of *operator* of *query*."""
    return (query, operator) in _written_about


@contextmanager
def counted_by_changed(query: Query, operator: str) -> Iterator[dict[str, int]]:
    """Yields a dictionary into which `changed` puts the updates of *operator* by outcome inside the block.

    `measured` writes them as part of its own row.
    """
    counts = _measured_now[query, operator] = {}
    try:
        yield counts
    finally:
        _measured_now.pop((query, operator), None)


def operator_row(operator: str, counts: Mapping[str, int], *, decided_at_ms: int) -> dict[str, object]:
    """Returns a row of `operator_batches` with the *counts* of updates by outcome, and without latency."""
    return {
        "decided_at": decided_at_ms,
        "operator": operator,
        "kind": KeyedTable.kind,
        **dict.fromkeys((*CAME_IN, *BECAME), 0),
        "records_in": sum(counts.values()),
        "fan_out": 0,
        **counts,
    }


def hand_over(query: Query, operator: str, counts: Mapping[str, int]) -> bool:
    """Adds *counts* to the row that `measured` is about to write.

    Returns False if `measured` does not measure *operator* now.
    """
    row = _measured_now.get((query, operator))
    if row is None:
        return False
    row.update(counts)
    return True


class FactsWriter:
    """Appends rows about batches of *query*, each batch once per table, however often that is tried.

    Operators share the tables of their query, so each commit carries the name of its *operator*. The table `batches`
    belongs to no operator: the first one that writes about a batch writes for all. *clock* returns epoch ms.
    """

    def __init__(self, query: Query, operator: str, clock: Clock) -> None:
        self._query, self._fence = query, Fence(clock=clock)
        self._app = f"{query.topology}/{query.name}"
        self._operator_committer = Committer(f"{self._app}/{usable(operator)}", self._fence)
        self._shared_committer = Committer(self._app, self._fence)
        self._newest: dict[str, int] = {}

    def append(self, tables: Mapping[str, Rows], batch_id: int) -> None:
        """Appends rows of a batch; *tables* has them by the name of their table.

        Raises:
            Contradiction: a later batch was appended before.
        """
        for name, rows in tables.items():
            self.open(name, batch_id)
            if rows.num_rows:
                self._committer(name).commit(self._query.table(name), rows, batch_id)
                self._newest[name] = batch_id

    def open(self, name: str, batch_id: int) -> int:
        """Creates the table *name* unless it exists; returns its newest batch, −1 if it has none.

        Raises:
            Contradiction: the table has a later batch than *batch_id*.
        """
        if (newest := self.newest(name)) > batch_id:
            raise replaced(self._query.table(name), batch_id, newest)
        return newest

    def newest(self, name: str) -> int:
        """Returns the newest batch in the table *name*, −1 if it has none; creates the table unless it exists."""
        if not self._newest:
            stamp_warehouse(self._query.layout.warehouse)
        if name not in self._newest:
            path = self._query.table(name)
            create(path, arrow_schema(TABLES[name]), description=TABLES[name].row)
            newest = self._committer(name).newest(path)
            self._newest[name] = -1 if newest is None else newest
        return self._newest[name]

    def _committer(self, name: str) -> Committer:
        if name != BATCHES.name:
            return self._operator_committer
        # Other operators write `batches`, too. After their commits this committer would return an older batch.
        if self._shared_committer.is_behind(self._query.table(name)):
            self._shared_committer = Committer(self._app, self._fence)
        return self._shared_committer


def replaced(where: Path, batch_id: int, newest: int) -> Contradiction:
    """Returns the error for a query whose checkpoint continues with an earlier batch than the *newest* recorded one."""
    return Contradiction(
        f"{where}: the checkpoint continues with batch {batch_id}, but batch {newest} was recorded before; "
        "the checkpoint was rolled back or replaced: restore it, or give the query a new name"
    )


@contextmanager
def kept(rows: DataFrame) -> Iterator[None]:
    """Caches *rows*, which are read more than once, inside the block, unless they are cached already."""
    if rows.is_cached:
        yield
        return
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def record_time_ms(rows: DataFrame, timestamp: str) -> Column:
    """Returns the TIMESTAMP column *timestamp* of *rows* as epoch ms.

    Raises:
        InvalidArgument: the column has another type.
    """
    kind = rows.schema[timestamp].dataType
    if not isinstance(kind, TimestampType):
        got = f"{timestamp}: {kind.simpleString()}"
        msg = f"a record time must be a TIMESTAMP, got {got}; convert it, epoch ms with timestamp_millis()"
        raise InvalidArgument(msg)
    return F.unix_millis(timestamp)


def as_arrow(rows: DataFrame) -> pa.Table:
    """Collects *rows* on the driver as a table of Arrow."""
    if TAKES_ARROW:
        return rows.toArrow()
    # What toArrow of Spark 4.0 calls. Without rows there is no batch that has their schema.
    of_spark: Any = rows
    batches = of_spark._collect_as_arrow()
    return pa.Table.from_batches(batches, None if batches else to_arrow_schema(rows.schema))


def as_rows(table: pa.Table, spark: SparkSession) -> DataFrame:
    """Returns a DataFrame of Spark with the rows of *table*, whose columns are integers."""
    if TAKES_ARROW:
        return spark.createDataFrame(table)
    return spark.createDataFrame([*zip(*table.to_pydict().values(), strict=True)], table.column_names)
