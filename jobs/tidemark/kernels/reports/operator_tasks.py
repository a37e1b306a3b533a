"""Reads the tasks in rows of `operator_batches`, one row per task."""

from __future__ import annotations

from typing import TypeVar

import polars as pl

OPERATOR = ("topology", "sub_topology", "batch_id", "operator", "kind")
LATENCY = ("task_id", "partition", "n", "min_ms", "max_ms", "sum_ms", "negative_n")
RUN = (
    "shard",
    "partition",
    "host",
    "started_at",
    "finished_at",
    "records",
    "hot_key",
    "hot_share",
    "skew_ms",
    "skew_error_ms",
)
NEEDED = (*OPERATOR, "finished_at", "tasks")
"""The columns of `operator_batches` that the functions here need."""
F = TypeVar("F", pl.DataFrame, pl.LazyFrame)


def measured_tasks(rows: F) -> F:
    """Returns the latency of each input partition in *rows*, with OPERATOR, LATENCY and the operator's `finished_at`.

    Columns of OPERATOR that *rows* do not have are left out.
    """
    of_tasks = _exploded(rows, "finished_at")
    fields = [pl.col("tasks").struct.field(name) for name in LATENCY]
    return of_tasks.with_columns(fields).drop("tasks").filter(pl.col("n").is_not_null())


def spark_tasks(rows: F) -> F:
    """Returns the work of each of Spark's tasks in *rows*, with OPERATOR and RUN; instants are those of its host."""
    fields = [pl.col("tasks").struct.field(name) for name in RUN]
    return _exploded(rows).with_columns(fields).drop("tasks").filter(pl.col("host").is_not_null())


def _exploded(rows: F, *more: str) -> F:
    existing = [name for name in (*OPERATOR, *more) if name in rows.lazy().collect_schema()]
    return rows.select(*existing, "tasks").explode("tasks", empty_as_null=False, keep_nulls=False)
