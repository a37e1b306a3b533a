"""Finds records that a topic would refuse for their size or time, before a batch is decided.

Source: Kafka's topic settings `max.message.bytes`, `message.timestamp.before.max.ms` and `…after.max.ms`.
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
    """Limits of a topic: bytes of a record, and ms by which its time may lie before and after the broker's clock.

    None means no limit.
    """

    max_bytes: int | None = None
    before_ms: int | None = None
    after_ms: int | None = None


def refused(records: pl.DataFrame, values: pl.Series, limits: TopicLimits, *, now_ms: int) -> pl.Series:
    """Returns why the topic would refuse each record; null where it would accept the record.

    Args:
        records: the records to send.
        values: their values, null for a record that deletes its key.
        limits: limits of the topic.
        now_ms: decision time of the batch, epoch ms UTC.
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
