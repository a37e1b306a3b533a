"""The kind `source`, and what reads a hop: `intake.py` takes records in, and here is what they are to readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.expressions import Expressions
from tidemark.kernels.schemas import META_SCHEMA, record_schema
from tidemark.kernels.steps import hop_records, repartition_columns
from tidemark.spec.operators import HopSource, Repartition, Source
from tidemark.stream.batch import Moment
from tidemark.stream.encoding import is_schema_of_records
from tidemark.stream.operate.mistakes import ColumnMistake, Schema
from tidemark.stream.operate.step import Op, Run, Step
from tidemark.stream.state import Moves

HOP_RECORDS: Mapping[str, pl.DataType] = {"value": pl.String(), "old_value": pl.String(), **META_SCHEMA}
"""A row of a hop: texts of the value to add and of the one to take back."""


class _ReadingStep(Step[Op]):
    """An operator whose records are taken in before any operator runs."""

    @staticmethod
    def comment(operator: Op, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Return the name of *column*: of what a hop has, how it came about is up to another sub-topology."""
        return f"{column} of {operator.name}"

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Raise InvalidArgument: it has no step."""
        msg = f"{self.operator.name}: a {self.operator.kind} has no step"
        raise InvalidArgument(msg)


class SourceStep(_ReadingStep[Source]):
    """A source."""

    @staticmethod
    def mistakes(
        operator: Source, columns: Schema, sql: Expressions, wrong: Collection[str]
    ) -> Iterator[ColumnMistake]:
        """Yield what is wrong with `avro_schema`."""
        return avro_mistakes(operator.avro_schema)

    @staticmethod
    def comment(operator: Source, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Return the field that *column* is, or that it is the record time."""
        if column != operator.timestamp:
            return f"{column} of {operator.name}"
        unit = f", epoch {operator.timestamp_unit}" if operator.fields[column] == "bigint" else ""
        return f"{column} of {operator.name}: record time{unit}"

    def schema(self) -> Mapping[str, pl.DataType]:
        """Return its fields, and what is known of each record."""
        return record_schema(self.operator.columns)


class HopSourceStep(_ReadingStep[HopSource]):
    """The reading end of a hop."""

    def schema(self) -> Mapping[str, pl.DataType]:
        """Return the columns of what the repartition hands on."""
        return self.records(pl.DataFrame(schema=dict(HOP_RECORDS))).schema

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """The columns that the repartition hands on."""
        schema = self.shared.schemas[self._repartition.inputs[0]]
        return {column: schema[column] for column in repartition_columns(self._repartition)}

    @property
    def _repartition(self) -> Repartition:
        repartition = self.shared.topology.operators[self.operator.repartition]
        assert isinstance(repartition, Repartition)
        return repartition

    def records(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the records that *rows* of the hop are to its readers."""
        return hop_records(self._repartition, rows, self.columns)


def avro_mistakes(schema: str | None) -> Iterator[ColumnMistake]:
    """Yield that *schema*, if there is one, is no Avro schema of records."""
    if schema is not None and not is_schema_of_records(schema):
        problem = "is not an Avro schema of records in JSON"
        yield ColumnMistake("avro_schema", problem, 'write {"type": "record", "name": ..., "fields": [...]}')
