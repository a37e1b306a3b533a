"""What the columns of a Delta sink are, as its topology says: the comments of a table that a stream hands out."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidemark.spec.operators import Operator, Sink
from tidemark.stream.operate.registry import step_of

Columns = Mapping[str, Mapping[str, object]]
"""The columns of each operator's records, by its name."""

TIDEMARKS_OWN = {
    "timestamp": "record time; of an aggregate's result the largest that it has taken in",
    "batch_id": "micro-batch that wrote the row, counted from 0",
    "source_partition": "input partition of the record that caused the row",
    "source_offset": "its offset there",
    "deleted": "whether the row says that its key is gone",
    "window_final": "whether its window is closed, so that no record changes the row but a requested reopening; in a "
    "table that is appended to as it was when the row was written; null: not known",
    "last_seen_at": "newest record time of the key, of suppressed updates too; null: none since the column was added",
}
"""The columns that Delta sinks have beside their records' own; the last two only some of them."""
WHY = {
    "timestamp": ("timestamp", "staleness, order of the updates of a key"),
    "batch_id": ("bigint", "to join with `batches` and `outcomes`; a reader goes on after the newest that it has read"),
    "source_partition": ("int", "to find the record in its topic"),
    "source_offset": ("bigint", "to find the record in its topic"),
    "deleted": ("boolean", "a table that is appended to has no other way to say it"),
    "window_final": ("boolean", "to tell results that may still change from those that do not"),
    "last_seen_at": ("timestamp", "to tell a key that repeats its value from one that fell silent"),
    "window_start": ("timestamp", "with the key it tells results apart"),
    "window_end": ("timestamp", "where an aggregate's `select` names it"),
}
"""By column of a sink: its type, and why it is there."""
BOUNDS = {
    "window_start": "start of the window, inclusive: record time",
    "window_end": "end of the window, exclusive: record time",
}


def commented(schema: pa.Schema, sink: Sink, operators: Mapping[str, Operator], columns: Columns) -> pa.Schema:
    """*schema* of the table of *sink*, one of the *operators* of its sub-topology, with a comment for each column."""
    read = operators[sink.inputs[0]]

    def said(field: pa.Field) -> str:
        if field.name in sink.bounds:
            return BOUNDS[sink.bounds[field.name]] + (", epoch ms" if field.type == pa.int64() else "")
        return TIDEMARKS_OWN.get(field.name) or origin(field.name, read, operators, columns)

    return pa.schema([field.with_metadata({"comment": said(field)}) for field in schema])


def origin(column: str, operator: Operator, operators: Mapping[str, Operator], columns: Columns) -> str:
    """Return where *column* of the records of *operator* comes from: a field of a source, or an expression."""
    read = columns[operator.inputs[0]] if operator.inputs else ()
    return step_of(operator).comment(
        operator, column, read, lambda name: origin(column, operators[name], operators, columns)
    )
