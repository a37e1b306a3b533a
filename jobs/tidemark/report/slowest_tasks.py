"""Names the task of a sharded operator that finished a window last, and its hottest key (ring 1)."""

from __future__ import annotations

import polars as pl

OF_TASK = ("slowest_task", "behind_tasks_ms", "hot_key", "hot_share")
"""The columns of `critical_path_steps` that are about it."""


def with_slowest_tasks(steps: pl.DataFrame, finished: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `critical_path_steps` with OF_TASK, null where an operator has one task.

    *finished* has the batch in which each operator finished a window, and *tasks* are rows of `operator_tasks`.
    """
    if tasks.is_empty():
        return steps
    slowest = finished.join(slowest_tasks(tasks), on=["batch_id", "operator"])
    of_window = slowest.select(pl.from_epoch("window_end", "ms").dt.replace_time_zone("UTC"), "operator", *OF_TASK)
    of_window = of_window.cast({"window_end": steps.schema["window_end"]})
    return steps.drop(OF_TASK).join(of_window, on=["window_end", "operator"], how="left").select(steps.columns)


def slowest_tasks(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return OF_TASK of each batch and operator that several of *tasks* worked on.

    Hosts' clocks are compared as they are: what they differ by counts as time of the one that is ahead.
    """
    shard, partition = pl.format("shard {}", "shard"), pl.format("partition {}", "partition")
    named = tasks.with_columns(task=pl.coalesce(shard, partition), finished_ms=pl.col("finished_at").dt.epoch("ms"))
    latest_first = named.sort(["finished_ms", "shard", "partition"], descending=[True, False, False])
    finished_ms = pl.col("finished_ms")
    slowest = latest_first.group_by("batch_id", "operator", maintain_order=True).agg(
        n=pl.len(),
        slowest_task=pl.col("task").first(),
        behind_tasks_ms=finished_ms.first() - finished_ms.slice(1).median().cast(pl.Int64()),
        hot_key=pl.col("hot_key").first(),
        hot_share=pl.col("hot_share").first(),
    )
    return slowest.filter(pl.col("n") > 1).drop("n")
