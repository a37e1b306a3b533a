"""What a sink does not send: records that its topic would refuse are set aside at that sink alone."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tidemark.kernels import payload
from tidemark.kernels.limits import Limits, refused
from tidemark.spec.operators import Sink
from tidemark.stream.broker import Refused
from tidemark.stream.encoding import values_to_send


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
    """The *records* that the topic of *sink* takes by its *limits*, and the others as rows of quarantine.

    *now_ms* is the clock, epoch ms UTC, by which the batch is decided.
    """
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
    return records.filter(reason.is_null()), rows


def _may_be_too_large(records: pl.DataFrame, limits: Limits) -> bool:
    """Whether one of *records* may be: for almost every batch all of them together are not."""
    names = sum(len(name) + 6 for name in payload(records.columns))
    return limits.max_bytes is not None and records.estimated_size() * AS_JSON + names > limits.max_bytes // 2


def _values(sink: Sink, records: pl.DataFrame) -> pl.Series:
    values = (v.encode() if isinstance(v, str) else v for v in values_to_send(sink, records))
    return pl.Series(list(values), dtype=pl.Binary)


def _no_values(records: pl.DataFrame) -> pl.Series:
    return pl.Series([None] * records.height, dtype=pl.Binary)
