"""Runs the kind `join`: records with matching rows of a table.

It is a table of the topology, or a Delta table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import polars as pl

from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.proofs import as_late, late_rows
from tidemark.kernels.updates.steps import check_on, is_beyond, join_newest, join_valid, one_row_per_key
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.stream.journal.batch import Moment
from tidemark.stream.operate.table import TableStep
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import OperatorStep, Run, StepContext


class JoinStep(OperatorStep[Join]):
    """Runs a join."""

    def __init__(self, operator: Join, shared: StepContext) -> None:
        super().__init__(operator, shared)
        table = shared.topology.operators[operator.table] if operator.table else None
        # This step describes the versions of the table and their history; it does not run here.
        self._table = TableStep(table, shared) if isinstance(table, KeyedTable) else None
        self._rows, self._right, self._several = pl.DataFrame(), pl.DataFrame(), 0

    @staticmethod
    def key_of_error(operator: Join, error: Exception) -> str:
        """Returns `on`, or the key of its other side."""
        return "on" if isinstance(error, pl.exceptions.PolarsError) else "table" if operator.table else "delta"

    @staticmethod
    def comment(operator: Join, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Returns where *column* comes from: the records, or the table."""
        if column in read:
            return ask(operator.inputs[0])
        return ask(operator.table) if operator.table else f"{column} of the Delta table {operator.delta}"

    def prepare(self) -> None:
        """Has the table keep its versions."""
        if self._table is not None:
            self.shared.memory.version(self._table.operator.name, self._table.version_schema())

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Adds the columns of the matching rows."""
        records = inputs[0]
        if self._table is not None:
            return self._with_versions(self._table, records, moves, moment)
        rows = self.shared.reference(self.operator.delta or "")
        check_on(self.operator, records, rows)
        self._take(rows)
        output = join_newest(self.operator, records, self._right, updates=self._reads_updates)
        filtered = records.height - output.height
        counts = Counter(records_in=records.height, passed=output.height, filtered=filtered)
        return Run(output, times_of(records), counts)

    @property
    def joined_columns(self) -> Mapping[str, pl.DataType]:
        """Returns the columns of the Delta table, as it was read last."""
        return self._rows.schema

    def keys_with_several_rows(self) -> int:
        """Returns how many keys of the Delta table have several rows."""
        self._take(self.shared.reference(self.operator.delta or ""))
        return self._several

    def _take(self, rows: pl.DataFrame) -> None:
        # A version of the table is one frame, which is read once.
        if rows is not self._rows:
            self._rows = rows
            self._right, self._several = one_row_per_key(self.operator, rows)

    @property
    def _reads_updates(self) -> bool:
        return self.operator.name in self.shared.updates

    def _with_versions(self, table: TableStep, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        """Joins records with the versions of *table* valid at their time."""
        was_ms, behind_ms = moment.was_watermark_ms, table.history_ms
        kept_from_ms = None if was_ms is None or behind_ms is None else was_ms - behind_ms
        # A record that deletes its key looks nothing up.
        beyond = is_beyond(kept_from_ms) & ~pl.col("_deleted")
        # A record that asks for a version beyond the history of the table may be late.
        is_late = beyond & pl.lit(value=table.operator.is_strict)
        late, asking = records.filter(is_late), records.filter(~is_late)
        versions = self._versions(table.operator.name, moves)
        output = join_valid(self.operator, asking, versions, updates=self._reads_updates, kept_from_ms=kept_from_ms)
        counts = Counter(
            records_in=records.height,
            passed=output.height,
            filtered=asking.height - output.height,
            late=late.height,
            joined_beyond_history=asking.filter(beyond).height,
        )
        rows = {DEAD_LETTERS.name: late_rows(self.operator.name, as_late(late), was_ms, moment.held_by)}
        return Run(output, times_of(records), counts, rows)

    def _versions(self, table: str, moves: Moves) -> pl.DataFrame:
        """Returns all versions of *table* read so far, this batch's among them."""
        earlier = self.shared.memory.versions[table]
        return pl.concat([earlier, moves.versions[table]]) if table in moves.versions else earlier
