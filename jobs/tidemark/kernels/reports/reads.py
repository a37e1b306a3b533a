"""Lists what batches read of each partition."""

from __future__ import annotations

import polars as pl


def partition_reads(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Returns the *rows* of `partition_batches` in which the batch looked at the partition, with `n` and `unread`.

    `n` is the number of offsets that were read; in a topic with gaps that is more than the number of records. `unread`
    is null if the broker was not asked.
    """
    return rows.drop_nulls("until_offset").with_columns(
        n=pl.col("until_offset") - pl.col("from_offset"), unread=pl.col("latest_offset") - pl.col("until_offset")
    )
