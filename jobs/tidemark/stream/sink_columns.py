"""What the columns of a Delta sink are, as its topology says: the comments of a table that a stream hands out."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidemark.spec.operators import Aggregate, HopSource, Join, Map, Operator, Sink, Source, Union

Columns = Mapping[str, Mapping[str, object]]
"""The columns of each operator's records, by its name."""

TIDEMARKS_OWN = {
    "timestamp": "record time; of an aggregate's result the largest that it has taken in",
    "batch_id": "micro-batch that wrote the row, counted from 0",
    "source_partition": "input partition of the record that caused the row",
    "source_offset": "its offset there",
    "deleted": "whether the row says that its key is gone",
    "last_seen_at": "newest record time of the key, of suppressed updates too; null: none since the column was added",
}
"""The columns that every Delta sink has beside its records' own."""


def commented(schema: pa.Schema, sink: Sink, operators: Mapping[str, Operator], columns: Columns) -> pa.Schema:
    """*schema* of the table of *sink*, one of the *operators* of its sub-topology, with a comment for each column."""
    said = {
        name: TIDEMARKS_OWN.get(name) or origin(name, operators[sink.inputs[0]], operators, columns)
        for name in schema.names
    }
    return pa.schema([field.with_metadata({"comment": said[field.name]}) for field in schema])


def origin(column: str, operator: Operator, operators: Mapping[str, Operator], columns: Columns) -> str:
    """Where *column* of the records of *operator* comes from: a field of a source, or an expression.

    Of what a repartition hands on only its name is said: how it came about is up to another sub-topology.
    """
    match operator:
        case Source() if column == operator.timestamp:
            unit = f", epoch {operator.timestamp_unit}" if operator.fields[column] == "bigint" else ""
            return f"{column} of {operator.name}: record time{unit}"
        case Source() | HopSource():
            return f"{column} of {operator.name}"
        case Union():
            return f"{column} of {' and '.join(operator.inputs)}"
        case Map() if operator.select.get(column, column) != column:
            return f"{operator.name}: {operator.select[column]}"
        case Aggregate() if column in operator.select:
            return f"{operator.name}: {operator.select[column]}"
        case Aggregate() if column in {"window_start", "window_end"}:
            return f"{column} of {operator.name}: record time, epoch ms"
        case Join() if column not in columns[operator.inputs[0]]:
            if operator.table is None:
                return f"{column} of the Delta table {operator.delta}"
            return origin(column, operators[operator.table], operators, columns)
    return origin(column, operators[operator.inputs[0]], operators, columns)
