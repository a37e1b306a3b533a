"""The kind `cap`: sends on records whose column is at most a number."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from tidemark.kernels.updates.facts import times_of
from tidemark.model.kinds.operator import INPUT, DeclaredOperator
from tidemark.model.kinds.registry import register
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import required
from tidemark.stream.updates.mistakes import unknown
from tidemark.stream.updates.step import OperatorStep, Run

COLUMN = required("column", value_types.text(), example='"amount"', meaning="the column that is compared")
AT_MOST = required("at_most", value_types.count(), example="100", meaning="the largest value that is sent on")


@dataclass(frozen=True, kw_only=True)
class Cap(DeclaredOperator):
    kind: ClassVar[str] = "cap"
    keys = (INPUT, COLUMN, AT_MOST)
    shaping: ClassVar[frozenset[str]] = frozenset({"input"})

    column: str
    at_most: int

    def sends_updates(self, *, reads_updates):
        return reads_updates

    @classmethod
    def read(cls, values, common):
        return cls(**common, inputs=(values[INPUT],), column=values[COLUMN], at_most=values[AT_MOST])


class CapStep(OperatorStep[Cap]):
    @staticmethod
    def mistakes(operator, columns, sql, wrong):
        return unknown({"column": (operator.column,)}, columns)

    def run(self, inputs, moves, moment):
        (records,) = inputs
        kept = records.filter(pl.col(self.operator.column) <= self.operator.at_most)
        counts = Counter(records_in=records.height, passed=kept.height, filtered=records.height - kept.height)
        return Run(kept, times_of(records), counts)


register(Cap)
