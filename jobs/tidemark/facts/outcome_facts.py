"""Answers questions about the updates of operators: their outcomes, and the newest results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import polars as pl

from tidemark.facts.fact_tables import FactTables, has_rows
from tidemark.model.tables.catalog import COUNTED, OPERATOR_BATCHES

LATELY = 5
""""Lately" means the last LATELY batches with records."""
GAVE = pl.col("emitted") + pl.col("passed") + pl.col("repeated").fill_null(0)
"""Results that an operator sent on."""
ALL = pl.lit(value=True)
"""The condition that every row fulfils."""


class OutcomeFacts:
    """The rows of `operator_batches` about updates, with the columns of their batches, in the order of batches.

    Rows without an update are left out. The column `gave` is how many updates the operator sent on.
    """

    def __init__(self, tables: FactTables) -> None:
        self._tables, self._since = tables, cache(partial(_outcomes, tables))
        # Operators downstream and several rules ask for the same operator.
        self.since_last_result, self.lately = cache(self._since_last_result), cache(self._lately)

    def _of_operator(self, operator: str, has_answer: Callable[[pl.DataFrame], bool]) -> pl.DataFrame:
        def read(first: int) -> pl.DataFrame:
            outcomes = self._since(first)
            return outcomes.of.get(operator, outcomes.none)

        return self._tables.recent_first(read, has_answer)

    def newest(self, operator: str, condition: pl.Expr = ALL, *, n: int = 1) -> pl.DataFrame:
        """Returns the newest *n* rows about *operator* that fulfil *condition*."""
        rows = self._of_operator(operator, lambda recent: recent.filter(condition).height >= n)
        return rows.filter(condition).tail(n)

    def since_last(self, operator: str, condition: pl.Expr) -> pl.DataFrame:
        """Returns the rows about *operator* after the newest one that fulfils *condition*; all if none does."""
        rows = self._of_operator(operator, lambda recent: has_rows(recent.filter(condition)))
        is_later = pl.col("batch_id") > pl.col("batch_id").filter(condition).max()
        return rows.filter(is_later.fill_null(value=True))

    def _since_last_result(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* after its newest batch with results."""
        return self.since_last(operator, pl.col("gave") > 0)

    def recently(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* of recent batches with records, and at least of the last LATELY of them."""
        is_read = pl.col("records_in") > 0
        return self._of_operator(operator, lambda recent: recent.filter(is_read).height >= LATELY).filter(is_read)

    def _lately(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* of its last LATELY batches with records."""
        return self.newest(operator, pl.col("records_in") > 0, n=LATELY)


@dataclass(frozen=True)
class _Outcomes:
    """The rows of each operator; `none` has the same columns and no rows."""

    of: Mapping[str, pl.DataFrame]
    none: pl.DataFrame


def _outcomes(tables: FactTables, first: int) -> _Outcomes:
    """Returns the outcomes of the batches from *first* on."""
    rows = tables.rows(OPERATOR_BATCHES, first).select("batch_id", "operator", "kind", "newest_ms", *COUNTED).collect()
    # An operator without updates has a row for its tasks, and one in which its skip rate falls to 0.
    counted = rows.filter(pl.any_horizontal(pl.col(COUNTED) > 0)).with_columns(gave=GAVE)
    with_batches = counted.join(tables.batches_from(first), on="batch_id")
    rows_in_order = with_batches.sort("batch_id", maintain_order=True)
    frames = rows_in_order.partition_by("operator", maintain_order=True) if rows_in_order.height else []
    return _Outcomes({frame["operator"][0]: frame for frame in frames}, rows_in_order.clear())
