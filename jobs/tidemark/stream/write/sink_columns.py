"""Describes the columns of a sink's Delta table in their comments, as they follow from the topology."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.sink import Sink
from tidemark.stream.operate.registry import step_of

Columns = Mapping[str, Mapping[str, object]]
"""The columns of each operator's records, by its name."""

TIDEMARKS_OWN = {
    "timestamp": "record time; of an aggregate's result the largest record time that it reflects",
    "batch_id": "micro-batch that wrote the row, counted from 0",
    "source_partition": "input partition of the record that caused the row",
    "source_offset": "offset of that record",
    "deleted": "whether the row deletes its key",
    "window_final": "whether its window is closed, so that only a requested reopening changes the row; in an "
    "append-only table as of the writing of the row; null: unknown",
    "last_seen_at": "newest record time of the key, with suppressed updates; null: none since the column was added",
}
"""Columns of Delta sinks beside the columns of their records.

Only some sinks have the last two.
"""
WHY = {
    "timestamp": ("timestamp", "staleness, order of the updates of a key"),
    "batch_id": (
        "bigint",
        "to join with `batches` and `operator_batches`; a reader continues after the newest batch that it has read",
    ),
    "source_partition": ("int", "to find the record in its topic"),
    "source_offset": ("bigint", "to find the record in its topic"),
    "deleted": ("boolean", "an append-only table has no other way to delete a key"),
    "window_final": ("boolean", "to distinguish final results from those that may still change"),
    "last_seen_at": ("timestamp", "to distinguish a key that repeats its value from one without updates"),
    "window_start": ("timestamp", "identifies a result together with the key"),
    "window_end": ("timestamp", "where an aggregate's `select` names it"),
}
"""The type of each column of a sink, and its purpose."""
BOUNDS = {
    "window_start": "start of the window, inclusive: record time",
    "window_end": "end of the window, exclusive: record time",
}


def commented(schema: pa.Schema, sink: Sink, operators: Mapping[str, Operator], columns: Columns) -> pa.Schema:
    """Returns *schema*, that of the table of *sink*, with a comment for each column.

    *operators* are those of the sub-topology, and *columns* the columns of each operator's records.
    """
    read = operators[sink.inputs[0]]

    def comment_of(field: pa.Field) -> str:
        if field.name in sink.bounds:
            return BOUNDS[sink.bounds[field.name]] + (", epoch ms" if field.type == pa.int64() else "")
        return TIDEMARKS_OWN.get(field.name) or origin(field.name, read, operators, columns)

    return pa.schema([field.with_metadata({"comment": comment_of(field)}) for field in schema])


def origin(column: str, operator: Operator, operators: Mapping[str, Operator], columns: Columns) -> str:
    """Describes where *column* of *operator* comes from: a field of a source, or SQL."""
    read = columns[operator.inputs[0]] if operator.inputs else ()
    return step_of(operator).comment(
        operator, column, read, lambda name: origin(column, operators[name], operators, columns)
    )
