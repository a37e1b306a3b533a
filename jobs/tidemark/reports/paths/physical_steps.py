"""Names the task of each step of a critical path.

A task is a shard or an input partition. The tasks are the path in Apex's physical DAG. A window waits for all input
partitions, and in a batch in shards every shard does before it runs its operators one after the other. So the path goes
from the partition that passed the window's end last through the operators of one shard: the shard that finished the
last of them last. Whatever a driver commits itself, such as a sink, has finished with that.
"""

from __future__ import annotations

import polars as pl

TASK = ["batch_id", "operator", "task"]
STEP = ["window_end", "operator"]
OF_TASK = ("task", "task_latency_ms", "behind_tasks_ms", "tasks_error_ms", "hot_key", "hot_share")
"""The columns of `critical_path_steps` that are about tasks."""
OF_PARTITION = ("task", "behind_tasks_ms", "tasks_error_ms")
"""The columns that an input partition has without a path."""


def with_tasks(
    steps: pl.DataFrame, finished: pl.DataFrame, tasks: pl.DataFrame, partitions: pl.DataFrame
) -> pl.DataFrame:
    """Returns *steps* with OF_TASK, null where no task finished after others.

    Args:
        steps: rows of `critical_path_steps`.
        finished: in which batch, and when (epoch ms by the clock of all hosts), each operator finished a window.
        tasks: those of `spark_tasks`. Those of input partitions are not used.
        partitions: the last input partition of each window, as from `last_partitions`.
    """
    if tasks.is_empty() and partitions.is_empty():
        return steps
    of_tasks = _several(tasks)
    window_end = pl.col("window_end").dt.epoch("ms")
    placed = steps.select(window_end, "operator", "step", "sub_topology").join(finished, on=STEP, maintain_order="left")
    # An operator off the path waited for the task that finished last.
    latest = of_tasks.sort("ewt_ms", descending=True, maintain_order=True).unique(TASK[:2], keep="first")
    chosen = _steps_of_path(placed.join(latest.select(TASK), on=TASK[:2], how="left")).join(
        of_tasks.drop("ewt_ms"), on=TASK, how="left"
    )
    chosen = chosen.join(_delays_of_tasks(chosen, of_tasks), on=TASK, how="left")
    # A source has no shards, and nothing else has input partitions.
    chosen = chosen.update(partitions.select(*STEP, *OF_PARTITION), on=STEP, how="left")
    chosen = chosen.join(_latencies(chosen, of_tasks), on=STEP, how="left")
    of_window = chosen.select(pl.from_epoch("window_end", "ms").dt.replace_time_zone("UTC"), "operator", *OF_TASK)
    of_window = of_window.cast({"window_end": steps.schema["window_end"]})
    return steps.drop(OF_TASK).join(of_window, on=STEP, how="left").select(steps.columns)


def with_errors_of_tasks(paths: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Adds the clock error of tasks to that of each path.

    *paths* are rows of `critical_paths`, *steps* have the tasks on them. The error is null if that of a task is.
    """
    of_tasks = steps.filter(pl.col("step").is_not_null() & pl.col("task").is_not_null())
    errors = of_tasks.group_by("window_start", "window_end").agg(of_tasks_ms=_largest("tasks_error_ms"), n=pl.len())
    with_errors = paths.join(errors, on=["window_start", "window_end"], how="left", maintain_order="left")
    of_tasks_ms = pl.when(pl.col("n").is_null()).then(0).otherwise("of_tasks_ms")
    return with_errors.with_columns(pl.col("skew_error_ms") + of_tasks_ms).select(paths.columns)


def _largest(error_ms: str) -> pl.Expr:
    """Returns the largest *error_ms*; null if any is null."""
    return pl.when(pl.col(error_ms).is_not_null().all()).then(pl.col(error_ms).max())


def _several(tasks: pl.DataFrame) -> pl.DataFrame:
    """Returns the shards in *tasks* of operators that have several."""
    # The EWT of a shard is by its driver's clock.
    finished_ms = pl.col("finished_at").dt.epoch("ms") + pl.col("skew_ms").fill_null(0)
    shards = tasks.drop_nulls("shard").sort("shard")
    named = shards.with_columns(task=pl.format("shard {}", "shard"), ewt_ms=finished_ms)
    error_ms = _largest("skew_error_ms").over(TASK[:2])
    counted = named.with_columns(n=pl.len().over(TASK[:2]), tasks_error_ms=error_ms)
    return counted.filter(pl.col("n") > 1).select(*TASK, "ewt_ms", "tasks_error_ms", "hot_key", "hot_share")


def _steps_of_path(placed: pl.DataFrame) -> pl.DataFrame:
    """Returns *placed* steps with the shard of their path."""
    in_shards = pl.col("step").is_not_null() & pl.col("task").is_not_null()
    path = ["window_end", "sub_topology"]
    # A record stays in its shard, so steps in shards on a path have the shard of the last of them in their driver.
    of_last = placed.filter(in_shards).group_by(path).agg(of_last=pl.col("task").sort_by("step").last())
    with_last = placed.join(of_last, on=path, how="left")
    return with_last.with_columns(task=pl.when(in_shards).then("of_last").otherwise("task")).drop("of_last")


def _delays_of_tasks(chosen: pl.DataFrame, of_tasks: pl.DataFrame) -> pl.DataFrame:
    """Returns by how much each *chosen* task finished after the others.

    It is compared with the median of the other tasks of its operator, in ms.
    """
    own = of_tasks.join(chosen.select(TASK).unique(), on=TASK, how="semi").select(*TASK, own_ms="ewt_ms")
    others = own.join(of_tasks.rename({"task": "other"}), on=TASK[:2]).filter(pl.col("task") != pl.col("other"))
    behind_ms = pl.col("own_ms").first() - pl.col("ewt_ms").median().cast(pl.Int64())
    return others.group_by(TASK).agg(behind_tasks_ms=behind_ms)


def _latencies(chosen: pl.DataFrame, of_tasks: pl.DataFrame) -> pl.DataFrame:
    """Returns the latency of each *chosen* task on a path, in ms.

    It is the time since the EWT of the task before it.
    """
    path = chosen.filter(pl.col("step").is_not_null()).join(
        of_tasks.select(*TASK, of_task_ms="ewt_ms"), on=TASK, how="left"
    )
    path = path.filter(pl.col("task").is_not_null().any().over("window_end"))
    is_last = pl.col("step") == pl.col("step").max().over("window_end", "sub_topology")
    # Where the clocks of tasks are not known an operator's own EWT counts, which is within its batch.
    is_known = pl.col("tasks_error_ms").is_not_null() & ~is_last
    of_task_ms = pl.when(is_known).then(pl.col("of_task_ms") + pl.col("skew_ms").fill_null(0))
    # So it does for a source: its driver took in all partitions before other operators began.
    path = path.with_columns(ewt_ms=pl.coalesce(of_task_ms, "ewt_ms"))
    latency_ms = pl.col("ewt_ms") - pl.col("ewt_ms").shift(1).over("window_end", order_by="step")
    of_source = pl.when(pl.col("step") == 0).then(0)
    return path.select(*STEP, task_latency_ms=pl.coalesce(latency_ms, of_source))
