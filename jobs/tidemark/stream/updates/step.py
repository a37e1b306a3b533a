"""The base of all kinds of operators: what the engine asks of an operator.

A kind is one file in `stream/operate/`, and one line of its `registry.py`.
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
"""Returns the rows of a Delta table that a join names; the argument is its path below the warehouse."""
Origins = Mapping[str, str | None]
"""For each column, the column of the source from which it is handed on unchanged; None where it is calculated."""

# The times of a run over no records, at the start, which only finds the columns of the output.
BEFORE_TIME = Moment(was_watermark_ms=None, watermark_ms=None, held_by=None, was_decided_at_ms=None, decided_at_ms=0)


@dataclass
class Run:
    """The result of one operator in one batch.

    Attributes:
        output: the records that the next operators read.
        times: how many records the operator finished, by record time and task.
        counts: updates by outcome.
        rows: the rows of its tables, by their name in the journal entry.
        skipped: suppressed updates, per task.
        asserted: all updates that the operator judged, sent on or not. For a `table` they are its versions.
        started_at_ms: when the operator began, epoch ms UTC.
        finished_at_ms: when its result was there, epoch ms UTC.
        queued_ms: how long it had waited for a sibling branch before it began.
        sample: for a source, the fields of some records.
        disorder: for a source, the number of records per bucket of their lag behind the watermark.
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
    """The things that all operators of a topology use.

    Attributes:
        topology: the topology.
        reference: reads joined Delta tables.
        updates: the operators whose records are updates of a table.
        terminals: the operators that no other operator reads.
        event_times: by operator, the columns of its output that are the event time of a source.
        sql: evaluates SQL, and collects the records for which it failed.
        memory: the states.
        schemas: the columns of each operator's output. Operators are prepared in order, and each adds its own.
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
        """The records for which SQL failed in this run, without repeated results, which have failed before."""
        return [rows.filter(HELD) if HELD in rows.columns else rows for rows in self.sql.failed]

    @property
    def failed_n(self) -> int:
        """The number of records in `failed`."""
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

        *sql* checks expressions; the *wrong* keys of the operator were refused already.
        """
        return ()

    @staticmethod
    def meaning(operator: Op) -> dict[str, str]:
        """Returns a text for each thing that *operator* keeps, by its name, such as "a table by id".

        If the text differs after a change of the topology file, what was kept does not fit any more.
        """
        return {}

    @staticmethod
    def key(operator: Op) -> tuple[str, ...] | None:
        """Returns the columns of the key by which *operator* keeps rows, or the order of rows.

        Empty stands for the record's own key. None if the operator keeps neither rows by key nor their order.
        """
        return None

    @staticmethod
    def holder_of_key(operator: Op) -> str:
        """Returns the operator whose output has the columns of `key`."""
        return operator.name

    @staticmethod
    def key_of_error(operator: Op, error: Exception) -> str:
        """Returns the key of the topology file that *error* of a run is about, or empty for the whole operator."""
        return ""

    @staticmethod
    def origins(operator: Op, read: Origins) -> Origins:
        """Returns the origins of the columns that *operator* hands on, and of its key.

        *read* has the origins of the columns that it reads.
        """
        return read

    @staticmethod
    def comment(operator: Op, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Returns a description of *column* in the output of *operator*.

        *read* are the columns that the operator reads; *ask* returns the description of the column in another operator.
        """
        return ask(operator.inputs[0])

    def compared(self) -> tuple[str, ...] | None:
        """Returns the columns, or SQL, whose values decide if an update counts as unchanged; None if none is judged."""
        return None

    def prepare(self) -> None:
        """Makes room for the states of the operator.

        Raises:
            InvalidArgument: the operator does not fit the columns that it reads.
        """

    def kept_columns(self) -> Schema:
        """Returns the columns of the states that are kept between batches, whose types must not change."""
        return {}

    def schema(self) -> Mapping[str, pl.DataType]:
        """Returns the columns of the output, which a run over no records finds."""
        inputs = [pl.DataFrame(schema=self.shared.schemas[name]) for name in self.operator.inputs]
        return self.run(inputs, Moves(), BEFORE_TIME).output.schema

    @abstractmethod
    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Runs the operator over *inputs*; changes of states go into *moves*."""
