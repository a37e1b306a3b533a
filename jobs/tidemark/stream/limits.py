"""Quarantines, at a sink alone, records that its topic would refuse or that do not fit its Avro schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from tidemark.kernels import payload
from tidemark.kernels.limits import MISFIT, Limits, refused
from tidemark.kernels.proofs import quarantine_rows
from tidemark.spec.operators import Format, Sink
from tidemark.stream.broker import Refused
from tidemark.stream.encoding import Misfit, encoded


def undeliverable_rows(sink: Sink, records: pl.DataFrame, refused: Sequence[Refused]) -> pl.DataFrame:
    """Those of the *records* of *sink* that its topic *refused*, as rows of their table."""
    return records[[place.row for place in refused]].select(
        operator=pl.lit(sink.name),
        topic=pl.lit(sink.topic, pl.String),
        key=pl.col("_key").cast(pl.Binary),
        value=_values(sink, records[[place.row for place in refused]]),
        timestamp="_timestamp_ms",
        source_partition="_partition",
        source_offset="_offset",
        error=pl.Series([place.error for place in refused], dtype=pl.String),
    )


AS_JSON = 8
"""Of no type is the JSON more than so many times as long as Arrow's bytes of it."""


def within_limits(
    sink: Sink, records: pl.DataFrame, limits: Limits, *, now_ms: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The *records* that *sink* can send and its topic takes by its *limits*, and the others as rows of quarantine.

    *now_ms* is the clock, epoch ms UTC, by which the batch is decided.
    """
    records, misfits = _fitting(sink, records)
    values = _values(sink, records) if _may_be_too_large(records, limits) else _no_values(records)
    reason = refused(records, values, limits, now_ms=now_ms)
    bad = records.filter(reason.is_not_null())
    rows = bad.select(
        source=pl.lit(sink.name),
        partition="_partition",
        offset="_offset",
        reason=reason.drop_nulls(),
        key=pl.col("_key").cast(pl.Binary),
        value=_values(sink, bad),
    )
    return records.filter(reason.is_null()), pl.concat([rows, *misfits], how="diagonal")


def _fitting(sink: Sink, records: pl.DataFrame) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Those of *records* that fit the Avro schema of *sink*, and any others as rows of quarantine."""
    if sink.format is not Format.AVRO:
        return records, []
    problems = [value.problem if isinstance(value, Misfit) else None for value in encoded(sink, records)]
    problem = pl.Series(problems, dtype=pl.String)
    bad = records.filter(problem.is_not_null())
    if bad.is_empty():
        return records, []
    rows = quarantine_rows(sink.name, bad, MISFIT, pl.lit(problem.drop_nulls()))
    return records.filter(problem.is_null()), [rows.with_columns(key=bad["_key"].cast(pl.Binary))]


def _may_be_too_large(records: pl.DataFrame, limits: Limits) -> bool:
    """Whether one of *records* may be: for almost every batch all of them together are not."""
    names = sum(len(name) + 6 for name in payload(records.columns))
    return limits.max_bytes is not None and records.estimated_size() * AS_JSON + names > limits.max_bytes // 2


def _values(sink: Sink, records: pl.DataFrame) -> pl.Series:
    """The bytes of *records*; of those that do not fit the schema as JSON."""
    values = list(encoded(sink, records))
    if any(isinstance(value, Misfit) for value in values):
        as_json = encoded(replace(sink, format=Format.JSON), records)
        values = [text if isinstance(value, Misfit) else value for value, text in zip(values, as_json, strict=True)]
    return pl.Series([v.encode() if isinstance(v, str) else v for v in values], dtype=pl.Binary)


def _no_values(records: pl.DataFrame) -> pl.Series:
    return pl.Series([None] * records.height, dtype=pl.Binary)
