"""How many rows of each table break its contract: one aggregation per table, in DuckDB (ring 2).

A contract is what the project declares, columns and key (`spec/tables.py`), conditions and sums (`spec/checks.py`), and
of a sink what its topology does. Judged are rows of batches that were finished in an interval, and rows of reports
about it. The verdict on the counts is great-expectations': `quality`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from tidemark.kernels.schemas import arrow_schema
from tidemark.spec import tables
from tidemark.spec.checks import CONDITIONS, SUMS, Conditions, Rule
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Repartition, Sink
from tidemark.spec.tables import TABLES, Column, Table
from tidemark.spec.topology import Topology

KEYS = "duplicate_keys"
COUNTS = (KEYS, *(rule.value for rule in Rule))
FINISHED = "make_timestamptz(epoch_us(window_end) + (before_source_ms + latency_ms) * 1000)"
ABOUT: Mapping[str, str] = {
    tables.HEARTBEATS.name: '"at"',
    tables.CLOCK_SKEW.name: '"at"',
    tables.LATENCY_ROLLUP.name: "interval_end",
    tables.LATENCY_BUCKET_ROLLUP.name: "interval_end",
    tables.CRITICAL_PATHS.name: FINISHED,
    tables.SLA_RESULTS.name: "checked_at",
    tables.INCIDENTS.name: '"at"',
    tables.DELIVERIES.name: "delivered_at",
    tables.DQ_RESULTS.name: "checked_at",
    tables.REQUEUED.name: "requeued_at",
    tables.TABLE_FILES.name: '"at"',
}
"""Of rows that are no batch's: the instant by which they are judged."""
OF_PATHS = frozenset({tables.CRITICAL_PATH_STEPS.name, tables.CRITICAL_PATH_LEAVES.name})
"""Tables whose rows are judged with the critical path of their window."""
PLACE = ("batch_id", "operator", "source", "topic", "partition", "offset", "source_partition", "source_offset", "key")
"""What a row without a key is told by."""
SINK = {"timestamp": "timestamp", "batch_id": "bigint", "source_partition": "int", "source_offset": "bigint"}
"""What every sink has, whatever its records are."""
COUNTED = """
    SELECT coalesce(sum(n), 0)::bigint AS rows,
           sum({keys})::bigint, sum(unknown_words)::bigint, sum(negative_counts)::bigint, sum(not_adding_up)::bigint,
           min(to_json(key)::varchar) FILTER (WHERE is_broken) AS example,
           arg_min(culprit, to_json(key)::varchar) FILTER (WHERE is_broken) AS culprit
    FROM (SELECT *, {keys} + unknown_words + negative_counts + not_adding_up > 0 AS is_broken
          FROM (SELECT key, sum(n) AS n, min(culprit) AS culprit, sum(unknown_words) AS unknown_words,
                       sum(negative_counts) AS negative_counts,
                       sum(not_adding_up) + (sum(n) < 2 AND sum(amount) <> 0)::int AS not_adding_up
                FROM ({rows}) GROUP BY key))
"""


@dataclass(frozen=True)
class Judged:
    """What was found in *version* of a table of a sub-topology; None: of the reports.

    `schema` says how many columns are not as declared, `counts` how many rows break what, by COUNTS; it is empty where
    none was judged, or the schema is not as declared. `example` is the key of one of these, JSON, of the operator or
    source `culprit`; or else it tells the columns.
    """

    table: str
    sub_topology: str | None
    version: int | None
    schema: Mapping[str, int]
    counts: Mapping[str, int]
    batch_id: int | None = None
    rows: int = 0
    culprit: str | None = None
    example: str | None = None


def judged(layout: Layout, topology: Topology, over: Interval) -> list[Judged]:
    """Each table of *topology* that there is, by the rows of the interval *over*."""
    found = _Folder(layout.reports(topology.name), _written_by("report"), over).judged(None)
    for sub in topology.sub_topologies:
        hops = (replace(tables.HOP, name=f"hop_{o.name}") for o in sub.operators if isinstance(o, Repartition))
        sinks = (_sink(o, o.table) for o in sub.operators if isinstance(o, Sink) and o.table)
        folder = _Folder(layout.stream(topology.name, sub.name), [*_written_by("stream"), *hops, *sinks], over)
        found += folder.judged(sub.name)
    return found


def _written_by(whom: str) -> list[Table]:
    return [table for table in TABLES.values() if table.written_by == whom]


def _sink(sink: Sink, name: str) -> Table:
    """What a topology declares of the table *name* of *sink*."""
    columns = tuple(Column(column, ddl, "") for column, ddl in SINK.items())
    return Table(name, f"what reached the sink {sink.name}", columns, key=sink.key)


class _Folder:
    """The tables of one writer in the folder *home*, as they are when it is made."""

    def __init__(self, home: Path, declared: Iterable[Table], over: Interval) -> None:
        self._declared = {table.name: table for table in declared if (home / table.name / "_delta_log").is_dir()}
        self._over = over
        self._tables: dict[str, DeltaTable] = {}
        self._unreadable: dict[str, str] = {}
        self._connection = duckdb.connect()
        for name in self._declared:
            self._open(name, home / name)
        self._batches = self._finished()

    def judged(self, sub_topology: str | None) -> list[Judged]:
        """What is found of each table."""
        unreadable = [
            Judged(name, sub_topology, None, {"unreadable": 1}, {}, example=why)
            for name, why in self._unreadable.items()
        ]
        return unreadable + [
            self._judged(table, sub_topology) for table in self._declared.values() if table.name in self._tables
        ]

    def _open(self, name: str, path: Path) -> None:
        try:
            table = DeltaTable(str(path))
            self._connection.register(_stored(name), table.to_pyarrow_dataset())
        except (DeltaError, OSError, ValueError) as error:
            self._unreadable[name] = json.dumps({"error": str(error).splitlines()[0]})
        else:
            self._tables[name] = table

    def _finished(self) -> tuple[int, int] | None:
        """The first and the last batch that were finished in the interval; None without one."""
        if tables.BATCHES.name not in self._tables:
            return None
        finished = f'"{_stored(tables.BATCHES.name)}" WHERE {self._over.holds("finished_at")}'
        found = self._connection.execute(f"SELECT min(batch_id), max(batch_id) FROM {finished}")
        ((first, last),) = found.fetchall()
        return None if first is None else (first, last)

    def _judged(self, table: Table, sub_topology: str | None) -> Judged:
        stored = self._tables[table.name]
        there = {field.name: field.type for field in stored.schema().fields}
        wanted = {field.name: field.type for field in Schema.from_arrow(arrow_schema(table)).fields}
        missing = sorted({*wanted, *table.key} - there.keys())
        wrong = sorted(name for name in wanted.keys() & there.keys() if there[name] != wanted[name])
        schema = {"unreadable": 0, "missing_columns": len(missing), "wrong_types": len(wrong)}
        found = Judged(table.name, sub_topology, stored.version(), schema, {})
        if missing or wrong:
            return replace(found, example=json.dumps({"missing_columns": missing, "wrong_types": wrong}))
        rows, *counts, example, culprit = self._counted(table)
        if not rows:
            return found
        return replace(
            found,
            counts={name: n for name, n in zip(COUNTS, counts, strict=True) if name in _promised(table)},
            batch_id=None if table.name in {*ABOUT, *OF_PATHS} or self._batches is None else self._batches[1],
            rows=rows,
            culprit=culprit,
            example=example,
        )

    def _counted(self, table: Table) -> tuple[Any, ...]:
        """How many rows of *table* are judged, COUNTS of them, and one that breaks the contract."""
        told_by = table.key or [name for name in table.names if name in PLACE]
        key = ", ".join(f"'{name}': \"{name}\"" for name in told_by)
        culprit = next((name for name in ("operator", "source") if name in table.names), "NULL")
        conditions = _conditions(table)
        held = (" AND ".join(f"({each})" for each in conditions.get(rule, {}).values()) or "true" for rule in Rule)
        broken = ", ".join(
            f"(NOT coalesce({each}, false))::int AS {rule}" for each, rule in zip(held, Rule, strict=True)
        )
        whole = SUMS.get(table.name)
        rows = (
            f"SELECT {{{key}}} AS key, 1 AS n, {whole.whole if whole else 0} AS amount, {culprit} AS culprit, {broken}"
        )
        rows += f" FROM {self._rows(table.name)}"
        if whole and whole.of in self._tables:
            rows += f" UNION ALL SELECT {{{key}}}, 0, -({whole.parts}), {culprit}, 0, 0, 0 FROM {self._rows(whole.of)}"
        asked = COUNTED.format(keys="greatest(n - 1, 0)" if table.key else "0", rows=rows)
        return self._connection.execute(asked).fetchall()[0]

    def _rows(self, name: str) -> str:
        """SQL: the rows of the table *name* that are to be judged."""
        if name in ABOUT:
            is_judged = self._over.holds(ABOUT[name])
        elif name in OF_PATHS and tables.CRITICAL_PATHS.name in self._tables:
            is_judged = f"window_start IN (SELECT window_start FROM {self._rows(tables.CRITICAL_PATHS.name)})"
        elif self._batches:
            is_judged = "batch_id BETWEEN {} AND {}".format(*self._batches)
        else:
            is_judged = "false"
        return f'"{_stored(name)}" WHERE {is_judged}'


def _stored(name: str) -> str:
    return f"stored {name}"


def _conditions(table: Table) -> Conditions:
    return CONDITIONS.get(tables.HOP.name if table.name.startswith("hop_") else table.name, {})


def _promised(table: Table) -> set[str]:
    """Which of COUNTS the contract of *table* is about."""
    rules = {rule.value for rule, named in _conditions(table).items() if named}
    return rules | ({KEYS} if table.key else set()) | ({Rule.RELATIONS.value} if table.name in SUMS else set())
