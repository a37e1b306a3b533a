"""The kind `union`: the records of all its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import polars as pl

from tidemark.kernels.facts import times_of
from tidemark.kernels.steps import united
from tidemark.spec.operators import Union
from tidemark.stream.batch import Moment
from tidemark.stream.operate.step import Run, Step
from tidemark.stream.state import Moves


class UnionStep(Step[Union]):
    """A union."""

    @staticmethod
    def comment(operator: Union, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Return the operators that have *column*."""
        return f"{column} of {' and '.join(operator.inputs)}"

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Put the records of *inputs* one after the other."""
        output = united(dict(zip(self.operator.inputs, inputs, strict=True)))
        return Run(output, times_of(output), Counter(records_in=output.height, passed=output.height))
