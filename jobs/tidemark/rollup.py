"""Latency rollups by minute, hour and day of the finish clock, UTC (ring 1: frames in, frames out).

Only what can be merged is kept, so an hour is the merge of its minutes and a day of its hours: only minutes read facts.
Every interval that is touched is computed as a whole: an hour from its first fact to its last, and a day with its other
hours as they were rolled up before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name it has everywhere

from tidemark.buckets import bucket_value_sql
from tidemark.intervals import Grain, Interval, any_of, is_text
from tidemark.tables import LATENCY_BUCKET_ROLLUP, LATENCY_ROLLUP

OPERATOR = ("topology", "sub_topology", "operator", "kind")
INTERVAL = (*OPERATOR, "grain", "interval_start", "interval_end")
QUANTILES: Mapping[str, float] = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


def touched(interval: Interval) -> str:
    """A predicate: the row's interval is one that a rollup of *interval* replaces."""
    hours, days = interval.widened(Grain.HOUR), interval.widened(Grain.DAY)
    starts = {Grain.MINUTE: hours, Grain.HOUR: hours, Grain.DAY: days}
    return any_of(f"({is_text('grain', g)} and {s.holds('interval_start')})" for g, s in starts.items())


def bucket_rollup(facts: DataFrame, stored: DataFrame, interval: Interval) -> DataFrame:
    """LATENCY_BUCKET_ROLLUP of what *interval* touches, from latency_buckets and the *stored* rollup of other hours."""
    rolled = _rolled_up(facts, stored, interval, by=("bucket",), aggregates=(F.sum("n").alias("n"),))
    return rolled.select(*LATENCY_BUCKET_ROLLUP.names)


def latency_rollup(facts: DataFrame, stored: DataFrame, buckets: DataFrame, interval: Interval) -> DataFrame:
    """LATENCY_ROLLUP of what *interval* touches, from operator_latency, the *stored* rollup and the *buckets* rolled up."""
    aggregates = (
        F.sum("n").alias("n"),
        F.min("min_ms").alias("min_ms"),
        F.max("max_ms").alias("max_ms"),
        F.sum("sum_ms").alias("sum_ms"),
        F.sum("negative_n").alias("negative_n"),
    )
    rolled = _rolled_up(facts, stored, interval, by=(), aggregates=aggregates)
    with_average = rolled.withColumn("avg_ms", F.col("sum_ms") / F.col("n"))
    return with_average.join(percentiles(buckets), [*INTERVAL], how="left").select(*LATENCY_ROLLUP.names)


def percentiles(buckets: DataFrame) -> DataFrame:
    """One row per operator and interval of LATENCY_BUCKET_ROLLUP rows, with the quantiles that QUANTILES names.

    The rank of a quantile is that of `buckets.quantile`: ⌊q · (N − 1)⌋ from 0.
    """
    whole = Window.partitionBy(*INTERVAL)
    up_to_here = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = buckets.withColumns({"up_to": F.sum("n").over(up_to_here), "total": F.sum("n").over(whole)})
    value_ms = F.expr(bucket_value_sql("bucket"))

    def quantile(q: float) -> Column:
        return F.min(F.when(F.col("up_to") > F.floor(F.lit(q) * (F.col("total") - 1)), value_ms))

    return ranked.groupBy(*INTERVAL).agg(*(quantile(q).alias(name) for name, q in QUANTILES.items()))


def _rolled_up(
    facts: DataFrame, stored: DataFrame, interval: Interval, *, by: Sequence[str], aggregates: Sequence[Column]
) -> DataFrame:
    """Minutes from *facts*, hours from the minutes, days from these hours and the *stored* ones that are not touched."""
    hours_touched, days_touched = interval.widened(Grain.HOUR), interval.widened(Grain.DAY)

    def merged(rows: DataFrame, grain: Grain) -> DataFrame:
        start = F.date_trunc(grain, "at")
        end = start + F.expr(f"interval 1 {grain}")
        keys = (F.lit(grain).alias("grain"), start.alias("interval_start"), end.alias("interval_end"))
        return rows.groupBy(*OPERATOR, *keys, *by).agg(*aggregates)

    minutes = merged(
        facts.where(hours_touched.holds("finished_at")).withColumnRenamed("finished_at", "at"), Grain.MINUTE
    )
    hours = merged(minutes.withColumnRenamed("interval_start", "at"), Grain.HOUR)
    other_hours = (
        stored.where(is_text("grain", Grain.HOUR))
        .where(days_touched.holds("interval_start"))
        .where(f"not {hours_touched.holds('interval_start')}")
    )
    all_hours = hours.unionByName(other_hours.select(*hours.columns))
    days = merged(all_hours.withColumnRenamed("interval_start", "at"), Grain.DAY)
    return reduce(DataFrame.unionByName, [minutes, hours, days])

