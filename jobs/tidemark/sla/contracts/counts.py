"""Counts the rows of each table that break its contract.

Each table takes one aggregation in DuckDB. The project declares contracts: columns and keys in
`model/tables/catalog.py`, conditions and sums in `model/checks.py`. The contract of a sink is declared by its topology.

Rows of batches are judged if the batch was finished in an interval. Rows of other tables are judged if their file was
committed since the interval began. `quality` gives the verdict on the counts, by great-expectations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

import duckdb
import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from tidemark.collecting import within
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.checks import SUMS
from tidemark.model.kinds.registry import HandingOut
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, HOP, TABLES, Column, Table
from tidemark.model.topology import Topology
from tidemark.sla.contracts.contract_sql import COUNTS, counted_of, counting_select
from tidemark.storage.delta.current_view import current_rows
from tidemark.storage.delta.datasets import dataset_of, open_to_read, schema_of
from tidemark.storage.delta.snapshots import Snapshot
from tidemark.storage.delta.tables import in_files
from tidemark.storage.warehouse import changes_of, is_table

SINK = {"timestamp": "timestamp", "batch_id": "bigint", "source_partition": "int", "source_offset": "bigint"}
"""Columns that the table of every sink has, with their types."""


@dataclass(frozen=True)
class ContractCounts:
    """The counts for the contract of one table.

    Attributes:
        table: its name.
        sub_topology: that writes it; None: it belongs to the reports.
        path: of the table.
        version: of the table that was read; None: the table could not be opened.
        schema: number of columns that are not as declared, by the kind of difference.
        counts: number of rows that break the contract, by COUNTS. It is empty if no row was judged, or the schema is
            not as declared.
        batch_id: the last batch whose rows were judged; None for tables that are not judged by batch.
        rows: number of rows that were judged.
        culprit: operator or source of the row in `example`.
        example: JSON: the key of a row that breaks the contract, or else the columns that are not as declared, or why
            the table cannot be read.
    """

    table: str
    sub_topology: str | None
    path: Path
    version: int | None
    schema: Mapping[str, int]
    counts: Mapping[str, int]
    batch_id: int | None = None
    rows: int = 0
    culprit: str | None = None
    example: str | None = None

    @property
    def is_readable(self) -> bool:
        """True if queries can read it."""
        # Columns that are missing are null to queries.
        return not self.schema["unreadable"] and not self.schema["wrong_types"]

    @property
    def is_sound(self) -> bool:
        """True if it is readable and has all columns."""
        return self.is_readable and not self.schema["missing_columns"]


def judge_contracts(layout: Layout, topology: Topology, over: Interval) -> list[ContractCounts]:
    """Counts the rows of each existing table of *topology*, for *over*."""
    by_table = _Folder(layout.reports(topology.name), _written_by("report"), None, over).judged()
    for sub in topology.sub_topologies:
        of_operators = (_declared(o, o.output_table) for o in sub.handing_out if o.output_table)
        declared = [*_written_by("stream"), *of_operators]
        by_table += _Folder(layout.stream(topology.name, sub.name), declared, sub.name, over).judged()
    return by_table


def _written_by(writer: str) -> list[Table]:
    return [table for table in TABLES.values() if table.written_by == writer]


def _declared(operator: HandingOut, name: str) -> Table:
    """Returns the declaration of the table *name* of *operator*."""
    match operator:
        case Repartition():
            return replace(HOP, name=name)
        case Sink():
            columns = tuple(Column(column, ddl, "") for column, ddl in SINK.items())
            return Table(name, f"what reached the sink {operator.name}", columns, written_by="sink", key=operator.key)
        case _:
            assert_never(operator)


class _Folder:
    """The tables of one writer in the folder *home*.

    Each is read in the version that it has when it is opened. A writer of several tables commits parts before wholes:
    proofs before `operator_batches`, and `batches` last of all. So wholes are opened before their parts, and `batches`
    first: the rows that they name exist in the other tables.
    """

    def __init__(self, home: Path, declared: Iterable[Table], sub_topology: str | None, over: Interval) -> None:
        existing = [table for table in declared if is_table(home / table.name)]
        wholes = [BATCHES.name, *SUMS]
        # False sorts before True.
        self._declared = sorted(existing, key=lambda table: table.name not in wholes)
        self._home, self._sub_topology, self._over = home, sub_topology, over
        self._connection = duckdb.connect()
        # Otherwise DuckDB casts instants in the time zone of the host.
        self._connection.execute("SET TimeZone = 'UTC'")
        self._without_files: set[str] = set()
        self._opened = {table.name: self._open(table) for table in self._declared}
        self._batches = self._finished() if self._is_sound(BATCHES.name) else None

    def judged(self) -> list[ContractCounts]:
        """Counts the rows of each table, parts before wholes."""
        # Parts come before wholes, so that a whole is not compared with parts that turned out to be unreadable.
        for table in reversed(self._declared):
            self._opened[table.name] = self._judged(table)
        return list(self._opened.values())

    def _open(self, table: Table) -> ContractCounts:
        nothing = ContractCounts(table.name, self._sub_topology, self._home / table.name, None, {}, {})
        try:
            stored: DeltaTable | Snapshot
            if self._is_of_batches(table):
                stored = open_to_read(nothing.path)
            else:
                stored = by_file = DeltaTable(str(nothing.path))
                self._connection.register(_new(table.name), _came_since(by_file, self._over.start_ms))
            self._register(table, stored)
        except (DeltaError, OSError, ValueError) as error:
            return _unreadable(nothing, error)
        existing = {field.name: field.type for field in schema_of(stored).fields}
        wanted = {field.name: field.type for field in Schema.from_arrow(arrow_schema(table)).fields}
        # A sink may have key columns that are not among those of every sink.
        missing = sorted({*wanted, *table.key} - existing.keys())
        wrong = sorted(name for name in wanted.keys() & existing.keys() if existing[name] != wanted[name])
        schema = {"unreadable": 0, "missing_columns": len(missing), "wrong_types": len(wrong)}
        differences = json.dumps({"missing_columns": missing, "wrong_types": wrong}) if missing or wrong else None
        return replace(nothing, version=stored.version(), schema=schema, example=differences)

    def _register(self, table: Table, stored: DeltaTable | Snapshot) -> None:
        """Registers the rows of *stored* with the connection.

        For a table with current rows they include those that were appended since its last merge.
        """
        path, name = self._home / table.name, _stored(table.name)
        changes = changes_of(path) if _is_current(table) else None
        if changes is None:
            rows = _all_rows(stored, table)
            if isinstance(rows, ds.FileSystemDataset) and not rows.files:
                self._without_files.add(table.name)
            self._connection.register(name, rows)
            return
        # Names with a blank: no table of a sink can have them.
        names = {path: _named(f"merged {name}"), changes: _named(f"since {name}")}
        self._connection.register(f"merged {name}", _all_rows(stored, table))
        self._connection.register(f"since {name}", dataset_of(open_to_read(changes)))
        current = current_rows(path, changes, names.__getitem__, _named, only={*table.key, *SINK})
        self._connection.execute(f"CREATE VIEW {_named(name)} AS {current}")

    def _is_sound(self, name: str) -> bool:
        return name in self._opened and self._opened[name].is_sound

    def _finished(self) -> tuple[int, int] | None:
        """Returns the first and last batch finished in the interval.

        None if no batch was, or `batches` cannot be read.
        """
        finished = f'"{_stored(BATCHES.name)}" WHERE {self._over.holds("finished_at")}'
        try:
            rows = self._connection.execute(f"SELECT min(batch_id), max(batch_id) FROM {finished}").fetchall()
        except (duckdb.Error, OSError) as error:
            self._opened[BATCHES.name] = _unreadable(self._opened[BATCHES.name], error)
            return None
        ((first, last),) = rows
        return None if first is None else (first, last)

    def _judged(self, table: Table) -> ContractCounts:
        opened = self._opened[table.name]
        if not opened.is_sound or table.name in self._without_files:
            return opened
        try:
            rows, *counts, example, culprit = self._counted(table)
        except (duckdb.Error, OSError) as error:
            return _unreadable(opened, error)
        if not rows:
            return opened
        return replace(
            opened,
            counts={name: n for name, n in zip(COUNTS, counts, strict=True) if name in counted_of(table)},
            batch_id=self._batches[1] if self._batches and self._is_of_batches(table) else None,
            rows=rows,
            culprit=culprit,
            example=example,
        )

    def _counted(self, table: Table) -> tuple[Any, ...]:
        """Returns the row of `counting_select`."""
        whole, parts = SUMS.get(table.name), None
        if whole and self._is_sound(whole.of):
            parts = self._of_batches(_stored(whole.of)) if self._is_of_batches(table) else self._beside(table, whole.of)
        return self._connection.execute(counting_select(table, self._rows(table), parts)).fetchall()[0]

    def _rows(self, table: Table) -> str:
        """Returns the text after FROM for the rows of *table* to judge."""
        if not self._is_of_batches(table):
            return f'"{_new(table.name)}"'
        # All rows of a key are judged: an older row may have stayed beside the current one.
        # A newer row may have replaced that of the interval, so there is no upper bound.
        if _is_current(table):
            key = _key_columns(table)
            since = f"batch_id >= {self._batches[0]}" if self._batches else "false"
            keys = f'SELECT {key} FROM "{_stored(table.name)}" WHERE {since}'
            return f'"{_stored(table.name)}" WHERE ({key}) IN ({keys})'
        return self._of_batches(_stored(table.name))

    def _beside(self, table: Table, parts: str) -> str:
        """Returns the text after FROM for parts of new rows.

        They are the rows of the table *parts* that have the key of a new row of *table*.
        """
        key = _key_columns(table)
        return f'"{_stored(parts)}" WHERE ({key}) IN (SELECT {key} FROM "{_new(table.name)}")'

    def _is_of_batches(self, table: Table) -> bool:
        return self._sub_topology is not None and table != HEARTBEATS

    def _of_batches(self, stored: str) -> str:
        is_judged = "batch_id BETWEEN {} AND {}".format(*self._batches) if self._batches else "false"
        return f'"{stored}" WHERE {is_judged}'


def _is_current(table: Table) -> bool:
    """Returns True if *table* keeps one row for each key."""
    return table.written_by == "sink" and bool(table.key)


def _all_rows(stored: DeltaTable | Snapshot, table: Table) -> ds.Dataset | ds.Scanner:
    """Returns the rows of *stored*, of which DuckDB reads what it needs."""
    rows = dataset_of(stored)
    # Others may write into a table with current rows: it is returned as a scanner, of which pyarrow filters no rows.
    if not _is_current(table):
        return rows
    # MERGE and DELETE of delta-rs leave text in a form that pyarrow cannot compare.
    return rows.scanner(columns=within(rows.schema.names, {*table.key, *SINK}))


def _came_since(stored: DeltaTable, since_ms: int) -> ds.Dataset:
    """Returns *stored*'s rows in files committed at *since_ms* or later."""
    files = pl.DataFrame(stored.get_add_actions(flatten=True)).filter(pl.col("modification_time") >= since_ms)
    new = {Path(place).name for place in files["path"]}
    return in_files(stored, lambda name: 0 if name in new else None)


def _unreadable(opened: ContractCounts, error: Exception) -> ContractCounts:
    return replace(
        opened,
        schema={"unreadable": 1, "missing_columns": 0, "wrong_types": 0},
        # The first line names the fault; the others may quote whole queries.
        example=json.dumps({"error": str(error).splitlines()[0]}),
    )


def _named(name: str) -> str:
    return f'"{name}"'


def _key_columns(table: Table) -> str:
    return ", ".join(_named(name) for name in table.key)


def _stored(name: str) -> str:
    return f"stored {name}"


def _new(name: str) -> str:
    return f"new {name}"
