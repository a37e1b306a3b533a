"""Prepares and runs the operators of a topology."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import polars as pl

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.kernels import payload
from tidemark.kernels.sql.expressions import PROBLEM
from tidemark.kernels.updates.proofs import quarantine_rows
from tidemark.kernels.updates.steps import InvalidColumns
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.operator_graph import event_times, updates_tables
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.model.toml_operators import misshapen, mistakes_of
from tidemark.model.topology import Topology
from tidemark.selection import in_order_of
from tidemark.stream.journal.batch import Moment
from tidemark.stream.operate.join import JoinStep
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.source import HopSourceStep
from tidemark.stream.operate.table import TableStep
from tidemark.stream.state.memory import Memory, Moves
from tidemark.stream.updates.mistakes import ColumnMistake, reads
from tidemark.stream.updates.step import OperatorStep, Reference, Run, StepContext
from tidemark.stream.updates.taking_back import take_back_later

_WITHOUT_MISTAKES: deque[tuple[Topology, Mapping[str, Mapping[str, pl.DataType]]]] = deque(maxlen=8)
"""Topologies in which no mistake was found, each with the columns of its operators.

A process prepares the steps of a topology for each of its streams and shards. Only the first has to find the columns.
"""


class Steps:
    """The operators of a topology, and the memory that they change.

    At the start every operator runs once over no records. This finds the columns of its output, and refuses SQL and
    columns that do not fit. A process does this once for each topology.

    Args:
        topology: the topology.
        reference: reads joined Delta tables.
        earlier_mistakes: mistakes that were found in the file before. *topology* lacks the keys that have them.
        schemas: the columns of all outputs, if they are known: then nothing is run or refused.
        checks_sql: check all SQL of the file. Without that, SQL is refused only if it fails in the run over no records,
            which is enough for a topology whose streams have run.
    """

    def __init__(
        self,
        topology: Topology,
        reference: Reference,
        earlier_mistakes: Sequence[InvalidSpec] = (),
        *,
        schemas: Mapping[str, Mapping[str, pl.DataType]] | None = None,
        checks_sql: bool = True,
    ) -> None:
        terminals = frozenset[str]().union(*(sub.terminals() for sub in topology.sub_topologies))
        self._topology = topology
        operators = topology.operators
        self._shared = StepContext(topology, reference, updates_tables(operators), terminals, event_times(operators))
        self._steps: dict[str, OperatorStep[Operator]] = {}
        self._checks_sql = checks_sql
        schemas = schemas or next((schemas for checked, schemas in [*_WITHOUT_MISTAKES] if checked == topology), None)
        if schemas is not None and not earlier_mistakes:
            for operator in topology.operators.values():
                self._prepare(operator, schemas[operator.name])
            return
        mistakes: list[InvalidSpec] = []
        for operator in topology.operators.values():
            mistakes += self._mistakes(operator, earlier_mistakes)
        if mistakes:
            raise InvalidSpec("\n".join(map(str, mistakes)))
        # The columns of a Delta table that a join reads are not in the topology, and may change.
        is_fixed = not any(operator.joined_delta for operator in topology.operators.values())
        if checks_sql and is_fixed and not earlier_mistakes:
            _WITHOUT_MISTAKES.append((topology, dict(self.schemas)))

    @property
    def memory(self) -> Memory:
        """The states of the operators."""
        return self._shared.memory

    @property
    def schemas(self) -> Mapping[str, Mapping[str, pl.DataType]]:
        """The columns of each operator's output."""
        return self._shared.schemas

    def _mistakes(self, operator: Operator, earlier_mistakes: Sequence[InvalidSpec]) -> list[InvalidSpec]:
        """Prepares *operator*, or returns the mistakes that prevent it.

        Nothing is done if an operator that it reads has mistakes. If *earlier_mistakes* leave its output undefined,
        *operator* is checked, but not prepared.
        """
        path = f"operators.{operator.name}"
        known = mistakes_of(operator.name, earlier_mistakes)
        wrong = {mistake.key.removeprefix(f"{path}.") for mistake in known}
        # Mistakes are reported once, where they are, and not again downstream.
        if not self.schemas.keys() >= {*self._topology.upstreams[operator.name]}:
            return []
        mistakes = self._misfits(operator, wrong) if self._checks_sql else []
        if not mistakes and not misshapen(known):
            try:
                self._prepare(operator)
            except (InvalidArgument, pl.exceptions.PolarsError) as error:
                mistakes = self._refused(operator, error)
        errors: list[InvalidSpec] = []
        for mistake in mistakes:
            key = f"{path}.{mistake.key}" if mistake.key else path
            errors.append(InvalidSpec.at(self._topology.file, key, mistake.problem, mistake.remedy))
        return errors

    def _misfits(self, operator: Operator, wrong: Collection[str]) -> list[ColumnMistake]:
        """Returns what in *operator* does not fit the columns that it reads.

        Nothing more is said about the *wrong* keys of *operator*, which have a mistake already, and about what names
        them.
        """
        schema = self.schemas[operator.inputs[0]] if operator.inputs else {}
        columns = in_order_of(payload(schema), schema)
        # Joins and unions show what does not fit when they run.
        misfits = step_of(operator).mistakes(operator, columns, self._shared.sql, wrong)
        return [mistake for mistake in misfits if mistake.key not in wrong]

    def _prepare(self, operator: Operator, schema: Mapping[str, pl.DataType] | None = None) -> None:
        """Prepares *operator*. The columns of its output are *schema*, if that is given, and else are found here."""
        step = self._steps[operator.name] = step_of(operator)(operator, self._shared)
        step.prepare()
        self._shared.schemas[operator.name] = step.schema() if schema is None else schema

    def _refused(self, operator: Operator, error: Exception) -> list[ColumnMistake]:
        """Returns the mistakes in *operator* that the *error* of its run over no records shows."""
        columns = dict.fromkeys(chain.from_iterable(payload(self.schemas[name]) for name in operator.inputs))
        problems = error.problems if isinstance(error, InvalidColumns) else [_without_columns(error)]
        key = _key_of(operator, error)
        return [ColumnMistake(key, f"does not fit what it reads: {problem}", reads(columns)) for problem in problems]

    def compared(self) -> dict[str, tuple[str, ...]]:
        """Returns, for each operator that judges updates, the columns by which it compares them."""
        columns = {name: step.compared() for name, step in self._steps.items()}
        return {name: compared for name, compared in columns.items() if compared is not None}

    def version_schema(self, table: str) -> dict[str, pl.DataType]:
        """Returns the columns of each version of *table* for joins."""
        step = self._steps[table]
        assert isinstance(step, TableStep)
        return step.version_schema()

    def joined_columns(self, join: str) -> Mapping[str, pl.DataType]:
        """Returns the columns of the Delta table of *join*, as it was read last."""
        return self._join(join).joined_columns

    def keys_with_several_rows(self, join: str) -> int:
        """Returns how many keys have several rows in the Delta table of *join*."""
        return self._join(join).keys_with_several_rows()

    def _join(self, name: str) -> JoinStep:
        step = self._steps[name]
        assert isinstance(step, JoinStep)
        return step

    def apply(self, moves: Moves, *, watermark_ms: int | None) -> None:
        """Applies the changes *moves* to the memory, and drops versions that no record can ask for any more."""
        self.memory.apply(moves)
        # No record that is still accepted can ask for these versions.
        self.forget(moves.versions, watermark_ms=watermark_ms)

    def forget(self, tables: Iterable[str], *, watermark_ms: int | None) -> None:
        """Drops versions of *tables* that no accepted record can ask for."""
        for name in tables:
            step = self._steps[name]
            assert isinstance(step, TableStep)
            step.forget(watermark_ms)

    def keeps_states(self, operator: Operator) -> bool:
        """Returns True if *operator* has states of keys at present."""
        states = self.memory.states.get(operator.name)
        return states is not None and not states.is_empty

    def take_back(self, refused: Mapping[str, Sequence[str]]) -> dict[str, pl.DataFrame]:
        """Makes operators forget the updates that tables *refused*, so that the next update of the key is sent.

        *refused* has the keys by sink.

        Returns:
            The last sent updates as they are stored now, by operator.
        """
        return take_back_later(self._shared, refused)

    def kept_columns(self, operator: Operator) -> Mapping[str, pl.DataType]:
        """Returns the columns of the states that *operator* keeps between batches."""
        return self._steps[operator.name].kept_columns()

    def waiting(self, source: Source) -> pl.DataFrame:
        """Returns the records of *source* that wait for other partitions, with their keys."""
        return self.memory.waiting[source.name].all()

    def hop_records(self, source: HopSource, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns *rows* of a hop as records for the readers of *source*."""
        return self._hop(source).records(rows)

    def hop_columns(self, source: HopSource) -> dict[str, pl.DataType]:
        """Returns the columns that are handed on to *source*."""
        return self._hop(source).columns

    def _hop(self, source: HopSource) -> HopSourceStep:
        step = self._steps[source.name]
        assert isinstance(step, HopSourceStep)
        return step

    def run(self, operator: Operator, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Runs *operator* over *inputs* at *moment*, and adds its changes of states to *moves*.

        Records for which its SQL failed become rows of `dead_letters`.
        """
        # Failures are collected per run of one operator.
        self._shared.sql.failed.clear()
        run = self._steps[operator.name].run(inputs, moves, moment)
        dead = [run.rows[DEAD_LETTERS.name]] if DEAD_LETTERS.name in run.rows else []
        for rows in self._shared.failed:
            if rows.height:
                dead.append(quarantine_rows(operator.name, rows, "sql_error", pl.col(PROBLEM)))
        if dead:
            run.rows[DEAD_LETTERS.name] = pl.concat(dead, how="diagonal")
        return run


def _key_of(operator: Operator, error: Exception) -> str:
    """Returns the key of *operator* in the file that *error* is about; empty for the whole operator."""
    if isinstance(error, InvalidColumns):
        return error.key
    return step_of(operator).key_of_error(operator, error)


def _without_columns(error: Exception) -> str:
    """Returns the text of *error* without polars' list of columns."""
    # polars lists all columns of the frame, Tidemark's own included.
    return str(error).splitlines()[0].partition("; valid columns")[0]
