"""Quarantines records that the topic of a sink would refuse, or that do not fit the sink's Avro schema or format.

Only this sink quarantines such records; other operators use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from tidemark.kernels import payload
from tidemark.kernels.records.limits import MISFIT, TopicLimits, refused
from tidemark.kernels.updates.proofs import quarantine_rows
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.sink import Sink
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.stream.kafka.broker import RefusedRecord
from tidemark.stream.kafka.encoding import Misfit, encoded


def undeliverable_rows(sink: Sink, records: pl.DataFrame, refused: Sequence[RefusedRecord]) -> pl.DataFrame:
    """Returns *records* that the topic of *sink* *refused*, as rows of `dead_letters`."""
    refusals = pl.DataFrame(refused, schema={"row": pl.Int64, "error": pl.String})
    rows = records[refusals["row"]]
    return rows.select(
        kind=pl.lit(DeadLetterKind.UNDELIVERABLE.value),
        operator=pl.lit(sink.name),
        topic=pl.lit(sink.topic, pl.String),
        key=pl.col("_key").cast(pl.Binary),
        value=_values(sink, rows),
        timestamp="_timestamp_ms",
        partition="_partition",
        offset="_offset",
        detail=refusals["error"],
    )


AS_JSON = 8
"""No type needs more bytes of JSON than this for a byte in Arrow."""


def within_limits(
    sink: Sink, records: pl.DataFrame, limits: TopicLimits, *, now_ms: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits *records* into those that the topic takes, and the others.

    The others are rows of `dead_letters`: they exceed the topic's *limits*, or do not fit the sink's format. *now_ms*
    is the clock, epoch ms UTC, by which the batch is decided.
    """
    # A decided batch is sent until the topic has it, so what would be refused for ever is set aside before.
    records, misfits = _fitting(sink, records)
    values = _values(sink, records) if _may_be_too_large(records, limits) else _no_values(records)
    # Sizes are known only of encoded values, which are skipped when no record can be too large.
    reason = refused(records, values, limits, now_ms=now_ms)
    bad = records.filter(reason.is_not_null())
    rows = bad.select(
        kind=pl.lit(DeadLetterKind.QUARANTINED.value),
        operator=pl.lit(sink.name),
        partition="_partition",
        offset="_offset",
        reason=reason.drop_nulls(),
        key=pl.col("_key").cast(pl.Binary),
        value=_values(sink, bad),
    )
    return records.filter(reason.is_null()), pl.concat([rows, *misfits], how="diagonal")


def _fitting(sink: Sink, records: pl.DataFrame) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Splits *records* into those that fit the schema or the format, and rows of `dead_letters`."""
    if sink.format is Format.JSON:
        return records, []
    problems = [value.problem if isinstance(value, Misfit) else None for value in encoded(sink, records)]
    problem = pl.Series(problems, dtype=pl.String)
    bad = records.filter(problem.is_not_null())
    if bad.is_empty():
        return records, []
    rows = quarantine_rows(sink.name, bad, MISFIT, pl.lit(problem.drop_nulls()))
    return records.filter(problem.is_null()), [rows.with_columns(key=bad["_key"].cast(pl.Binary))]


def _may_be_too_large(records: pl.DataFrame, limits: TopicLimits) -> bool:
    """Returns True if any of *records* may exceed the limit."""
    # JSON repeats the name of each column, with quotes, colon, comma and spaces.
    names = sum(len(name) + 6 for name in payload(records.columns))
    # For almost every batch all records together are smaller than the limit.
    return limits.max_bytes is not None and records.estimated_size() * AS_JSON + names > limits.max_bytes // 2


def _values(sink: Sink, records: pl.DataFrame) -> pl.Series:
    """Returns the bytes of *records* as they are sent; those that do not fit the schema are JSON."""
    values = list(encoded(sink, records))
    if any(isinstance(value, Misfit) for value in values):
        as_json = encoded(replace(sink, format=Format.JSON), records)
        values = [text if isinstance(value, Misfit) else value for value, text in zip(values, as_json, strict=True)]
    return pl.Series([v.encode() if isinstance(v, str) else v for v in values], dtype=pl.Binary)


def _no_values(records: pl.DataFrame) -> pl.Series:
    return pl.Series([None] * records.height, dtype=pl.Binary)
