"""Finds the record of a batch with which a partition passed an instant of record time.

The timestamp of a record is the finish clock of its task less its latency: exact for the oldest and the newest record
of a task, and by latency buckets within 1 % of the latency for those between.
"""

from __future__ import annotations

import polars as pl

from tidemark.kernels.columns.buckets import in_rows, value_of
from tidemark.semantics.buckets import RELATIVE_ERROR

TASK = ["sub_topology", "operator", "task_id", "batch_id"]


def record_times(minutes: pl.DataFrame) -> pl.DataFrame:
    """Returns the timestamps of the records that tasks read, in order: `record_ms` and `latest_ms`, epoch ms.

    A record of a latency bucket is known within the bucket only: it may be as late as `latest_ms`. *minutes* are rows
    of `latency_minutes` about single batches.
    """
    ends = ["min_ms", "max_ms"]
    extremes = pl.min("min_ms").over(TASK), pl.max("max_ms").over(TASK)
    tasks = minutes.select(*TASK, *extremes, "buckets", finished_ms=pl.col("finished_at").dt.epoch("ms"))
    value_ms = pl.col("value_ms")
    # A bucket has values from v / (1 + e) to v / (1 - e), and those below 0 in the same distance from 0.
    shortest_ms = (value_ms / (1 + RELATIVE_ERROR * value_ms.sign())).floor().cast(pl.Int64())
    between = (
        in_rows(tasks.lazy())
        .with_columns(value_ms=value_of("bucket"))
        # The value of a bucket may lie outside of the measured latencies.
        .select(
            *TASK,
            *(
                _before_finish(ms.clip(*map(pl.col, ends)), name)
                for ms, name in [(value_ms, "record_ms"), (shortest_ms, "latest_ms")]
            ),
        )
        .collect()
    )
    exact = [
        tasks.select(*TASK, *(_before_finish(pl.col(end), name) for name in ("record_ms", "latest_ms"))) for end in ends
    ]
    return pl.concat([between, *exact]).unique().sort("latest_ms", "record_ms")


def _before_finish(latency_ms: pl.Expr, name: str) -> pl.Expr:
    return (pl.col("finished_ms") - latency_ms).cast(pl.Int64()).alias(name)


def first_records(asked: pl.DataFrame, times: pl.DataFrame) -> pl.Series:
    """Returns, for each row of *asked*, the timestamp of the oldest record at or beyond `needed_ms`; null if unknown.

    *asked* names the tasks and their batches, and *times* is what `record_times` returns.
    """
    needed = asked.select(*TASK, pl.col("needed_ms").cast(pl.Int64())).with_row_index("row").sort("needed_ms")
    found = needed.join_asof(
        times,
        left_on="needed_ms",
        right_on="latest_ms",
        by=TASK,
        strategy="forward",
        coalesce=False,
        check_sortedness=False,
    )
    record_ms = pl.when(pl.col("record_ms").is_not_null()).then(pl.max_horizontal("needed_ms", "record_ms"))
    return found.sort("row").select(record_ms=record_ms).to_series()
