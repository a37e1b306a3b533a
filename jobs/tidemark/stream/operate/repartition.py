"""Runs the kind `repartition`: hands records on to the next sub-topology by another key, through a table: the hop.

With an `id` the records are updates, and an update that changes nothing is suppressed. Otherwise all are handed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import polars as pl

from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.proofs import suppressed_rows
from tidemark.kernels.updates.steps import (
    hop_rows,
    repartition_columns,
    repartition_updates,
    stream_hop_rows,
    with_old_value,
)
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.keyed import KeyedStep, with_key
from tidemark.stream.updates.mistakes import ColumnMistake, Schema, unknown
from tidemark.stream.updates.step import Run


class RepartitionStep(KeyedStep[Repartition]):
    """Runs a repartition."""

    @staticmethod
    def mistakes(operator: Repartition, columns: Schema, *_: Expressions | Collection[str]) -> Iterable[ColumnMistake]:
        """Returns the names in `id`, `key` and `columns` that are no columns."""
        return unknown({"id": operator.id, "key": operator.key, "columns": operator.columns}, columns)

    @staticmethod
    def meaning(operator: Repartition) -> dict[str, str]:
        """Describes its id, key and partitions."""
        id_, key = ", ".join(operator.id) or "no id", ", ".join(operator.key)
        return {f"operators.{operator.name}": f"a repartition of {id_} by {key} into {operator.partitions}"}

    @staticmethod
    def key(operator: Repartition) -> tuple[str, ...] | None:
        """Returns its id, of which it keeps the last update, or its key, whose records it keeps in order."""
        return operator.id or operator.key

    @staticmethod
    def holder_of_key(operator: Repartition) -> str:
        """Returns its input, which has the columns of the key: in a hop they are one text."""
        return operator.inputs[0]

    def kept_columns(self) -> Schema:
        """Returns the columns of its key and its id, and the columns that it hands on."""
        read = self.shared.schemas[self.operator.inputs[0]]
        kept = {*self.operator.key, *self.operator.id, *self.operator.columns}
        return {name: kind for name, kind in read.items() if name in kept}

    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns *records* as updates of their ids."""
        return repartition_updates(self.operator, records)

    def compared(self) -> tuple[str, ...] | None:
        """Returns the columns that it hands on, if it judges updates."""
        return repartition_columns(self.operator) if self.operator.id else None

    def prepare(self) -> None:
        """Makes room for the last update of each id, if it has an id."""
        if self.operator.id:
            super().prepare()

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Makes the rows of the hop."""
        (records,) = inputs
        return self._hand_on_updates(records, moves, moment) if self.operator.id else self._hand_on_records(records)

    def _hand_on_records(self, records: pl.DataFrame) -> Run:
        operator = self.operator
        kept, bad = with_key(operator, records.filter(~pl.col("_deleted")), operator.key)
        rows = stream_hop_rows(operator, kept)
        filtered = int(records["_deleted"].sum())
        counts = Counter(records_in=records.height, passed=rows.height, filtered=filtered, fan_out=rows.height)
        counts["quarantined"] = records.height - filtered - kept.height
        return Run(rows, times_of(kept), counts, {operator.name: rows, DEAD_LETTERS.name: bad})

    def _hand_on_updates(self, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        operator, last = self.operator, self.shared.memory.stored[self.operator.name]
        updates, bad = with_key(operator, self.updates(records))
        stored = last.look_up(updates["_key"])
        emitted = self.emitted(updates, moves, moment)
        if emitted.held_before:
            # Updates that were held before this batch may be sent now, also of keys that do not occur in the batch.
            stored = last.look_up(emitted.judged.emitted["_key"])
        # Readers of the hop take the old value of the id away. Only the stored update has it.
        rows = hop_rows(operator, with_old_value(emitted.judged.emitted, stored))
        counts = emitted.counts + Counter(
            records_in=records.height, quarantined=records.height - updates.height, fan_out=rows.height
        )
        tables = {operator.name: rows, "suppressed": suppressed_rows(operator.name, emitted.judged)}
        tables |= {**self.state_rows(moves), DEAD_LETTERS.name: bad}
        return Run(rows, times_of(emitted.judged.emitted), counts, tables, emitted.judged.skipped)
