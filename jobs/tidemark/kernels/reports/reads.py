"""Lists what batches read of each partition."""

from __future__ import annotations

import polars as pl


def partition_reads(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Returns those of *rows* of `partition_batches` whose batch looked at the partition.

    They also have n and `unread`: n counts the offsets that were read, where a topic has gaps more than there were
    records; `unread` is null if the broker was not asked.
    """
    return rows.drop_nulls("until_offset").with_columns(
        n=pl.col("until_offset") - pl.col("from_offset"), unread=pl.col("latest_offset") - pl.col("until_offset")
    )
