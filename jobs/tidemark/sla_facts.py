"""What SLAs are judged by, as Spark frames of one shape that are read together in one job (ring 1).

A fact says `what` was measured of which `subject`, over how many ms before the check: a `value` (instants epoch ms,
lengths ms), or `n` records in a `bucket`.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.critical_path import State
from tidemark.idleness import Activity
from tidemark.intervals import Interval
from tidemark.sla_status import What
from tidemark.tables import OUTCOMES

COUNTS = OUTCOMES.names[OUTCOMES.names.index("records_in") : OUTCOMES.names.index("fan_out")]
IN = ("records_in", "held_before")
OUT = tuple(count for count in COUNTS if count not in IN)
MEASURED = (State.INPUT.value, State.MEASURED.value, State.CLAMPED_NEGATIVE.value)


def newest(rows: DataFrame, table: str) -> DataFrame:
    """The newest record time visible in the *rows* of *table*; null when there is none."""
    return _facts(rows.agg(F.max(F.unix_millis("timestamp")).alias("value")), F.lit(What.NEWEST.value), F.lit(table))


def watermarks(rows: DataFrame) -> DataFrame:
    """Of the rows of watermarks the newest per source, and per sub-topology: the watermark, and n = 1 for idle."""
    of_source = F.col("source").isNotNull()
    what = F.when(of_source, What.SOURCE.value).otherwise(What.SUB_TOPOLOGY.value)
    subject = F.coalesce("source", "sub_topology")
    newest_rows = rows.where("partition is null").groupBy(what.alias("what"), subject.alias("subject"))
    found = newest_rows.agg(
        F.max_by(F.unix_millis("watermark"), "batch_id").alias("value"),
        F.max_by(F.col("activity").eqNullSafe(Activity.IDLE.value).cast("bigint"), "batch_id").alias("n"),
    )
    return _facts(found, F.col("what"), F.col("subject"))


def latencies(latency_buckets: DataFrame, over: Interval) -> DataFrame:
    """Records per operator and bucket that finished in the interval *over*."""
    finished = latency_buckets.where(over.holds("finished_at")).groupBy("operator", "bucket")
    return _facts(finished.agg(F.sum("n").alias("n")), F.lit(What.LATENCY.value), F.col("operator"), over)


def added_latencies(critical_path_steps: DataFrame, over: Interval) -> DataFrame:
    """Per operator the median of what it added to the windows that end in the interval *over*."""
    windows = critical_path_steps.where(over.holds("window_end")).where(F.col("state").isin(*MEASURED))
    median = windows.groupBy("operator").agg(F.percentile("latency_ms", F.lit(0.5)).alias("value"))
    return _facts(median, F.lit(What.ADDED.value), F.col("operator"), over)


def critical_latencies(critical_path_steps: DataFrame, over: Interval) -> DataFrame:
    """Per operator the sum of what it added to the windows that end in the interval *over*, where it was critical."""
    steps = critical_path_steps.where(over.holds("window_end")).where("step is not null")
    return _facts(
        steps.groupBy("operator").agg(F.sum("latency_ms").alias("value")),
        F.lit(What.CRITICAL.value),
        F.col("operator"),
        over,
    )


def accounts(outcomes: DataFrame, batches: DataFrame) -> DataFrame:
    """Per sub-topology and operator: batches, updates in and out, the lowest count, and the batches that do not close.

    `open_since_ms` is when the first of these was finished, epoch ms; null when all close, or it is not finished yet.
    """
    updates_in, updates_out = (reduce(add, map(F.col, counts)) for counts in (IN, OUT))
    is_open = ~updates_in.eqNullSafe(updates_out)
    finished = batches.select("sub_topology", "batch_id", "finished_at")
    return (
        outcomes.join(finished, ["sub_topology", "batch_id"], how="left")
        .groupBy("sub_topology", "operator", "kind")
        .agg(
            F.count(F.lit(1)).alias("batches"),
            F.sum(updates_in).alias("updates_in"),
            F.sum(updates_out).alias("updates_out"),
            F.min(F.least(*COUNTS)).alias("lowest"),
            F.count_if(is_open).alias("open_batches"),
            F.min(F.when(is_open, F.unix_millis("finished_at"))).alias("open_since_ms"),
        )
    )


def _facts(rows: DataFrame, what: Column, subject: Column, over: Interval | None = None) -> DataFrame:
    columns = {"bucket": "int", "n": "bigint", "value": "double"}
    values = (
        (F.col(name) if name in rows.columns else F.lit(None)).cast(kind).alias(name) for name, kind in columns.items()
    )
    over_ms = F.lit(over.length_ms if over else None).cast("bigint").alias("over_ms")
    return rows.select(what.alias("what"), subject.alias("subject"), over_ms, *values)
