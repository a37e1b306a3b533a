"""Gives an event time to tombstones, the records that delete their key.

A tombstone has no value whose fields could say when its key was deleted. Where no header and no field of its key says
it (`tombstone_time`), it is as new as the newest record before it in its partition: it deletes what it was sent after.
The broker's time is no event time, and never used for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl


def with_tombstone_times(rows: pl.DataFrame, newest_ms: Mapping[int, int]) -> tuple[pl.DataFrame, dict[int, int]]:
    """Returns *rows* of a source with a time for all tombstones.

    Args:
        rows: the rows, in offset order.
        newest_ms: by partition, the newest event time of all usable records before.

    Returns:
        The rows, and *newest_ms* after them.
    """
    # Times of unusable records move no time, so no tombstone gets one of theirs.
    time = pl.when(pl.col("reason").is_null()).then("timestamp_ms")
    if not rows["deleted"].any():
        reached = rows.select("partition", time=time).group_by("partition").agg(pl.col("time").max()).drop_nulls()
        return rows, {**newest_ms, **{n: max(ms, newest_ms.get(n, ms)) for n, ms in reached.iter_rows()}}
    earlier_ms = pl.col("partition").replace_strict(dict(newest_ms), default=None, return_dtype=pl.Int64)
    newest = pl.max_horizontal(earlier_ms, time.cum_max().forward_fill().over("partition"))
    timeless = pl.col("deleted") & pl.col("reason").is_null() & pl.col("timestamp_ms").is_null()
    marked = rows.with_columns(_newest=newest, _timeless=timeless)
    now = marked.group_by("partition").agg(pl.col("_newest").max()).drop_nulls()
    # No record has shown the time of the partition yet.
    unknown = pl.col("_timeless") & pl.col("_newest").is_null()
    timed = marked.with_columns(
        timestamp_ms=pl.when("_timeless").then("_newest").otherwise("timestamp_ms"),
        reason=pl.when(unknown).then(pl.lit("missing_timestamp")).otherwise("reason"),
    )
    return timed.drop("_newest", "_timeless"), {**newest_ms, **dict(now.iter_rows())}
