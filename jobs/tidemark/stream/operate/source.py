"""Describes the kind `source`, and the source that reads a hop; `read/intake.py` takes their records in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import META_SCHEMA, record_schema
from tidemark.kernels.formats.fitting import misfits_of_schema
from tidemark.kernels.formats.protobuf_fields import InvalidDescriptors, message_names, protobuf_types
from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.steps import hop_records, repartition_columns
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_format import SCHEMA
from tidemark.selection import in_order_of
from tidemark.stream.journal.batch import Moment
from tidemark.stream.kafka.encoding import is_schema_of_records
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.mistakes import ColumnMistake, Schema
from tidemark.stream.updates.step import Op, OperatorStep, Run

HOP_RECORDS: Mapping[str, pl.DataType] = {"value": pl.String(), "old_value": pl.String(), **META_SCHEMA}
"""The columns of a row of a hop: `value` has the text of the new value, `old_value` that of the value it replaces."""


class _ReadingStep(OperatorStep[Op]):
    """An operator whose records are taken in before any operator runs."""

    @staticmethod
    def comment(operator: Op, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Returns the name of *column*. How a column of a hop is made is described in another sub-topology."""
        return f"{column} of {operator.name}"

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Raises InvalidArgument: the engine takes records in itself."""
        # A call is a defect of the caller.
        msg = f"{self.operator.name}: a {self.operator.kind} has no step"
        raise InvalidArgument(msg)


class SourceStep(_ReadingStep[Source]):
    """Describes a source."""

    @staticmethod
    def mistakes(
        operator: Source, columns: Schema, sql: Expressions, wrong: Collection[str]
    ) -> Iterator[ColumnMistake]:
        """Yields what is wrong with its schema, or, if nothing is, with its fields."""
        mistakes = [*avro_mistakes(operator.avro_schema)]
        if operator.descriptors is not None:
            mistakes += _protobuf_mistakes(operator.descriptors, operator.message or "")
        yield from mistakes
        if not mistakes and (misfits := misfits_of_schema(operator)):
            remedy = "declare the fields of the schema, with types that fit (docs/topologies.md, Avro and Protobuf)"
            yield ColumnMistake("fields", "; ".join(misfits), remedy)

    @staticmethod
    def comment(operator: Source, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Describes *column* as a field, or as the record time."""
        if column != operator.timestamp:
            return f"{column} of {operator.name}"
        unit = "" if operator.fields[column] == "timestamp" else f", epoch {operator.timestamp_unit}"
        return f"{column} of {operator.name}: record time{unit}"

    def prepare(self) -> None:
        """Makes room for records that wait for other partitions (`max_drift`)."""
        self.shared.memory.keep_waiting(self.operator.name, self.schema())

    def schema(self) -> Mapping[str, pl.DataType]:
        """Returns the columns of its fields, and of what is known of each record."""
        return record_schema(self.operator.columns)


class HopSourceStep(_ReadingStep[HopSource]):
    """Describes the source that reads a hop."""

    def schema(self) -> Mapping[str, pl.DataType]:
        """Returns the columns of what the repartition hands on."""
        return self.records(pl.DataFrame(schema=dict(HOP_RECORDS))).schema

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Returns the columns that the repartition hands on."""
        schema = self.shared.schemas[self._repartition.inputs[0]]
        return in_order_of(repartition_columns(self._repartition), schema)

    @property
    def _repartition(self) -> Repartition:
        return self.shared.topology.repartition(self.operator.repartition)

    def records(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns *rows* of the hop as records for its readers."""
        return hop_records(self._repartition, rows, self.columns)


def avro_mistakes(schema: str | None) -> Iterator[ColumnMistake]:
    """Yields a mistake if *schema* is given and describes no Avro records."""
    if schema is not None and not is_schema_of_records(schema):
        problem = "is not an Avro schema of records in JSON"
        yield ColumnMistake("schema", problem, 'write {"type": "record", "name": ..., "fields": [...]}')


def _protobuf_mistakes(descriptors: bytes, message: str) -> Iterator[ColumnMistake]:
    """Yields a mistake if *descriptors* are not valid, or lack *message*."""
    try:
        names = message_names(descriptors)
    except InvalidDescriptors as error:
        remedy = "make the file with `protoc --include_imports --descriptor_set_out=readings.desc readings.proto`"
        yield ColumnMistake(SCHEMA.name, str(error), remedy)
        return
    try:
        protobuf_types(descriptors, message)
    except InvalidDescriptors:
        yield ColumnMistake(
            "message", f"is {message!r}, which the schema does not have", f"use one of {', '.join(names)}"
        )
