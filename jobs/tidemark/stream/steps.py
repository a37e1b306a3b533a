"""The operators of a topology, ready to run, and what they keep between batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.kernels import payload
from tidemark.kernels.aggregate_function import AggregateFunction
from tidemark.kernels.expressions import PROBLEM
from tidemark.kernels.proofs import quarantine_rows
from tidemark.kernels.steps import InvalidColumns
from tidemark.spec.operators import HopSource, Join, Operator, Source, emission_of
from tidemark.spec.toml_operators import misshapen, mistakes_of
from tidemark.spec.topology import Topology, updates_tables
from tidemark.stream.batch import Moment
from tidemark.stream.emitting import is_due
from tidemark.stream.operate.aggregate import AggregateStep
from tidemark.stream.operate.mistakes import ColumnMistake, reads
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.source import HopSourceStep
from tidemark.stream.operate.step import Reference, Run, Shared, Step
from tidemark.stream.operate.table import TableStep
from tidemark.stream.state import Memory, Moves


class Steps:
    """The operators of *topology*, and the memory that they read and move.

    At start every operator runs once over no records, which gives the schema of its output and refuses SQL and columns
    that do not fit. *known* are mistakes of the file that were found before: *topology* is then what it has without.
    """

    def __init__(self, topology: Topology, reference: Reference, known: Sequence[InvalidSpec] = ()) -> None:
        terminals = {name for sub in topology.sub_topologies for name in sub.terminals()}
        self._topology = topology
        self._shared = Shared(topology, reference, updates_tables(topology.operators), terminals)
        self._steps: dict[str, Step[Operator]] = {}
        mistakes = [mistake for operator in topology.operators.values() for mistake in self._mistakes(operator, known)]
        if mistakes:
            raise InvalidSpec("\n".join(map(str, mistakes)))

    @property
    def memory(self) -> Memory:
        """What the operators keep."""
        return self._shared.memory

    @property
    def schemas(self) -> Mapping[str, Mapping[str, pl.DataType]]:
        """The columns of each operator's output."""
        return self._shared.schemas

    def _mistakes(self, operator: Operator, known: Sequence[InvalidSpec]) -> list[InvalidSpec]:
        """Prepare *operator*, or return everything for which that cannot be; nothing where one that it reads has them.

        Where *known* mistakes leave open what it hands on, it is only looked at.
        """
        at = f"operators.{operator.name}"
        own = mistakes_of(operator.name, known)
        wrong = {mistake.key.removeprefix(f"{at}.") for mistake in own}
        if not self.schemas.keys() >= {*self._topology.upstreams[operator.name]}:
            return []
        found = self._misfits(operator, wrong)
        if not found and not misshapen(own):
            try:
                self._prepare(operator)
            except (InvalidArgument, pl.exceptions.PolarsError) as error:
                found = self._refused(operator, error)
        return [
            InvalidSpec.at(self._topology.file, f"{at}.{each.key}" if each.key else at, each.problem, each.remedy)
            for each in found
        ]

    def _misfits(self, operator: Operator, wrong: Collection[str]) -> list[ColumnMistake]:
        """Return what of *operator* does not fit the columns that it reads; joins and unions show it when they run.

        The *wrong* keys of *operator*, which had a mistake before, have no other, and neither has what names them.
        """
        schema = self.schemas[operator.inputs[0]] if operator.inputs else {}
        columns = {name: schema[name] for name in payload(schema)}
        found = step_of(operator).mistakes(operator, columns, self._shared.sql, wrong)
        return [mistake for mistake in found if mistake.key not in wrong]

    def _prepare(self, operator: Operator) -> None:
        step = self._steps[operator.name] = step_of(operator)(operator, self._shared)
        step.prepare()
        self._shared.schemas[operator.name] = step.schema()

    def _refused(self, operator: Operator, error: Exception) -> list[ColumnMistake]:
        """Return the *error* of an operator that ran over no records, as mistakes."""
        columns = dict.fromkeys(c for name in operator.inputs for c in payload(self.schemas[name]))
        problems = error.problems if isinstance(error, InvalidColumns) else [_without_columns(error)]
        key = _key_of(operator, error)
        return [ColumnMistake(key, f"does not fit what it reads: {problem}", reads(columns)) for problem in problems]

    def version_schema(self, table: str) -> dict[str, pl.DataType]:
        """Return what is kept of each version of *table* for joins."""
        step = self._steps[table]
        assert isinstance(step, TableStep)
        return step.version_schema()

    def functions(self, operator: Operator) -> Sequence[AggregateFunction]:
        """Return the aggregate functions of *operator*, if it is an aggregate."""
        step = self._steps[operator.name]
        return step.functions if isinstance(step, AggregateStep) else ()

    def take(self, moves: Moves, *, watermark_ms: int | None) -> None:
        """Make *moves* what the next batch finds, and drop versions that no record still taken in can ask for."""
        self.memory.take(moves)
        for name in moves.versions:
            step = self._steps[name]
            assert isinstance(step, TableStep)
            step.forget(watermark_ms)

    def is_due(self, operator: Operator, was_decided_at_ms: int | None, decided_at_ms: int) -> bool:
        """Return whether *operator* has something to send in a batch without records: its interval has ended."""
        emission = emission_of(operator)
        if emission is None or not len(self.memory.states.get(operator.name, ())):
            return False
        return is_due(emission, was_decided_at_ms, decided_at_ms)

    def waiting(self, source: Source) -> pl.DataFrame:
        """Return the records of *source* that wait for other partitions."""
        empty = pl.DataFrame(schema=dict(self.schemas[source.name]))
        return self.memory.waiting.get(source.name, empty)

    def hop_records(self, source: HopSource, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the records that *rows* of the hop are to the readers of *source*."""
        return self._hop(source).records(rows)

    def hop_columns(self, source: HopSource) -> dict[str, pl.DataType]:
        """Return the columns that are handed on to *source*."""
        return self._hop(source).columns

    def _hop(self, source: HopSource) -> HopSourceStep:
        step = self._steps[source.name]
        assert isinstance(step, HopSourceStep)
        return step

    def run(self, operator: Operator, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Decide what becomes of the *inputs* of *operator*; what it will have kept is put into *moves*.

        Records for which its SQL failed are rows of quarantine.
        """
        self._shared.sql.failed.clear()
        run = self._steps[operator.name].run(inputs, moves, moment)
        known = [rows for rows in [run.rows.get("quarantine")] if rows is not None]
        if failed := [
            quarantine_rows(operator.name, rows, "sql_error", pl.col(PROBLEM))
            for rows in self._shared.failed
            if rows.height
        ]:
            run.rows["quarantine"] = pl.concat([*known, *failed], how="diagonal")
        return run


def _key_of(operator: Operator, error: Exception) -> str:
    """Return the key of *operator* that *error* is about; empty where only the whole of it is known."""
    if isinstance(error, InvalidColumns):
        return error.key
    if isinstance(operator, Join):
        return "on" if isinstance(error, pl.exceptions.PolarsError) else "table" if operator.table else "delta"
    return ""


def _without_columns(error: Exception) -> str:
    """Return the text of *error* without the list of columns that polars adds: it has those of Tidemark's own."""
    return str(error).splitlines()[0].partition("; valid columns")[0]
