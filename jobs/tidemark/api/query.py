"""The tables of one query of a team's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from tidemark.clock import Clock
from tidemark.delta import Committer, create
from tidemark.errors import Contradiction, InvalidArgument
from tidemark.kernels.schemas import arrow_schema
from tidemark.spec.layout import Layout, usable
from tidemark.spec.tables import BATCHES, TABLES


@dataclass(frozen=True)
class Query:
    """One query of *topology* in a warehouse; *name* is its sub-topology. Raises InvalidArgument for such a name."""

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
        """Where its table *name* lies."""
        return self.layout.stream_table(self.topology, self.name, name)

    def same(self, batch_id: int) -> dict[str, object]:
        """The columns that all of its rows of one batch share."""
        return {"topology": self.topology, "sub_topology": self.name, "batch_id": batch_id}


class Writer:
    """Appends what *operator* tells of the batches of *query*; each batch of a table once, however often it is tried.

    Operators share the tables of their query, so the commits of each are told apart by its name. `batches` is not an
    operator's: whoever tells first of a batch tells of it for all.
    """

    def __init__(self, query: Query, operator: str, clock: Clock) -> None:
        self._query, self._clock = query, clock
        self._app = f"{query.topology}/{query.name}"
        self._own = Committer(f"{self._app}/{usable(operator)}", clock)
        self._newest: dict[str, int] = {}

    def append(self, tables: Mapping[str, pa.Table], batch_id: int) -> None:
        """Append the rows of *tables*, by table; raises Contradiction where a later batch was appended before."""
        for name, rows in tables.items():
            self.open(name, batch_id)
            if rows.num_rows:
                self._committer(name).commit(self._query.table(name), rows, batch_id)
                self._newest[name] = batch_id

    def open(self, name: str, batch_id: int) -> None:
        """Create the table *name* where there is none; raises Contradiction where it has a batch after *batch_id*."""
        path = self._query.table(name)
        if name not in self._newest:
            create(path, arrow_schema(TABLES[name]), description=TABLES[name].row)
            newest = self._committer(name).newest(path)
            self._newest[name] = -1 if newest is None else newest
        if self._newest[name] > batch_id:
            raise replaced(path, batch_id, self._newest[name])

    def _committer(self, name: str) -> Committer:
        # Others write `batches` too: only a committer that has just opened it knows which batches it has.
        return Committer(self._app, self._clock) if name == BATCHES.name else self._own


def replaced(where: Path, batch_id: int, newest: int) -> Contradiction:
    """What is raised when a query begins again at a batch that it had left behind."""
    return Contradiction(
        f"{where}: the checkpoint goes on with batch {batch_id}, but batch {newest} was told of before; "
        "the checkpoint was rolled back or replaced: restore it, or give the query a new name"
    )


@contextmanager
def kept(rows: DataFrame) -> Iterator[None]:
    """Have Spark keep *rows*, which are read more than once, unless somebody has seen to that already."""
    if rows.is_cached:
        yield
        return
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def record_time_ms(rows: DataFrame, timestamp: str) -> Column:
    """The TIMESTAMP column *timestamp* of *rows*, record time, as epoch ms; raises InvalidArgument for another type."""
    kind = rows.schema[timestamp].dataType
    if not isinstance(kind, TimestampType):
        got = f"{timestamp}: {kind.simpleString()}"
        msg = f"a record time is a TIMESTAMP, got {got}; make one of it, epoch ms with timestamp_millis()"
        raise InvalidArgument(msg)
    return F.unix_millis(timestamp)
