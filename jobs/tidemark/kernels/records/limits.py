"""Finds records that a topic would refuse for size or time.

They are found before a batch is decided. Source: Kafka's topic settings `max.message.bytes` and
`message.timestamp.before.max.ms` and `…after.max.ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

TOO_LARGE = "too_large_for_topic"
REFUSED_TIME = "time_refused_by_topic"
MISFIT = "does_not_fit_schema"
AROUND = 512
"""Upper bound of a record's bytes without key, value and received headers."""
AROUND_HEADER = 12


@dataclass(frozen=True, kw_only=True)
class TopicLimits:
    """A topic's record size and ms around the broker's clock; None: unlimited."""

    max_bytes: int | None = None
    before_ms: int | None = None
    after_ms: int | None = None


def refused(records: pl.DataFrame, values: pl.Series, limits: TopicLimits, *, now_ms: int) -> pl.Series:
    """Returns why its topic would refuse each record; null: it takes it.

    Args:
        records: to be sent.
        values: the values to be sent; null: the record deletes its key.
        limits: of the topic.
        now_ms: the clock, epoch ms UTC, by which the batch is decided.
    """
    header = pl.element().struct.field("key").str.len_bytes().fill_null(0) + AROUND_HEADER
    header += pl.element().struct.field("value").bin.size().fill_null(0)
    headers = pl.col("_headers").list.eval(header).list.sum().fill_null(0)
    # The client compresses records together, so what each will take is not known: the whole size counts.
    size = values.cast(pl.Binary).bin.size().fill_null(0) + records["_key"].str.len_bytes().fill_null(0)
    ahead_ms = pl.col("_timestamp_ms") - now_ms
    reason = pl.when(pl.lit(size) + headers + AROUND > pl.lit(limits.max_bytes, pl.Int64)).then(pl.lit(TOO_LARGE))
    wrong_time = (ahead_ms > pl.lit(limits.after_ms, pl.Int64)) | (-ahead_ms > pl.lit(limits.before_ms, pl.Int64))
    return records.select(reason=reason.when(wrong_time).then(pl.lit(REFUSED_TIME)))["reason"]
