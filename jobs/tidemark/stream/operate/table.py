"""Runs the kind `table`: the latest value per key.

It keeps versions of the values where a join asks for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import polars as pl

from tidemark.graph import reached
from tidemark.kernels import META
from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.steps import MATCHED, pruned, table_updates, value_columns
from tidemark.model.kinds.table import KeyedTable, NewestRule
from tidemark.model.topology import Topology
from tidemark.selection import omit, outside
from tidemark.semantics.strategy import Strategy
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.keyed import KeyedStep
from tidemark.stream.updates.mistakes import ColumnMistake, Schema, unknown
from tidemark.stream.updates.step import Run, StepContext

HISTORY_MS = 3_600_000
"""How far behind the watermark a joined table keeps its versions by default (record time)."""


class TableStep(KeyedStep[KeyedTable]):
    """Runs a table."""

    def __init__(self, operator: KeyedTable, shared: StepContext) -> None:
        super().__init__(operator, shared)
        self.by_time = operator.newest_by is NewestRule.EVENT_TIME

    @staticmethod
    def mistakes(operator: KeyedTable, columns: Schema, *_: Expressions | Collection[str]) -> Iterable[ColumnMistake]:
        """Returns the names in `key` and `columns` that are no columns."""
        return unknown({"key": operator.key, "columns": operator.columns}, columns)

    @staticmethod
    def meaning(operator: KeyedTable) -> dict[str, str]:
        """Describes its key, and which row counts as the newest."""
        newest = ", the newest by event time" if operator.newest_by is NewestRule.EVENT_TIME else ""
        return {f"operators.{operator.name}": f"a table by {', '.join(operator.key)}{newest}"}

    @staticmethod
    def key(operator: KeyedTable) -> tuple[str, ...] | None:
        """Returns its key."""
        return operator.key

    @cached_property
    def history_ms(self) -> int | None:
        """How far behind the watermark versions are kept, or None if they are kept for ever."""
        return history_ms(self.shared.topology, self.operator.name)

    def version_schema(self) -> dict[str, pl.DataType]:
        """Returns the columns of a version: those of the table, and the record time from which the version is valid."""
        columns = omit(self.shared.schemas[self.operator.name], META)
        return {**columns, MATCHED: pl.Boolean(), "_valid_from_ms": pl.Int64()}

    def forget(self, watermark_ms: int | None) -> None:
        """Drops the versions that no accepted record can ask for."""
        if watermark_ms is None or self.history_ms is None:
            return
        versions, name = self.shared.memory.versions, self.operator.name
        versions[name] = pruned(versions[name], self.operator.key, before_ms=watermark_ms - self.history_ms)

    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns *records* as updates of their keys."""
        return table_updates(self.operator, records, self.compared())

    def compared(self) -> tuple[str, ...]:
        """Returns its `columns`, or, if it has none, all columns but the key and the event time.

        Every record has another event time: if that were compared, no record would repeat the one before.
        """
        read = self.operator.inputs[0]
        columns = value_columns(self.operator, [*self.shared.schemas[read]])
        return columns if self.operator.columns else tuple(outside(columns, self.shared.event_times[read]))

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Judges the records, and keeps them as versions if a join reads the table."""
        (records,) = inputs
        key = self.operator.key
        columns = [*key, *value_columns(self.operator, records.columns)]
        run = self.newest(records, moves, moment, [*columns, *META], finished=records)
        if self.operator.name in self.shared.memory.versions:
            # A deletion is a version, too: a match of nothing from its time on.
            valid = [pl.when(~pl.col("_deleted")).then(c).alias(c) for c in columns if c not in key]
            moves.versions[self.operator.name] = run.asserted.select(
                *key, *valid, (~pl.col("_deleted")).alias(MATCHED), _valid_from_ms="_timestamp_ms"
            )
        return run


def history_ms(topology: Topology, name: str) -> int | None:
    """Returns how far behind the watermark versions of the table *name* are kept for joins, or None for ever.

    This is the table's `history`, if it is set. Otherwise it is HISTORY_MS, or as long as results of windows before a
    join may be behind. Behind a periodic operator, which repeats results of any age, versions are kept for ever.
    """
    table = topology.operators[name]
    if isinstance(table, KeyedTable) and table.history_ms is not None:
        return table.history_ms
    operators, behind_ms = topology.operators, HISTORY_MS
    into_joins = [flow for join in operators.values() if join.joined_table == name for flow in join.flows]
    for before in reached(into_joins, topology.flows):
        emission = operators[before].emission
        if emission is not None and emission.strategy is Strategy.PERIODIC:
            return None
        if windows := operators[before].windows:
            behind_ms = max(behind_ms, windows.behind_ms)
    return behind_ms
