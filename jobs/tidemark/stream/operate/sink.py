"""Runs the kind `sink`: hands records to a topic or table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import polars as pl

from tidemark.kernels.records.headers import split_unreadable_keys
from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.final_rows import with_final
from tidemark.kernels.updates.last_seen import with_last_seen
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import QUARANTINE
from tidemark.stream.journal.batch import Moment
from tidemark.stream.kafka.limits import within_limits
from tidemark.stream.operate.source import avro_mistakes
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.mistakes import ColumnMistake, Schema, reads, unknown
from tidemark.stream.updates.step import OperatorStep, Run

SINK_COLUMNS = frozenset({"timestamp", "batch_id", "source_partition", "source_offset", "deleted"})
"""The columns that a Delta sink adds to those of its records."""


class SinkStep(OperatorStep[Sink]):
    """Runs a sink."""

    @staticmethod
    def mistakes(operator: Sink, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterator[ColumnMistake]:
        """Yields what is wrong with its schema, `key` and column names.

        A column must not have a name that the table has already.
        """
        yield from avro_mistakes(operator.avro_schema)
        yield from unknown({"key": operator.key}, columns)
        added = SINK_COLUMNS | ({"last_seen_at"} if operator.last_seen_at else set())
        added |= {"window_final"} if operator.window else set()
        if operator.table and (own := sorted(added & {*columns})):
            anew = "rename them: `name type from field` in `fields`, or in a map"
            yield ColumnMistake("", f"{own} are columns that a Delta sink adds; {anew}", reads(columns))

    @staticmethod
    def meaning(operator: Sink) -> dict[str, str]:
        """Returns the rows that its table has."""
        if operator.table is None:
            return {}
        rows = f"the current row of {', '.join(operator.key)}" if operator.key else "every row"
        return {f"the table {operator.table}": rows}

    @staticmethod
    def key(operator: Sink) -> tuple[str, ...] | None:
        """Returns the key of its rows; for a topic, of the records."""
        return operator.key if operator.topic or operator.key else None

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Hands out all records, or those that the topic accepts.

        For a sink with the instant at which a key was last seen, the second of *inputs* has all updates of its input.
        """
        sink, records = self.operator, inputs[0]
        rows = {}
        if sink.table and sink.window:
            records = with_final(sink.window, records, moment.watermark_ms)
        if sink.topic:
            records, unreadable = split_unreadable_keys(sink.name, records)
            rows[QUARANTINE.name] = unreadable
        kept = records
        if sink.last_seen_at:
            stamped = with_last_seen(records, inputs[1] if len(inputs) > 1 else records, sink.key)
            counts = Counter(records_in=records.height, passed=records.height)
            return Run(stamped, times_of(records), counts, {sink.name: stamped})
        if sink.topic and (limits := moment.limits.get(sink.name)):
            kept, refused = within_limits(sink, records, limits, now_ms=moment.decided_at_ms)
            rows[QUARANTINE.name] = pl.concat([unreadable, refused], how="diagonal")
        n = inputs[0].height
        counts = Counter(records_in=n, passed=kept.height, quarantined=n - kept.height)
        return Run(kept, times_of(kept), counts, {sink.name: kept, **rows})
