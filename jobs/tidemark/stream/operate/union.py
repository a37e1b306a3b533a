"""Runs the kind `union`: the records of all its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import polars as pl

from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.steps import unite
from tidemark.model.kinds.union import Union
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import OperatorStep, Run


class UnionStep(OperatorStep[Union]):
    """Runs a union."""

    @staticmethod
    def comment(operator: Union, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Names the operators that have *column*."""
        return f"{column} of {' and '.join(operator.inputs)}"

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Puts the records of *inputs* one after the other."""
        output = unite(dict(zip(self.operator.inputs, inputs, strict=True)))
        return Run(output, times_of(output), Counter(records_in=output.height, passed=output.height))
