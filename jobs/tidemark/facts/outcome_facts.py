"""Answers questions about the updates of operators: outcomes, newest results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import polars as pl

from tidemark.facts.fact_tables import FactTables, has_rows
from tidemark.model.tables.catalog import COUNTED, OPERATOR_BATCHES

LATELY = 5
""""Lately" is the last so many batches with records."""
GAVE = pl.col("emitted") + pl.col("passed") + pl.col("repeated").fill_null(0)
"""Results that an operator sent on."""
ALL = pl.lit(value=True)
"""The condition that every row fulfils."""


class OutcomeFacts:
    """The updates of `operator_batches` with their batches, by batch and operator.

    Rows without an update are left out. They are in the order of batches. `gave` is the number of updates that were
    sent on.
    """

    def __init__(self, tables: FactTables) -> None:
        self._tables, self._since = tables, cache(partial(_outcomes, tables))
        # Each operator is asked for by those after it and by several rules.
        self.since_last_result, self.lately = cache(self._since_last_result), cache(self._lately)

    def _of_operator(self, operator: str, has_answer: Callable[[pl.DataFrame], bool]) -> pl.DataFrame:
        def read(first: int) -> pl.DataFrame:
            outcomes = self._since(first)
            return outcomes.of.get(operator, outcomes.none)

        return self._tables.recent_first(read, has_answer)

    def newest(self, operator: str, condition: pl.Expr = ALL, *, n: int = 1) -> pl.DataFrame:
        """Returns the newest *n* rows about *operator* with *condition*."""
        rows = self._of_operator(operator, lambda recent: recent.filter(condition).height >= n)
        return rows.filter(condition).tail(n)

    def since_last(self, operator: str, condition: pl.Expr) -> pl.DataFrame:
        """Returns the rows about *operator* after its newest with *condition*.

        Without such a row it returns all.
        """
        rows = self._of_operator(operator, lambda recent: has_rows(recent.filter(condition)))
        is_later = pl.col("batch_id") > pl.col("batch_id").filter(condition).max()
        return rows.filter(is_later.fill_null(value=True))

    def _since_last_result(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* after its newest batch with results."""
        return self.since_last(operator, pl.col("gave") > 0)

    def recently(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* of its recent batches with records, and of its last LATELY at least."""
        is_read = pl.col("records_in") > 0
        return self._of_operator(operator, lambda recent: recent.filter(is_read).height >= LATELY).filter(is_read)

    def _lately(self, operator: str) -> pl.DataFrame:
        """Returns the rows about *operator* of its last LATELY batches with records."""
        return self.newest(operator, pl.col("records_in") > 0, n=LATELY)


@dataclass(frozen=True)
class _Outcomes:
    """Rows by operator; *none* has their columns."""

    of: Mapping[str, pl.DataFrame]
    none: pl.DataFrame


def _outcomes(tables: FactTables, first: int) -> _Outcomes:
    """Returns the outcomes of the batches from *first* on."""
    rows = tables.rows(OPERATOR_BATCHES, first).select("batch_id", "operator", "kind", "newest_ms", *COUNTED).collect()
    # An operator without updates has a row for its tasks, and one in which its skip rate falls to 0.
    counted = rows.filter(pl.any_horizontal(pl.col(COUNTED) > 0)).with_columns(gave=GAVE)
    with_batches = counted.join(tables.batches_from(first), on="batch_id")
    rows_in_order = with_batches.sort("batch_id", maintain_order=True)
    parts = rows_in_order.partition_by("operator", maintain_order=True) if rows_in_order.height else []
    return _Outcomes({of["operator"][0]: of for of in parts}, rows_in_order.clear())
