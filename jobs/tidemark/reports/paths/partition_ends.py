"""Finds when each input partition of a source finished a window.

A partition is an operator in Apex's physical DAG. Its end-window time (EWT) of a window is the finish clock of the
source in the first batch in which the partition's own watermark passed the window's end. A partition that did not pass
it before the window closed was idle, or was never read, and has none.
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


class BatchClocks(NamedTuple):
    """Rows that have finish clocks of batches.

    `tasks` are those of `spark_tasks`, `sources` those of `measured_tasks` about sources, `batches` of `batches`, and
    `latencies` those of `latency_minutes` about sources and the batches that closed windows.
    """

    tasks: pl.DataFrame
    sources: pl.DataFrame
    batches: pl.DataFrame
    latencies: pl.DataFrame


def closed_at_sources(steps: pl.DataFrame, finished: pl.DataFrame, topology: Topology) -> pl.DataFrame:
    """Returns the windows that sources finished, in epoch ms.

    Args:
        steps: rows of `critical_path_steps`.
        finished: in which batch, and when (by the clock of all hosts), each operator finished a window.
        topology: as it is now.
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
        closed: windows, as from `closed_at_sources`.
        partitions: rows of `partition_batches`.
    """
    in_order = partitions.rename({"source": "operator"}).drop_nulls([*PARTITION, "watermark"]).sort("batch_id")
    # A window that was passed stays passed, should time have been set back.
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
    """Returns the EWT of each partition in *passes*.

    *passes* are those of `passing_batches`. `ewt_ms` is by the clock of the driver, in epoch ms. It is that of the task
    where one took the partition in. Else the driver finished all partitions of a batch at once. A partition that passed
    by a mark of time alone ended with its batch. Where no row has a clock it is the batch's decision time.
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
    """Returns the partition of each window that others waited for.

    It is the last to pass the window's end, in the batch that closed it, and later than the median of the other
    partitions that passed it. Windows without such a partition are left out.
    """
    several = ends.filter(pl.len().over(STEP) > 1)
    # Partitions of one batch end at once in a driver. Then it is the one that `window_parts` names, too.
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
