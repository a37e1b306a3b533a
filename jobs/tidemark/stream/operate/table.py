"""The kind `table`: the latest value per key, with its versions where a join asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import polars as pl

from tidemark.kernels import META
from tidemark.kernels.expressions import Expressions
from tidemark.kernels.steps import MATCHED, pruned, table_updates, value_columns
from tidemark.semantics.strategy import Strategy
from tidemark.spec.operators import Aggregate, Join, KeyedTable, NewestBy, emission_of
from tidemark.spec.topology import Topology
from tidemark.stream.batch import Moment
from tidemark.stream.operate.keyed import KeyedStep
from tidemark.stream.operate.mistakes import ColumnMistake, Schema, unknown
from tidemark.stream.operate.step import Run, Shared
from tidemark.stream.state import Moves

HISTORY_MS = 3_600_000
"""For so long of record time a table that is joined keeps its versions, unless the file says otherwise."""


class TableStep(KeyedStep[KeyedTable]):
    """A table."""

    def __init__(self, operator: KeyedTable, shared: Shared) -> None:
        super().__init__(operator, shared)
        self.by_time = operator.newest_by is NewestBy.EVENT_TIME

    @staticmethod
    def mistakes(operator: KeyedTable, columns: Schema, *_: Expressions | Collection[str]) -> Iterable[ColumnMistake]:
        """Return what `key` and `columns` name that is no column."""
        return unknown({"key": operator.key, "columns": operator.columns}, columns)

    @staticmethod
    def meaning(operator: KeyedTable) -> dict[str, str]:
        """Return its key, and which row is the newest."""
        newest = ", the newest by event time" if operator.newest_by is NewestBy.EVENT_TIME else ""
        return {f"operators.{operator.name}": f"a table by {', '.join(operator.key)}{newest}"}

    @staticmethod
    def key(operator: KeyedTable) -> tuple[str, ...] | None:
        """Return its key."""
        return operator.key

    @cached_property
    def history_ms(self) -> int | None:
        """For how long behind the watermark its versions are kept for joins; None: for ever."""
        return history_ms(self.shared.topology, self.operator.name)

    def version_schema(self) -> dict[str, pl.DataType]:
        """Return what is kept of each version: its columns, and the record time from which it holds."""
        columns = {c: kind for c, kind in self.shared.schemas[self.operator.name].items() if c not in META}
        return {**columns, MATCHED: pl.Boolean(), "_valid_from_ms": pl.Int64()}

    def forget(self, watermark_ms: int | None) -> None:
        """Drop the versions that no record still taken in can ask for."""
        if watermark_ms is None or self.history_ms is None:
            return
        versions, name = self.shared.memory.versions, self.operator.name
        versions[name] = pruned(versions[name], self.operator.key, before_ms=watermark_ms - self.history_ms)

    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return *records* as updates of their keys."""
        return table_updates(self.operator, records)

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Judge the rows that came, and keep them as versions where a join asks for these."""
        (records,) = inputs
        key = self.operator.key
        columns = [*key, *value_columns(self.operator, records.columns)]
        run = self.newest(records, moves, moment, [*columns, *META], finished=records)
        if self.operator.name in self.shared.memory.versions:
            valid = [pl.when(~pl.col("_deleted")).then(c).alias(c) for c in columns if c not in key]
            moves.versions[self.operator.name] = run.asserted.select(
                *key, *valid, (~pl.col("_deleted")).alias(MATCHED), _valid_from_ms="_timestamp_ms"
            )
        return run


def history_ms(topology: Topology, name: str) -> int | None:
    """For how long behind the watermark the versions of the table *name* are kept for joins; None: for ever.

    Unless its `history` says so that is HISTORY_MS, or as long as a result of the windows before a join may be behind;
    and for ever behind what is periodic, which repeats results however old.
    """
    table = topology.operators[name]
    if isinstance(table, KeyedTable) and table.history_ms is not None:
        return table.history_ms
    behind_ms = HISTORY_MS
    for join in topology.operators.values():
        if not isinstance(join, Join) or join.table != name:
            continue
        before = [*join.flows]
        while before:
            operator = topology.operators[before.pop()]
            emission = emission_of(operator)
            if emission is not None and emission.strategy is Strategy.PERIODIC:
                return None
            if isinstance(operator, Aggregate) and (windows := operator.windows):
                behind_ms = max(behind_ms, windows.behind_ms)
            before += operator.flows
    return behind_ms
