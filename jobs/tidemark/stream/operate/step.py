"""The base of all operator kinds: what the engine asks of an operator.

A kind is one file of this folder, and one line of `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import polars as pl

from tidemark.kernels.expressions import Expressions
from tidemark.spec.operators import Operator
from tidemark.spec.topology import Topology
from tidemark.stream.batch import Moment
from tidemark.stream.operate.mistakes import ColumnMistake, Schema
from tidemark.stream.state import HELD, Memory, Moves

Reference = Callable[[str], pl.DataFrame]
"""Reads the newest version of the Delta table at a place that a join names."""
Origins = Mapping[str, str | None]
"""By column, the column of the source that it is; None: it is calculated on the way."""

BEFORE_TIME = Moment(was_watermark_ms=None, watermark_ms=None, held_by=None, was_decided_at_ms=None, decided_at_ms=0)


@dataclass
class Run:
    """What one operator did in one batch.

    `output`: the records that the next operators read; `times`: of what it finished, how many of each record time and
    task; `counts`: updates by outcome; `skipped`: suppressed updates per task; `asserted`: all updates of an operator
    that judges them, sent on or not, which of a table are its versions; `rows`: what its tables get, by table;
    clocks (epoch ms): when it began, when its result was there, and how long it had waited for a sibling branch before
    it began.
    """

    output: pl.DataFrame
    times: pl.DataFrame
    counts: Counter[str]
    rows: dict[str, pl.DataFrame] = field(default_factory=dict)
    skipped: Mapping[int, int] = field(default_factory=dict)
    asserted: pl.DataFrame = field(default_factory=pl.DataFrame)
    started_at_ms: int = 0
    finished_at_ms: int = 0
    queued_ms: int = 0


@dataclass(frozen=True)
class Shared:
    """What the operators of *topology* have in common.

    `schemas` are those of their outputs, filled in order; `updates` names operators whose records are updates of a
    table, and `terminals` those that no other one reads.
    """

    topology: Topology
    reference: Reference
    updates: Collection[str]
    terminals: Collection[str]
    sql: Expressions = field(default_factory=Expressions)
    memory: Memory = field(default_factory=Memory)
    schemas: dict[str, Mapping[str, pl.DataType]] = field(default_factory=dict)

    @property
    def failed(self) -> list[pl.DataFrame]:
        """The records for which SQL failed in this run; a result that is repeated has failed before."""
        return [rows.filter(HELD) if HELD in rows.columns else rows for rows in self.sql.failed]

    @property
    def failed_n(self) -> int:
        """Count the records of `failed`."""
        return sum(rows.height for rows in self.failed)


Op = TypeVar("Op", bound=Operator)


class Step(ABC, Generic[Op]):
    """An operator that can run: the kernel of its kind, with what it keeps between batches.

    The static methods answer from the topology file alone, before anything runs.
    """

    def __init__(self, operator: Op, shared: Shared) -> None:
        self.operator, self.shared = operator, shared

    @staticmethod
    def mistakes(operator: Op, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterable[ColumnMistake]:
        """Return what does not fit the *columns* that *operator* reads; its *wrong* keys were refused before."""
        return ()

    @staticmethod
    def meaning(operator: Op) -> dict[str, str]:
        """Return by name what *operator* keeps means, in words that differ when the meaning does."""
        return {}

    @staticmethod
    def key(operator: Op) -> tuple[str, ...] | None:
        """Return the columns by which *operator* keeps rows or their order: empty is the record's key, None nothing."""
        return None

    @staticmethod
    def origins(operator: Op, read: Origins) -> Origins:
        """Return where the columns that *operator* hands on, and its key, come from; *read* has it of what it reads."""
        return read

    @staticmethod
    def comment(operator: Op, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Return what *column* of its output is, with the columns that it *read*; *ask* says it of another operator."""
        return ask(operator.inputs[0])

    def prepare(self) -> None:
        """Make room for what it keeps; raises InvalidArgument where it does not fit what it reads."""

    def schema(self) -> Mapping[str, pl.DataType]:
        """Return the columns of its output, from a run over no records."""
        inputs = [pl.DataFrame(schema=self.shared.schemas[name]) for name in self.operator.inputs]
        return self.run(inputs, Moves(), BEFORE_TIME).output.schema

    @abstractmethod
    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Decide what becomes of *inputs*; what is to be kept goes into *moves*."""
