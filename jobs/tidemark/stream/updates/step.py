"""Defines what the engine asks of an operator.

It is the base of all operator kinds. A kind is one file of this folder, and one line of `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import polars as pl

from tidemark.kernels.sql.expressions import Expressions
from tidemark.model.kinds.operator import Operator
from tidemark.model.topology import Topology
from tidemark.semantics.schema_watch import NO_SAMPLE, FieldSample
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import HELD, Memory, Moves
from tidemark.stream.updates.mistakes import ColumnMistake, Schema

Reference = Callable[[str], pl.DataFrame]
"""Reads the newest version of a Delta table that a join names.

The argument is its place.
"""
Origins = Mapping[str, str | None]
"""The source column that each column is.

None: it is calculated on the way.
"""

# Stands for the time of a run over no records, at start.
BEFORE_TIME = Moment(was_watermark_ms=None, watermark_ms=None, held_by=None, was_decided_at_ms=None, decided_at_ms=0)


@dataclass
class Run:
    """The result of one operator in one batch.

    `output`: the records that the next operators read; `times`: how many records of each record time and task it
    finished; `counts`: updates by outcome; `rows`: the rows of its tables, by their name in an entry; `skipped`:
    suppressed updates per task; `asserted`: all updates of an operator that judges them, sent on or not (those of a
    table are its versions); clocks (epoch ms UTC): when it began, when its result was there, and how long (ms) it had
    waited for a sibling branch before it began; of a source, `sample`: the fields of some records, and `disorder`:
    records per bucket of their lag.
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
    sample: FieldSample = NO_SAMPLE
    disorder: pl.DataFrame = field(default_factory=pl.DataFrame)


@dataclass(frozen=True)
class StepContext:
    """The things that all operators of *topology* use.

    `schemas` are those of their outputs, filled in order; `updates` names operators whose records are updates of a
    table, and `terminals` those that no other operator reads. `event_times` has the columns of each operator's output
    that are the event time of a source.
    """

    topology: Topology
    reference: Reference
    updates: Collection[str]
    terminals: Collection[str]
    event_times: Mapping[str, frozenset[str]]
    sql: Expressions = field(default_factory=Expressions)
    memory: Memory = field(default_factory=Memory)
    schemas: dict[str, Mapping[str, pl.DataType]] = field(default_factory=dict)

    @property
    def failed(self) -> list[pl.DataFrame]:
        """Returns the records for which SQL failed in this run.

        A result that is repeated has failed before, and is omitted.
        """
        return [rows.filter(HELD) if HELD in rows.columns else rows for rows in self.sql.failed]

    @property
    def failed_n(self) -> int:
        """Counts the records of `failed`."""
        return sum(rows.height for rows in self.failed)


Op = TypeVar("Op", bound=Operator)


class OperatorStep(ABC, Generic[Op]):
    """Runs an operator: the kernel of its kind, with its states.

    The static methods answer from the topology file alone, before anything runs.
    """

    def __init__(self, operator: Op, shared: StepContext) -> None:
        self.operator, self.shared = operator, shared

    @staticmethod
    def mistakes(operator: Op, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterable[ColumnMistake]:
        """Returns what does not fit the *columns* that *operator* reads.

        The *wrong* keys of *operator* were refused before.
        """
        return ()

    @staticmethod
    def meaning(operator: Op) -> dict[str, str]:
        """Returns the meaning of each thing that *operator* keeps, by name.

        The words differ when the meaning does.
        """
        return {}

    @staticmethod
    def key(operator: Op) -> tuple[str, ...] | None:
        """Returns the columns by which *operator* keeps rows or their order.

        Empty: the record's key. None: it keeps neither.
        """
        return None

    @staticmethod
    def holder_of_key(operator: Op) -> str:
        """Returns the operator whose output has the columns of `key`."""
        return operator.name

    @staticmethod
    def key_of_error(operator: Op, error: Exception) -> str:
        """Returns the key of *operator* that *error* of its run is about.

        Empty where *error* is about the whole operator.
        """
        return ""

    @staticmethod
    def origins(operator: Op, read: Origins) -> Origins:
        """Returns where the columns that *operator* hands on come from.

        Its key is included; *read* has the origins of the columns that it reads.
        """
        return read

    @staticmethod
    def comment(operator: Op, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Returns a description of *column* of its output.

        *read* are the columns that it reads; *ask* returns the description in another operator.
        """
        return ask(operator.inputs[0])

    def compared(self) -> tuple[str, ...] | None:
        """Returns the columns of an update, or the SQL, by which it counts as unchanged; None if it judges none."""
        return None

    def prepare(self) -> None:
        """Prepares the states of the operator.

        Raises:
            InvalidArgument: It does not fit what it reads.
        """

    def kept_columns(self) -> Schema:
        """Returns the columns of what it keeps between batches, whose types must stay."""
        return {}

    def schema(self) -> Mapping[str, pl.DataType]:
        """Returns the columns of its output, from a run over no records."""
        inputs = [pl.DataFrame(schema=self.shared.schemas[name]) for name in self.operator.inputs]
        return self.run(inputs, Moves(), BEFORE_TIME).output.schema

    @abstractmethod
    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Runs the operator over *inputs*; changes of states go into *moves*."""
