"""Counts the rows of each table that break its contract: its declared columns, keys, conditions and sums.

The project declares contracts: columns and keys in `model/tables/catalog.py`, conditions and sums in `model/checks.py`.
The contract of a sink is declared by its topology. `quality` gives the verdict on the counts, by great-expectations.

A check judges what came since the check before, so it costs the same however large the tables are:

* Of a table of batches it judges the batches that were finished since, and any older one to which rows were added. A
  key of such a table has the batch, so a batch is judged as a whole.
* Of a report, and of heartbeats, it judges the rows in new files.
* A sink with current rows has new files whenever its driver merges rows into it. A merge replaces rows by their key.
  So only the keys in files of other writers are looked up in the whole table.

Keys without a batch may have been in the table before. Once a day a check looks for repeated ones in whole tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, assert_never

import duckdb
from deltalake import Schema
from deltalake.exceptions import DeltaError

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.checks import SUMS, ConditionKind
from tidemark.model.kinds.boundary import HandingOut
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import CLOCKS_APART_MS
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, HOP, TABLES, Column, Table
from tidemark.model.topology import Topology
from tidemark.selection import present
from tidemark.sla.contracts.contract_sql import (
    COUNTS,
    KEYS,
    broken_rows_select,
    counted_of,
    has_repeated_keys_select,
    key_hash,
    repeated_keys_select,
    rows_where,
    wrong_sums_select,
)
from tidemark.sla.contracts.opened_table import OpenedTable
from tidemark.sla.contracts.periods import JudgedBefore
from tidemark.storage.delta.datasets import schema_of
from tidemark.storage.files import MERGED
from tidemark.storage.private_folder import private_folder
from tidemark.storage.warehouse import changes_of, is_table

MEMORY = "32MB"
"""Memory of DuckDB for keys and rows; what does not fit is written to a temporary file."""
MOST_MEMORY = "2GB"
"""DuckDB's memory for a table that cannot be counted in less."""
SCHEMA_COUNTS = ("unreadable", "wrong_types", "missing_columns")
"""Kinds of differences between the columns of a table and its declaration."""
SINK = {"timestamp": "timestamp", "batch_id": "bigint", "source_partition": "int", "source_offset": "bigint"}
"""Columns that the table of every sink has, with their types."""


@dataclass(frozen=True)
class ContractCounts:
    """The counts for the contract of one table.

    Attributes:
        table: name of the table.
        sub_topology: the sub-topology that writes it; None for a report.
        path: path of the table.
        version: the version that was read; None if the table could not be opened.
        schema: number of columns that are not as declared, by SCHEMA_COUNTS.
        counts: number of rows that break the contract, by COUNTS; empty if no row was judged, or the columns are not as
            declared.
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
        """True if queries can read the table."""
        # Columns that are missing are null to queries.
        return not self.schema["unreadable"] and not self.schema["wrong_types"]

    @property
    def is_sound(self) -> bool:
        """True if the table is readable and has all columns."""
        return self.is_readable and not self.schema["missing_columns"]


def judge_contracts(
    layout: Layout,
    topology: Topology,
    over: Interval,
    before: Mapping[tuple[str | None, str], JudgedBefore] = MappingProxyType({}),
    *,
    whole: bool = False,
) -> list[ContractCounts]:
    """Counts the rows of each existing table of *topology* that break its contract.

    Args:
        layout: paths of the warehouse.
        topology: the topology whose tables are judged.
        over: of a table that is not in *before*, the rows that came in this interval are judged. No batch is judged
            that was finished after it.
        before: up to where each table was judged before, by the sub-topology that writes it (None for a report) and its
            name.
        whole: whether repeated keys are looked for in whole tables, where keys do not have the batch.
    """
    with _counter() as counter:

        def judge_folder(home: Path, declared: Iterable[Table], sub_topology: str | None) -> list[ContractCounts]:
            before_here = {table: judged for (sub, table), judged in before.items() if sub == sub_topology}
            return _Folder(home, declared, sub_topology, over, before_here, counter, whole=whole).judged()

        by_table = judge_folder(layout.reports(topology.name), _written_by("report"), None)
        for sub in topology.sub_topologies:
            outputs = (_declared(o, o.output_table) for o in sub.handing_out if o.output_table)
            declared = [*_written_by("stream"), *outputs]
            by_table += judge_folder(layout.stream(topology.name, sub.name), declared, sub.name)
        return by_table


@contextmanager
def _counter() -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a DuckDB that counts rows in little memory."""
    with duckdb.connect() as connection:
        # Otherwise DuckDB casts instants in the time zone of the host.
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        # Each thread has buffers of its own.
        connection.execute("SET threads = 1")
        connection.execute(f"SET temp_directory = '{_temporary_folder()}'")
        # The order of rows does not matter, and keeping it takes memory.
        connection.execute("SET preserve_insertion_order = false")
        yield connection


@cache
def _temporary_folder() -> Path:
    return private_folder("tidemark-contracts-")


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


@dataclass(frozen=True)
class _Judged:
    """Which rows of a table a check judges. Sets of rows are SQL, as it stands after FROM.

    Attributes:
        rows: the rows whose conditions are judged; None if only merges wrote rows.
        keys: the rows whose keys are compared, the same or more; None if only merges wrote rows.
        parts: the rows of another table that add up to those of this one; None if sums are not judged.
        merged: number of rows that merges wrote, which are counted and not judged.
    """

    rows: str | None
    keys: str | None
    parts: str | None = None
    merged: int = 0


class _Folder:
    """The tables of one writer in the folder *home*.

    Each is read in the version that it has when it is opened. A writer of several tables commits parts before wholes:
    proofs before `operator_batches`, and `batches` last of all. So wholes are opened before their parts, and `batches`
    first: the rows that they name exist in the other tables.
    """

    def __init__(
        self,
        home: Path,
        declared: Iterable[Table],
        sub_topology: str | None,
        over: Interval,
        before: Mapping[str, JudgedBefore],
        connection: duckdb.DuckDBPyConnection,
        *,
        whole: bool,
    ) -> None:
        existing = [table for table in declared if is_table(home / table.name)]
        wholes = [BATCHES.name, *SUMS]
        # False sorts before True.
        self._declared = sorted(existing, key=lambda table: table.name not in wholes)
        self._home, self._sub_topology, self._over, self._before = home, sub_topology, over, before
        self._connection, self._whole = connection, whole
        self._tables: dict[str, OpenedTable] = {}
        self._found = {table.name: self._open(table) for table in self._declared}
        self._decided_ms: dict[int, int | None] = {}
        """When the batches were decided that were finished lately; null in a table that others wrote."""
        self._first, self._last = self._finished()

    def judged(self) -> list[ContractCounts]:
        """Counts the rows of each table, parts before wholes."""
        # Parts come before wholes, so that a whole is not compared with parts that turned out to be unreadable.
        for table in reversed(self._declared):
            if self._is_sound(table.name):
                try:
                    self._found[table.name] = self._judge(table)
                except (duckdb.Error, OSError, DeltaError) as error:
                    self._found[table.name] = _unreadable(self._found[table.name], error)
        return list(self._found.values())

    def _open(self, table: Table) -> ContractCounts:
        nothing = ContractCounts(table.name, self._sub_topology, self._home / table.name, None, {}, {})
        try:
            self._tables[table.name] = opened = OpenedTable.at(nothing.path)
        except (DeltaError, OSError, ValueError) as error:
            return _unreadable(nothing, error)
        existing = {field.name: field.type for field in schema_of(opened.stored).fields}
        wanted = {field.name: field.type for field in Schema.from_arrow(arrow_schema(table)).fields}
        # A sink may have key columns that are not among those of every sink.
        missing = sorted({*wanted, *table.key} - existing.keys())
        wrong = sorted(name for name in wanted.keys() & existing.keys() if existing[name] != wanted[name])
        schema = {"unreadable": 0, "missing_columns": len(missing), "wrong_types": len(wrong)}
        differences = json.dumps({"missing_columns": missing, "wrong_types": wrong}) if missing or wrong else None
        return replace(nothing, version=opened.stored.version(), schema=schema, example=differences)

    def _is_sound(self, name: str) -> bool:
        return name in self._found and self._found[name].is_sound

    def _finished(self) -> tuple[int | None, int | None]:
        """Returns the first batch that was finished in the interval, and the last that was finished before its end.

        Each is None if there is no such batch, or `batches` cannot be read. The last batch is never an older one than
        those that were judged before.
        """
        if not self._is_sound(BATCHES.name):
            return None, None
        reached = [self._before[table.name] for table in self._declared if table.name in self._before]
        since_ms = min((each.at_ms - CLOCKS_APART_MS for each in reached), default=self._over.start_ms)
        if len(reached) < len(self._declared):
            since_ms = min(since_ms, self._over.start_ms)
        ended = f"finished_at < make_timestamptz({self._over.end_ms * 1_000})"
        rows = rows_where(self._written_since(BATCHES.name, since_ms), ended)
        try:
            batches = self._all(f"SELECT batch_id, epoch_ms(decided_at), epoch_ms(finished_at) FROM {rows}")
        except (duckdb.Error, OSError) as error:
            self._found[BATCHES.name] = _unreadable(self._found[BATCHES.name], error)
            return None, None
        self._decided_ms = {batch_id: decided_ms for batch_id, decided_ms, _ in batches}
        lately = (batch_id for batch_id, _, finished_ms in batches if finished_ms >= self._over.start_ms)
        judged = present(each.batch_id for each in reached)
        return min(lately, default=None), max([*self._decided_ms, *judged], default=None)

    def _judge(self, table: Table) -> ContractCounts:
        found = self._found[table.name]
        if _is_current(table):
            judged = self._current(table)
        elif self._is_of_batches(table):
            judged = self._batches(table)
        else:
            judged = self._added(table)
        found = replace(found, batch_id=self._last if self._is_of_batches(table) else None)
        return found if judged is None else self._counted(table, judged, found)

    def _batches(self, table: Table) -> _Judged | None:
        """Returns the batches of *table* that are new, or have new rows."""
        parts = SUMS[table.name].of if table.name in SUMS and self._is_sound(SUMS[table.name].of) else None
        if self._last is None:
            return None
        if table.name not in self._before:
            # Batches of an interval have no gap, but for those that changed nothing.
            batches = [] if self._first is None else [*range(self._first, self._last + 1)]
        else:
            batches = sorted({*self._new_batches(table.name), *(self._new_batches(parts) if parts else ())})
        if not batches:
            return None
        since_ms = self._decided_before(batches[0])
        condition = f"batch_id BETWEEN {batches[0]} AND {batches[-1]}"
        if len(batches) <= batches[-1] - batches[0]:
            condition += f" AND batch_id IN ({', '.join(map(str, batches))})"
        rows = rows_where(self._written_since(table.name, since_ms), condition)
        return _Judged(rows, rows, rows_where(self._written_since(parts, since_ms), condition) if parts else None)

    def _new_batches(self, name: str) -> list[int]:
        """Returns the batches since the check before, and older ones to which rows were added since."""
        before = self._before.get(name)
        if before is None or self._last is None:
            return []
        reached = -1 if before.batch_id is None else before.batch_id
        first = min((batch for batch in self._decided_ms if batch > reached), default=self._last + 1)
        batches = [*range(first, self._last + 1)]
        if not self._is_unchanged(name):
            added = self._written_since(name, self._since_ms(name))
            batches += (
                row[0] for row in self._all(f"SELECT DISTINCT batch_id FROM {added} WHERE batch_id <= {reached}")
            )
        return batches

    def _decided_before(self, batch_id: int) -> int:
        """Returns an instant before any row of *batch_id*, or of a later batch, was written, epoch ms."""
        decided_ms = self._decided_ms.get(batch_id)
        return 0 if decided_ms is None else decided_ms - CLOCKS_APART_MS

    def _added(self, table: Table) -> _Judged | None:
        """Returns the rows in new files of *table*, whose keys have no batch."""
        if self._is_unchanged(table.name) and not self._whole:
            return None
        rows = self._written_since(table.name, self._since_ms(table.name))
        keys = self._written_since(table.name, 0) if self._whole else rows
        whole = SUMS.get(table.name)
        if whole is None or not self._is_sound(whole.of):
            return _Judged(rows, keys)
        same = ", ".join(f'"{name}"' for name in table.key)
        parts = rows_where(self._written_since(whole.of, 0), f"({same}) IN (SELECT {same} FROM {rows})")
        return _Judged(rows, keys, parts)

    def _current(self, table: Table) -> _Judged | None:
        """Returns the rows of *table*, which should have one row for each key, that may have the key of another row."""
        opened, since_ms = self._tables[table.name], self._since_ms(table.name)
        all_rows = self._written_since(table.name, 0)
        if self._whole:
            return _Judged(all_rows, all_rows)
        new = opened.files_since(since_ms)
        of_others = frozenset(file for file in new if not Path(file).name.startswith(MERGED))
        if of_others and not self._is_unchanged(table.name):
            keys = f"SELECT {key_hash(table)} FROM {opened.rows(self._connection, of_others)}"
            rows = rows_where(all_rows, f"{key_hash(table)} IN ({keys})")
            return _Judged(rows, rows)
        # A row that was appended is merged later, by the same rule.
        changes = changes_of(opened.path)
        came = opened if changes is None else OpenedTable.at(changes)
        ((merged,),) = self._all(f"SELECT count(*) FROM {came.rows(self._connection, came.files_since(since_ms))}")
        return _Judged(None, None, merged=merged) if merged else None

    def _since_ms(self, name: str) -> int:
        """Returns the instant from which on files of the table *name* are new, epoch ms."""
        before = self._before.get(name)
        return self._over.start_ms if before is None else before.at_ms - CLOCKS_APART_MS

    def _is_unchanged(self, name: str) -> bool:
        before = self._before.get(name)
        return before is not None and before.version == self._found[name].version

    def _written_since(self, name: str, ms: int) -> str:
        opened = self._tables[name]
        return opened.rows(self._connection, opened.files_since(ms))

    def _counted(self, table: Table, judged: _Judged, found: ContractCounts) -> ContractCounts:
        """Counts the rows that are *judged*; returns *found* with the counts, or as it is if there are no such rows."""
        rows, counts, examples = judged.merged, dict.fromkeys(COUNTS, 0), list[tuple[Any, Any]]()
        if judged.rows is not None:
            ((rows, *broken, key, culprit),) = self._all(broken_rows_select(table, judged.rows))
            counts |= dict(zip(ConditionKind, broken, strict=True))
            examples.append((key, culprit))
        if table.key and judged.keys and self._all(has_repeated_keys_select(table, judged.keys))[0][0]:
            ((counts[KEYS], key, culprit),) = self._all(repeated_keys_select(table, judged.keys))
            examples.append((key, culprit))
        if judged.rows and judged.parts:
            ((wrong, key, culprit),) = self._all(wrong_sums_select(table, judged.rows, judged.parts))
            counts[ConditionKind.RELATIONS] += wrong
            examples.append((key, culprit))
        if judged.rows and judged.keys and judged.keys != judged.rows:
            ((rows,),) = self._all(f"SELECT count(*) FROM {judged.keys}")
        if not rows:
            return found
        example, culprit = min(
            (each for each in examples if each[0] is not None), default=(None, None), key=itemgetter(0)
        )
        counted = {name: n for name, n in counts.items() if name in counted_of(table)}
        return replace(found, counts=counted, rows=rows, culprit=culprit, example=example)

    def _all(self, select: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(select).fetchall()
        except duckdb.OutOfMemoryException:
            self._connection.execute(f"SET memory_limit = '{MOST_MEMORY}'")
            return self._connection.execute(select).fetchall()

    def _is_of_batches(self, table: Table) -> bool:
        return self._sub_topology is not None and table != HEARTBEATS


def _is_current(table: Table) -> bool:
    """Returns True if *table* keeps one row for each key."""
    return table.written_by == "sink" and bool(table.key)


def _unreadable(opened: ContractCounts, error: Exception) -> ContractCounts:
    return replace(
        opened,
        schema={"unreadable": 1, "missing_columns": 0, "wrong_types": 0},
        # The first line names the fault; the others may quote whole queries.
        example=json.dumps({"error": str(error).splitlines()[0]}),
    )
