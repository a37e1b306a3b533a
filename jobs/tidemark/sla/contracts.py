"""How many rows of each table break its contract: one aggregation per table, in DuckDB (ring 2).

A contract is what the project declares, columns and key (`spec/tables.py`), conditions and sums (`spec/checks.py`), and
of a sink what its topology does. Judged are rows of batches that were finished in an interval; of all else, rows in
files that came since it began. The verdict on the counts is great-expectations': `quality`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from tidemark.datasets import dataset_of
from tidemark.delta import in_files
from tidemark.kernels.schemas import arrow_schema
from tidemark.sla.contract_sql import COUNTS, counted_of, counting
from tidemark.spec import tables
from tidemark.spec.checks import SUMS
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Repartition, Sink
from tidemark.spec.tables import TABLES, Column, Table
from tidemark.spec.topology import Topology

OF_NO_BATCH = frozenset({tables.HEARTBEATS.name, tables.CLOCK_SKEW.name})
"""Tables of streams that drivers write beside their batches."""
SINK = {"timestamp": "timestamp", "batch_id": "bigint", "source_partition": "int", "source_offset": "bigint"}
"""What every sink has, whatever its records are."""


@dataclass(frozen=True)
class Judged:
    """What was found in *version* of a table of a sub-topology; None: of the reports.

    `schema` says how many columns are not as declared, `counts` how many rows break what, by COUNTS; it is empty where
    none was judged, or the schema is not as declared. `example` is the key of one of these, JSON, of the operator or
    source `culprit`; or else it tells the columns, or why nothing can be read.
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
        """Whether queries can ask it: of columns that are not there they find nulls."""
        return not self.schema["unreadable"] and not self.schema["wrong_types"]

    @property
    def is_sound(self) -> bool:
        """Whether it has all columns besides."""
        return self.is_readable and not self.schema["missing_columns"]


def judged(layout: Layout, topology: Topology, over: Interval) -> list[Judged]:
    """Each table of *topology* that there is, by the rows of the interval *over*."""
    found = _Folder(layout.reports(topology.name), _written_by("report"), None, over).judged()
    for sub in topology.sub_topologies:
        hops = (replace(tables.HOP, name=f"hop_{o.name}") for o in sub.operators if isinstance(o, Repartition))
        sinks = (_sink(o, o.table) for o in sub.operators if isinstance(o, Sink) and o.table)
        declared = [*_written_by("stream"), *hops, *sinks]
        found += _Folder(layout.stream(topology.name, sub.name), declared, sub.name, over).judged()
    return found


def _written_by(whom: str) -> list[Table]:
    return [table for table in TABLES.values() if table.written_by == whom]


def _sink(sink: Sink, name: str) -> Table:
    """What a topology declares of the table *name* of *sink*."""
    columns = tuple(Column(column, ddl, "") for column, ddl in SINK.items())
    return Table(name, f"what reached the sink {sink.name}", columns, written_by="sink", key=sink.key)


class _Folder:
    """The tables of one writer in the folder *home*, each as it is when it is opened.

    Who writes several commits parts before wholes: proofs before `outcomes`, and `batches` last of all. So wholes are
    opened before their parts, and `batches` first: what they name is there in the rest.
    """

    def __init__(self, home: Path, declared: Iterable[Table], sub_topology: str | None, over: Interval) -> None:
        there = [table for table in declared if (home / table.name / "_delta_log").is_dir()]
        wholes = [tables.BATCHES.name, *SUMS]
        self._declared = sorted(there, key=lambda table: table.name not in wholes)
        self._home, self._sub_topology, self._over = home, sub_topology, over
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        self._opened = {table.name: self._open(table) for table in self._declared}
        self._batches = self._finished() if self._is_sound(tables.BATCHES.name) else None

    def judged(self) -> list[Judged]:
        """What is found of each table, parts before wholes: these are not held against parts that cannot be read."""
        for table in reversed(self._declared):
            self._opened[table.name] = self._judged(table)
        return list(self._opened.values())

    def _open(self, table: Table) -> Judged:
        found = Judged(table.name, self._sub_topology, self._home / table.name, None, {}, {})
        try:
            stored = DeltaTable(str(found.path))
            self._connection.register(_stored(table.name), _all_rows(stored, table))
            if not self._is_of_batches(table):
                self._connection.register(_new(table.name), _came_since(stored, self._over.start_ms))
        except (DeltaError, OSError, ValueError) as error:
            return _unreadable(found, error)
        there = {field.name: field.type for field in stored.schema().fields}
        wanted = {field.name: field.type for field in Schema.from_arrow(arrow_schema(table)).fields}
        missing = sorted({*wanted, *table.key} - there.keys())
        wrong = sorted(name for name in wanted.keys() & there.keys() if there[name] != wanted[name])
        schema = {"unreadable": 0, "missing_columns": len(missing), "wrong_types": len(wrong)}
        unlike = json.dumps({"missing_columns": missing, "wrong_types": wrong}) if missing or wrong else None
        return replace(found, version=stored.version(), schema=schema, example=unlike)

    def _is_sound(self, name: str) -> bool:
        return name in self._opened and self._opened[name].is_sound

    def _finished(self) -> tuple[int, int] | None:
        """The first and the last batch that were finished in the interval; None without one."""
        finished = f'"{_stored(tables.BATCHES.name)}" WHERE {self._over.holds("finished_at")}'
        try:
            found = self._connection.execute(f"SELECT min(batch_id), max(batch_id) FROM {finished}").fetchall()
        except (duckdb.Error, OSError) as error:
            self._opened[tables.BATCHES.name] = _unreadable(self._opened[tables.BATCHES.name], error)
            return None
        ((first, last),) = found
        return None if first is None else (first, last)

    def _judged(self, table: Table) -> Judged:
        found = self._opened[table.name]
        if not found.is_sound:
            return found
        try:
            rows, *counts, example, culprit = self._counted(table)
        except (duckdb.Error, OSError) as error:
            return _unreadable(found, error)
        if not rows:
            return found
        return replace(
            found,
            counts={name: n for name, n in zip(COUNTS, counts, strict=True) if name in counted_of(table)},
            batch_id=self._batches[1] if self._batches and self._is_of_batches(table) else None,
            rows=rows,
            culprit=culprit,
            example=example,
        )

    def _counted(self, table: Table) -> tuple[Any, ...]:
        """What `counting` asks for."""
        whole, parts = SUMS.get(table.name), None
        if whole and self._is_sound(whole.of):
            parts = self._of_batches(_stored(whole.of)) if self._is_of_batches(table) else self._beside(table, whole.of)
        return self._connection.execute(counting(table, self._rows(table), parts)).fetchall()[0]

    def _rows(self, table: Table) -> str:
        """What comes after FROM for the rows of *table* that are to be judged."""
        if not self._is_of_batches(table):
            return f'"{_new(table.name)}"'
        if _is_current(table):  # an older row may have stayed beside the current one, and a newer one replaced it
            key = ", ".join(f'"{name}"' for name in table.key)
            since = f"batch_id >= {self._batches[0]}" if self._batches else "false"
            judged = f'SELECT {key} FROM "{_stored(table.name)}" WHERE {since}'
            return f'"{_stored(table.name)}" WHERE ({key}) IN ({judged})'
        return self._of_batches(_stored(table.name))

    def _beside(self, table: Table, parts: str) -> str:
        """The rows of the table *parts* that have the key of a new row of *table*."""
        key = ", ".join(f'"{name}"' for name in table.key)
        return f'"{_stored(parts)}" WHERE ({key}) IN (SELECT {key} FROM "{_new(table.name)}")'

    def _is_of_batches(self, table: Table) -> bool:
        return self._sub_topology is not None and table.name not in OF_NO_BATCH

    def _of_batches(self, stored: str) -> str:
        is_judged = "batch_id BETWEEN {} AND {}".format(*self._batches) if self._batches else "false"
        return f'"{stored}" WHERE {is_judged}'


def _is_current(table: Table) -> bool:
    """Whether it keeps one row for each key."""
    return table.written_by == "sink" and bool(table.key)


def _all_rows(stored: DeltaTable, table: Table) -> ds.Dataset | ds.Scanner:
    """The rows of *stored*, from which DuckDB takes those that it needs.

    MERGE and DELETE of delta-rs leave text in a form that pyarrow cannot compare. Therefore pyarrow filters no rows of
    a table into which others may write.
    """
    rows = dataset_of(stored)
    if not _is_current(table):
        return rows
    return rows.scanner(columns=[name for name in rows.schema.names if name in {*table.key, *SINK}])


def _came_since(stored: DeltaTable, since_ms: int) -> ds.Dataset:
    """The rows of *stored* in files that were committed since."""
    files = pl.DataFrame(stored.get_add_actions(flatten=True)).filter(pl.col("modification_time") >= since_ms)
    new = {Path(place).name for place in files["path"]}
    return in_files(stored, lambda name: 0 if name in new else None)


def _unreadable(found: Judged, error: Exception) -> Judged:
    return replace(
        found,
        schema={"unreadable": 1, "missing_columns": 0, "wrong_types": 0},
        example=json.dumps({"error": str(error).splitlines()[0]}),
    )


def _stored(name: str) -> str:
    return f"stored {name}"


def _new(name: str) -> str:
    return f"new {name}"
