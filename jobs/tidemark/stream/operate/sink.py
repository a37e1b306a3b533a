"""Runs the kind `sink`: hands records to a topic or table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import polars as pl
import pyarrow as pa

from tidemark.kernels import payload
from tidemark.kernels.columns.schemas import instants
from tidemark.kernels.columns.values import key_text, value_text
from tidemark.kernels.records.headers import split_unreadable_keys
from tidemark.kernels.sql.constraints import Constraint, violations
from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.final_rows import WINDOW_FINAL, final_columns, with_final
from tidemark.kernels.updates.last_seen import LAST_SEEN_AT, SEEN_ONLY, last_seen_columns, with_last_seen
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.selection import outside
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.storage.delta.current_rows import NEWEST_MS, OF_REPLACING
from tidemark.stream.journal.batch import Moment
from tidemark.stream.journal.layout import COMMITTED_WITH_BATCH
from tidemark.stream.kafka.limits import within_limits
from tidemark.stream.operate.source import avro_mistakes
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.mistakes import ColumnMistake, Schema, reads, unknown
from tidemark.stream.updates.step import OperatorStep, Run
from tidemark.stream.updates.taking_back import take_back

SINK_COLUMNS = frozenset({"timestamp", "batch_id", "source_partition", "source_offset", "deleted"})
"""The columns that a Delta sink adds to those of its records."""


class SinkStep(OperatorStep[Sink]):
    """Runs a sink."""

    @staticmethod
    def mistakes(operator: Sink, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterator[ColumnMistake]:
        """Yields what is wrong with its schema, its `key`, and columns with names that the table has already."""
        yield from avro_mistakes(operator.avro_schema)
        yield from unknown({"key": operator.key}, columns)
        added = SINK_COLUMNS | ({"last_seen_at"} if operator.last_seen_at else set())
        added |= {"window_final"} if operator.window else set()
        if operator.table and (taken := sorted(added & {*columns})):
            rename = "rename them: `name type from field` in `fields`, or in a map"
            yield ColumnMistake("", f"{taken} are columns that a Delta sink adds; {rename}", reads(columns))

    @staticmethod
    def meaning(operator: Sink) -> dict[str, str]:
        """Describes the rows that its table has."""
        if operator.table is None:
            return {}
        rows = f"the current row of {', '.join(operator.key)}" if operator.key else "every row"
        return {f"the table {operator.table}": rows}

    @staticmethod
    def key(operator: Sink) -> tuple[str, ...] | None:
        """Returns the key of the rows of its table, or of the records of its topic."""
        return operator.key if operator.topic or operator.key else None

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Hands out the records that the topic or table accepts.

        If the sink writes when a key was last seen, the second of *inputs* has all updates, also suppressed ones.
        """
        sink, records = self.operator, inputs[0]
        if sink.table:
            return self._to_table(records, inputs[-1], moves, moment)
        kept, bad = split_unreadable_keys(sink.name, records)
        if limits := moment.limits.get(sink.name):
            kept, refused = within_limits(sink, kept, limits, now_ms=moment.decided_at_ms)
            bad = pl.concat([bad, refused], how="diagonal")
        counts = Counter(records_in=records.height, passed=kept.height, quarantined=records.height - kept.height)
        return Run(kept, times_of(kept), counts, {sink.name: kept, DEAD_LETTERS.name: bad})

    def _to_table(self, records: pl.DataFrame, asserted: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        """Hands out the *records* that the table accepts; *asserted* has all updates, also suppressed ones."""
        sink, rows = self.operator, {}
        counts = Counter(records_in=records.height, passed=records.height)
        if sink.window:
            records = with_final(sink.window, records, moment.watermark_ms)
        if constraints := moment.constraints.get(sink.name):
            is_accepted, rows[COMMITTED_WITH_BATCH] = accepted_records(sink, records, moment.batch_id, constraints)
            if not is_accepted.all():
                take_back(sink, self.shared, records, is_accepted, moves)
                asserted = _without(asserted, records.filter(~is_accepted))
                records = records.filter(is_accepted)
        times = times_of(records)
        if sink.last_seen_at:
            records = with_last_seen(records, asserted, sink.key)
        return Run(records, times, counts, {sink.name: records, **rows})


def _without(asserted: pl.DataFrame, refused: pl.DataFrame) -> pl.DataFrame:
    """Returns those of the updates *asserted* that are not among the *refused* ones."""
    return asserted.join(refused, on=["_key", "_partition", "_offset"], how="anti", nulls_equal=True)


def sink_rows(sink: Sink, records: pa.Table, batch_id: int) -> pa.Table:
    """Returns *records* as rows of the table of *sink*.

    If the table has the current row of each key, only the last record of a key is returned.
    """
    frame = pl.DataFrame(records)
    if sink.key:
        frame = frame.unique(sink.key, keep="last", maintain_order=True)
    return _table_rows(sink, frame, batch_id).to_arrow()


def _table_rows(sink: Sink, records: pl.DataFrame, batch_id: int) -> pl.DataFrame:
    """Returns *records* as rows of the table of *sink*.

    A row has the columns of the record, its record time, and its source and batch, and with `last_seen_at` also when
    the key was last seen. Instants and bounds of windows are timestamps.
    """
    # A row that only repeats a result says nothing new about time.
    newest_ms = {NEWEST_MS: pl.when(~pl.col("_repeated")).then("_newest_ms")} if sink.key else {}
    return records.select(
        *(instants(name) if name in sink.bounds else pl.col(name) for name in payload(records.columns)),
        timestamp=instants("_timestamp_ms"),
        batch_id=pl.lit(batch_id, pl.Int64),
        source_partition="_partition",
        source_offset="_offset",
        deleted="_deleted",
        **final_columns(records.columns),
        **last_seen_columns(records.columns),
        **newest_ms,
    )


def accepted_records(
    sink: Sink, records: pl.DataFrame, batch_id: int, constraints: tuple[Constraint, ...]
) -> tuple[pl.Series, pl.DataFrame]:
    """Returns which of *records* the table of *sink* accepts, and rows of `dead_letters` for the others."""
    rows = _table_rows(sink, records, batch_id)
    why = _refusals(sink, rows, constraints)
    return why.is_null(), _undeliverable(sink, rows.with_columns(records["_key"]), why)


def accepted_rows(
    sink: Sink, rows: pl.DataFrame, constraints: tuple[Constraint, ...]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits *rows* into those that the table of *sink* accepts, and rows of `dead_letters` for the others."""
    why = _refusals(sink, rows, constraints)
    return rows.filter(why.is_null()), _undeliverable(sink, rows, why)


def _refusals(sink: Sink, rows: pl.DataFrame, constraints: tuple[Constraint, ...]) -> pl.Series:
    """Returns why the table of *sink* refuses *rows*; null where it accepts them."""
    why = violations(rows, constraints)
    if sink.key:
        # A row that deletes its key, or only says when the key was seen, never reaches the table.
        is_put = ~pl.col("deleted") & ~(pl.col(SEEN_ONLY) if SEEN_ONLY in rows.columns else pl.lit(value=False))
        why = rows.select(pl.when(is_put).then(why)).to_series()
    return why


def _undeliverable(sink: Sink, rows: pl.DataFrame, why: pl.Series) -> pl.DataFrame:
    """Returns rows of `dead_letters` for those *rows* that the table of *sink* refuses; *why* has the reasons."""
    added = SINK_COLUMNS | OF_REPLACING | {WINDOW_FINAL, LAST_SEEN_AT}
    content = outside(payload(rows.columns), added)
    key = pl.col("_key") if "_key" in rows.columns else key_text(sink.key, rows.schema) if sink.key else pl.lit(None)
    return rows.filter(why.is_not_null()).select(
        kind=pl.lit(DeadLetterKind.UNDELIVERABLE.value),
        operator=pl.lit(sink.name),
        topic=pl.lit(None, pl.String),
        key=key.cast(pl.String).cast(pl.Binary),
        value=pl.when(~pl.col("deleted")).then(value_text(content, rows.schema)).cast(pl.Binary),
        timestamp=pl.col("timestamp").dt.epoch("ms"),
        partition="source_partition",
        offset="source_offset",
        detail=pl.format("table {}: {}", pl.lit(sink.table), pl.lit(why.drop_nulls())),
    )
