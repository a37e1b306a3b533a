"""What SLAs are judged by: Spark frames, and the accounting (ring 1).

Rows of one shape come from many tables and are aggregated in one job, so that a check of all SLAs shuffles once.
Every function but `facts` and `accounts` gives such rows: `what` they say of which `subject`, and over which time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.report.path_facts import Row, Tables
from tidemark.report.sla_status import What
from tidemark.semantics.buckets import bucket_sql
from tidemark.semantics.critical_path import State
from tidemark.semantics.idleness import Activity
from tidemark.spec.intervals import Interval
from tidemark.spec.tables import BECAME, CAME_IN

ACCOUNTS = f"""
    WITH finished AS (SELECT sub_topology, batch_id, finished_at FROM batches WHERE topology = $1),
    later AS (
        SELECT sub_topology, min(batch_id) AS batch_id FROM finished WHERE finished_at > make_timestamptz($2 * 1000)
        GROUP BY sub_topology
    ),
    counted AS (
        SELECT o.sub_topology, o.operator, o.kind, f.finished_at, {" + ".join(CAME_IN)} AS n_in,
               {" + ".join(BECAME)} AS n_out, least({", ".join([*CAME_IN, *BECAME])}) AS lowest
        FROM outcomes AS o
        LEFT JOIN finished AS f USING (sub_topology, batch_id)
        LEFT JOIN later AS l USING (sub_topology)
        WHERE o.topology = $1 AND (l.batch_id IS NULL OR o.batch_id < l.batch_id)
    )
    SELECT sub_topology, operator, kind, count(*) AS batches, sum(n_in)::bigint AS updates_in,
           sum(n_out)::bigint AS updates_out, min(lowest) AS lowest,
           count_if(n_in IS DISTINCT FROM n_out) AS open_batches,
           min(epoch_ms(finished_at)) FILTER (WHERE n_in IS DISTINCT FROM n_out) AS open_since_ms
    FROM counted GROUP BY sub_topology, operator, kind
"""
ACCOUNT = (
    "sub_topology",
    "operator",
    "kind",
    "batches",
    "updates_in",
    "updates_out",
    "lowest",
    "open_batches",
    "open_since_ms",
)
"""The columns of what that says."""
MEASURED = (State.INPUT.value, State.MEASURED.value, State.CLAMPED_NEGATIVE.value)


def facts(rows: Iterable[DataFrame]) -> DataFrame:
    """One row per what, subject, `over_ms` and bucket: `n` summed, the greatest `at_ms`, `idle` by the newest batch."""
    keys = ("what", "subject", "over_ms", "bucket")
    idle = F.max_by("idle", "batch_id").alias("idle")
    return (
        reduce(DataFrame.unionByName, rows)
        .groupBy(*keys)
        .agg(F.sum("n").alias("n"), F.max("at_ms").alias("at_ms"), idle)
    )


def newest(rows: DataFrame, table: str) -> DataFrame:
    """The record times visible in *table*."""
    return _rows(rows, What.NEWEST, F.lit(table), at_ms=F.unix_millis("timestamp"))


def watermarks(rows: DataFrame) -> list[DataFrame]:
    """The watermarks of sources, with whether they were idle, and of sub-topologies."""
    combined = rows.where("partition is null")
    marks = {"at_ms": F.unix_millis("watermark"), "batch_id": F.col("batch_id")}
    idle = F.col("activity") == Activity.IDLE.value
    return [
        _rows(combined.where("source is not null"), What.SOURCE, F.col("source"), None, **marks, idle=idle),
        _rows(combined.where("source is null"), What.SUB_TOPOLOGY, F.col("sub_topology"), None, **marks),
    ]


def latencies(latency_buckets: DataFrame, over: Interval) -> DataFrame:
    """Records by operator and bucket of their end-to-end latency, of those that finished in the interval *over*."""
    finished = latency_buckets.where(over.holds("finished_at"))
    return _rows(finished, What.LATENCY, F.col("operator"), over, bucket=F.col("bucket"), n=F.col("n"))


def told(table: str, newest_ms: int | None) -> dict[str, Any]:
    """The fact that *newest_ms* is the newest record time in a *table*, which its log has told."""
    kinds = ("over_ms", "bucket", "n", "idle")
    return {"what": What.NEWEST.value, "subject": table, "at_ms": newest_ms, **dict.fromkeys(kinds)}


def records(batches: DataFrame, outcomes: DataFrame, over: Interval) -> DataFrame:
    """Records that came in by operator, in the batches that were finished in the interval *over*."""
    finished = batches.where(over.holds("finished_at")).select("sub_topology", "batch_id")
    came_in = outcomes.join(finished, ["sub_topology", "batch_id"], "left_semi")
    return _rows(came_in, What.RECORDS, F.col("operator"), over, n=F.col("records_in"))


def added_latencies(critical_path_steps: DataFrame, critical_paths: DataFrame, over: Interval) -> DataFrame:
    """Windows by operator and bucket of what it added to them, of those whose path was finished in *over*."""
    windows = _finished(critical_path_steps, critical_paths, over).where(F.col("state").isin(*MEASURED))
    return _rows(windows, What.ADDED, F.col("operator"), over, bucket=F.expr(bucket_sql("latency_ms")), n=F.lit(1))


def critical_latencies(critical_path_steps: DataFrame, critical_paths: DataFrame, over: Interval) -> DataFrame:
    """What operators added, as n, to the windows whose path was finished in *over* and in which they were critical."""
    steps = _finished(critical_path_steps, critical_paths, over).where("step is not null")
    return _rows(steps, What.CRITICAL, F.col("operator"), over, n=F.col("latency_ms"))


def _finished(critical_path_steps: DataFrame, critical_paths: DataFrame, over: Interval) -> DataFrame:
    """The steps of the windows whose path came to its end in the interval *over* of the finish clock."""
    age_ms = F.col("before_source_ms") + F.col("latency_ms")
    finished = F.timestamp_millis(F.unix_millis("window_end") + age_ms).alias("finished_at")
    paths = critical_paths.select("topology", "window_start", "window_end", finished).where(over.holds("finished_at"))
    return critical_path_steps.join(paths, ["topology", "window_start", "window_end"], "left_semi")


def accounts(tables: Tables, topology: str, *, at_ms: int) -> list[Row]:
    """Per sub-topology and operator: batches, updates in and out, the lowest count, and the batches that do not close.

    `open_since_ms` is when the first of these was finished, epoch ms; null when all close, or it is not finished yet.
    Batches are those before the first that was finished after *at_ms*.
    """
    return tables.ask(ACCOUNTS, [topology, at_ms]).objects


def _rows(rows: DataFrame, what: What, subject: Column, over: Interval | None = None, **values: Column) -> DataFrame:
    """*rows* in the common shape, null where no value is given."""
    kinds = {"bucket": "int", "n": "bigint", "at_ms": "bigint", "idle": "boolean", "batch_id": "bigint"}
    columns = (values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items())
    over_ms = F.lit(over.length_ms if over else None).cast("bigint").alias("over_ms")
    return rows.select(F.lit(what.value).alias("what"), subject.alias("subject"), over_ms, *columns)
