"""Names the task of each step of a critical path, which is the path in Apex's physical DAG.

A task is a shard or an input partition. In a batch with shards, each shard waits for all input partitions and then runs
its operators one after the other. So the path begins at the partition that passed the end of the window last, and goes
on through the operators of one shard: the one that finished its last operator last. What the driver commits itself,
such as a sink, is finished with that.

The end-window time (EWT) of a partition is the finish clock of the source in the first batch in which the partition's
own watermark passed the window's end. A partition that did not pass it before the window closed was idle, or was never
read, and has none.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from tidemark.kernels.reports.record_times import first_records, record_times
from tidemark.model.topology import Topology

STEP = ["window_end", "operator"]
PARTITION = ["sub_topology", "operator", "partition"]
PASSED = ["sub_topology", "operator", "passed_in"]
TASK = ["batch_id", "operator", "task"]
OF_TASK = ("task", "task_latency_ms", "behind_tasks_ms", "tasks_error_ms", "hot_key", "hot_share")
"""The columns of `critical_path_steps` that are about tasks."""
OF_PARTITION = ("task", "behind_tasks_ms", "tasks_error_ms")
"""The columns that an input partition has without a path."""


class BatchClocks(NamedTuple):
    """Rows that tell when batches, or their tasks, finished.

    Attributes:
        tasks: rows of `spark_tasks`.
        sources: rows of `measured_tasks` about sources.
        batches: rows of `batches`.
        latencies: rows of `latency_minutes` about sources, for batches that closed windows.
    """

    tasks: pl.DataFrame
    sources: pl.DataFrame
    batches: pl.DataFrame
    latencies: pl.DataFrame


def closed_at_sources(steps: pl.DataFrame, finished: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Returns the windows that sources finished, with `needed_ms`, the record time that let them; epoch ms.

    Args:
        steps: rows of `critical_path_steps`.
        finished: in which batch, and when (on one clock for all hosts), each operator finished a window.
        topology: the topology as it is now.
    """
    sources = topology.outside_sources
    schema = {"operator": pl.String(), "bound_ms": pl.Int64()}
    bounds = pl.DataFrame([(source.name, source.bound_ms) for source in sources], schema=schema, orient="row")
    window_end = pl.col("window_end").dt.epoch("ms")
    of_sources = steps.select(window_end, "operator", "sub_topology").join(bounds, on="operator")
    needed_ms = pl.col("window_end") + pl.col("bound_ms")
    return of_sources.join(finished, on=STEP).with_columns(needed_ms=needed_ms)


def passing_batches(closed: pl.DataFrame, partitions: pl.DataFrame) -> pl.DataFrame:
    """Returns the batch in which each input partition passed each window.

    Args:
        closed: the windows, from `closed_at_sources`.
        partitions: rows of `partition_batches`.
    """
    in_order = partitions.rename({"source": "operator"}).drop_nulls([*PARTITION, "watermark"]).sort("batch_id")
    # A window that was passed stays passed, even if a person has set time back since.
    newest_ms = pl.col("watermark").dt.epoch("ms").cum_max().over(PARTITION)
    marks = (
        in_order.with_columns(mark_ms=newest_ms)
        .unique([*PARTITION, "mark_ms"], keep="first", maintain_order=True)
        .select(*PARTITION, "mark_ms", passed_in="batch_id", decided_ms=pl.col("decided_at").dt.epoch("ms"))
    )
    # A watermark passes a window when it reaches its last millisecond.
    by_partition = closed.join(marks.select(PARTITION).unique(), on=PARTITION[:2])
    waiting = by_partition.with_columns(mark_ms=pl.col("window_end") - 1)
    passes = waiting.sort("mark_ms").join_asof(
        marks.sort("mark_ms"), on="mark_ms", by=PARTITION, strategy="forward", check_sortedness=False
    )
    return passes.filter(pl.col("passed_in") <= pl.col("batch_id")).drop("mark_ms").sort(*STEP, "partition")


def partition_ends(passes: pl.DataFrame, clocks: BatchClocks) -> pl.DataFrame:
    """Returns when each partition in *passes*, from `passing_batches`, finished its window: `ewt_ms`, its EWT.

    The EWT is epoch ms by the clock of the driver. If a task read the partition, it is the end of the task; otherwise
    the driver finished all partitions of the batch at once. A partition that passed without a record, by a mark of its
    writer, finished with its batch. If no row has a finish clock, the decision time of the batch stands in for it.
    """
    tasks, sources, batches = (
        rows.with_columns(cs.datetime().dt.epoch("ms")).rename({"batch_id": "passed_in"}) for rows in clocks[:3]
    )
    task_ms = pl.col("finished_at") + pl.col("skew_ms").fill_null(0)
    of_tasks = tasks.select(*PASSED, "partition", task_ms=task_ms, error_ms="skew_error_ms")
    of_sources = sources.select(*PASSED, "task_id", source_ms="finished_at")
    of_batches = batches.select("sub_topology", "passed_in", batch_ms="finished_at")
    with_clocks = (
        passes.with_columns(task_id=pl.format("{}_{}", "sub_topology", "partition"))
        .join(of_tasks, on=[*PASSED, "partition"], how="left", maintain_order="left")
        .join(of_sources, on=[*PASSED, "task_id"], how="left", maintain_order="left")
        .join(of_batches, on=["sub_topology", "passed_in"], how="left", maintain_order="left")
    )
    asked = with_clocks.rename({"batch_id": "closed_in", "passed_in": "batch_id"})
    record_ms = first_records(asked, record_times(clocks.latencies))
    is_closing = pl.col("passed_in") == pl.col("batch_id")
    closing_ms = pl.when(is_closing).then(pl.col("ewt_ms") - pl.col("skew_ms").fill_null(0))
    return with_clocks.select(
        *STEP,
        "partition",
        "passed_in",
        is_closing=is_closing,
        ewt_ms=pl.coalesce("task_ms", closing_ms, "source_ms", "batch_ms", "decided_ms"),
        error_ms=pl.when(pl.col("task_ms").is_null()).then(0).otherwise("error_ms"),
        ready_ms=pl.max_horizontal("needed_ms", record_ms),
    )


def last_partitions(ends: pl.DataFrame) -> pl.DataFrame:
    """Returns for each window the partition that the others waited for.

    That partition passed the end of the window last, in the batch that closed it, and later than the median of the
    other partitions. A window without such a partition is left out.
    """
    several = ends.filter(pl.len().over(STEP) > 1)
    # Without tasks, all partitions of a batch finish at once. Then `ready_ms` finds the one that `window_parts` names.
    order = ["passed_in", "ewt_ms", "ready_ms", "partition"]
    last = several.sort(order, descending=True).unique(STEP, keep="first", maintain_order=True)
    others = several.join(last, on=[*STEP, "partition"], how="anti").group_by(STEP)
    compared = last.join(others.agg(others_ms=pl.col("ewt_ms").median().cast(pl.Int64())), on=STEP)
    errors = several.group_by(STEP).agg(
        tasks_error_ms=pl.when(pl.col("error_ms").is_not_null().all()).then(pl.col("error_ms").max())
    )
    behind = compared.join(errors, on=STEP).with_columns(behind_tasks_ms=pl.col("ewt_ms") - pl.col("others_ms"))
    return behind.filter(pl.col("is_closing") & (pl.col("behind_tasks_ms") > 0)).select(
        *STEP, "behind_tasks_ms", "tasks_error_ms", task=pl.format("partition {}", "partition")
    )


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
    """Returns by how much each *chosen* task finished after the median of the other tasks of its operator, ms."""
    own = of_tasks.join(chosen.select(TASK).unique(), on=TASK, how="semi").select(*TASK, own_ms="ewt_ms")
    others = own.join(of_tasks.rename({"task": "other"}), on=TASK[:2]).filter(pl.col("task") != pl.col("other"))
    behind_ms = pl.col("own_ms").first() - pl.col("ewt_ms").median().cast(pl.Int64())
    return others.group_by(TASK).agg(behind_tasks_ms=behind_ms)


def _latencies(chosen: pl.DataFrame, of_tasks: pl.DataFrame) -> pl.DataFrame:
    """Returns the latency of each *chosen* task on a path, ms: from the EWT of the task before it to its own."""
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
