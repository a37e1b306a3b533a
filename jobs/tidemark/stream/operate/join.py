"""Runs the kind `join`: looks up the matching row of a table for each record.

The table is one of the topology, or a Delta table.
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
        # This step of the table only describes its versions and their history; the table runs elsewhere.
        self._table = TableStep(table, shared) if isinstance(table, KeyedTable) else None
        self._rows, self._right, self._duplicate_keys = pl.DataFrame(), pl.DataFrame(), 0

    @staticmethod
    def key_of_error(operator: Join, error: Exception) -> str:
        """Returns `on`, or the key that names the table."""
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
        """Adds the columns of the matching row to each record."""
        records = inputs[0]
        if self._table is not None:
            return self._with_versions(self._table, records, moves, moment)
        rows = self.shared.reference(self.operator.delta or "")
        check_on(self.operator, records, rows)
        self._use(rows)
        output = join_newest(self.operator, records, self._right, updates=self._reads_updates)
        filtered = records.height - output.height
        counts = Counter(records_in=records.height, passed=output.height, filtered=filtered)
        return Run(output, times_of(records), counts)

    @property
    def joined_columns(self) -> Mapping[str, pl.DataType]:
        """The columns of the Delta table, as it was read last."""
        return self._rows.schema

    def keys_with_several_rows(self) -> int:
        """Returns how many keys of the Delta table have more than one row."""
        self._use(self.shared.reference(self.operator.delta or ""))
        return self._duplicate_keys

    def _use(self, rows: pl.DataFrame) -> None:
        """Makes *rows* the right side of the join, with one row per key."""
        # The same version of the table is the same frame, for which this was done before.
        if rows is not self._rows:
            self._rows = rows
            self._right, self._duplicate_keys = one_row_per_key(self.operator, rows)

    @property
    def _reads_updates(self) -> bool:
        return self.operator.name in self.shared.updates

    def _with_versions(self, table: TableStep, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        """Joins each record with the version of *table* that is valid at its time."""
        was_ms, behind_ms = moment.was_watermark_ms, table.history_ms
        kept_from_ms = None if was_ms is None or behind_ms is None else was_ms - behind_ms
        # A record that deletes its key looks nothing up.
        beyond = is_beyond(kept_from_ms) & ~pl.col("_deleted")
        # If the table is strict, a record that is older than all versions that are kept is late.
        is_late = beyond & pl.lit(value=table.operator.is_strict)
        late, joined = records.filter(is_late), records.filter(~is_late)
        versions = self._versions(table.operator.name, moves)
        output = join_valid(self.operator, joined, versions, updates=self._reads_updates, kept_from_ms=kept_from_ms)
        counts = Counter(
            records_in=records.height,
            passed=output.height,
            filtered=joined.height - output.height,
            late=late.height,
            joined_beyond_history=joined.filter(beyond).height,
        )
        rows = {DEAD_LETTERS.name: late_rows(self.operator.name, as_late(late), was_ms, moment.held_by)}
        return Run(output, times_of(records), counts, rows)

    def _versions(self, table: str, moves: Moves) -> pl.DataFrame:
        """Returns all versions of *table* that were read so far, also in this batch."""
        earlier = self.shared.memory.versions[table]
        return pl.concat([earlier, moves.versions[table]]) if table in moves.versions else earlier
