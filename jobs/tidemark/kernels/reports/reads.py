"""Lists what batches read of each partition."""

from __future__ import annotations

import polars as pl


def partition_reads(batches: pl.LazyFrame) -> pl.LazyFrame:
    """Returns a row for each partition that *batches* read.

    It has the columns of `sources` in place of that column, and n and `unread`: n counts the offsets that were read,
    where a topic has gaps more than there were records; `unread` is null if the broker was not asked.
    """
    parts = batches.explode("sources").drop_nulls("sources").unnest("sources")
    return parts.with_columns(
        n=pl.col("until_offset") - pl.col("from_offset"), unread=pl.col("latest_offset") - pl.col("until_offset")
    )
