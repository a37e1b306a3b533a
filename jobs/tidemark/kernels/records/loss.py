"""Finds offsets that were deleted before they were read.

A gap alone is no loss: compacted and transactional topics have gaps. Offsets before the earliest one that the broker
still has are lost if they were not read.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl


def with_gaps(rows: pl.DataFrame, read_to: Mapping[int, int]) -> list[int]:
    """Returns the partitions whose *rows* do not follow *read_to* without a gap."""
    per_partition = rows.group_by("partition", maintain_order=True).agg(
        first=pl.col("offset").min(), last=pl.col("offset").max(), n=pl.len()
    )
    # Without a gap there are as many rows as offsets from `read_to` to the last one.
    return [p for p, first, last, n in per_partition.iter_rows() if last - read_to.get(p, first) + 1 != n]


def lost(rows: pl.DataFrame, partition: int, *, read_to: int, earliest: int) -> tuple[int, int] | None:
    """Returns the range of offsets, from (inclusive) until (exclusive), that *partition* has lost; None if it has none.

    Args:
        rows: what the batch read.
        partition: the partition.
        read_to: the offset up to which earlier batches have read it.
        earliest: the first offset that the broker still had after the rows were read.
    """
    read = rows.filter(pl.col("partition") == partition)["offset"]
    if earliest > read_to and isinstance(first_read := read.min(), int) and first_read > read_to:
        return read_to, min(first_read, earliest)
    # A gap may begin after rows of the batch: a topic can remove records while it is read.
    before = rows.filter((pl.col("partition") == partition) & (pl.col("offset") < earliest))["offset"].max()
    first = before + 1 if isinstance(before, int) else read_to
    return (first, earliest) if first < earliest else None
