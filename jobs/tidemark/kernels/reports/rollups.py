"""Merges latency by scope and interval; percentiles come from the buckets.

Hours are merged from minutes, days from hours. A frame of *measured* rows has SCOPED, `interval_start`, STATISTICS and
`buckets`. Columns that a scope does not have are null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from tidemark.kernels.columns.buckets import STATISTICS, in_rows, merged
from tidemark.model.settings.intervals import Grain, Interval, Scope
from tidemark.semantics.buckets import value_of
from tidemark.semantics.quantiles import DIGITS


@dataclass(frozen=True)
class Outline:
    """Properties of a topology that its facts do not have.

    Attributes:
        paths: by terminal operator, its path as text.
        sla_ms: by operator with an SLA, how old its records may be when it has finished them.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    sla_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def of_paths(self) -> dict[str, int]:
        """The promise of each path: that of its terminal operator."""
        return {path: self.sla_ms[name] for name, path in self.paths.items() if name in self.sla_ms}

    @property
    def of_topology(self) -> int | None:
        """The promise that all terminal operators share; None if they differ."""
        promised = {self.sla_ms.get(name) for name in self.paths}
        return promised.pop() if len(promised) == 1 else None


NO_OUTLINE = Outline()
TASK = ("topology", "sub_topology", "operator", "kind", "task_id")
MEASURED = (*STATISTICS, "buckets")
NO_TASKS = pl.DataFrame(
    schema={
        **dict.fromkeys(TASK, pl.String),
        "interval_start": pl.Datetime("us", "UTC"),
        **dict.fromkeys(STATISTICS, pl.Int64),
        "buckets": pl.List(pl.Struct({"bucket": pl.Int32, "n": pl.Int64})),
    }
)
"""Measured rows by task: none."""
FACTS = (*TASK, "finished_at", *MEASURED)
SCOPED = ("scope", *TASK, "path")
QUANTILES: Mapping[str, float] = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


def by_minute(
    facts: pl.LazyFrame,
    minutes: Collection[Interval],
    *,
    engine: Literal["in-memory", "streaming"] = "in-memory",
) -> pl.DataFrame:
    """Returns measured rows by task and minute, without `scope` and `path`.

    Args:
        facts: rows of `latency_minutes` with the columns of FACTS.
        minutes: the minutes in which they finished that count.
        engine: the streaming engine is for more rows than fit into memory.
    """
    minute = pl.col("finished_at").dt.truncate("1m")
    finished = facts.filter(_is_in("finished_at", minutes)).with_columns(interval_start=minute)
    return merged(finished, [*TASK, "interval_start"], engine=engine).select(NO_TASKS.columns)


def in_scopes(tasks: pl.DataFrame, paths: Mapping[str, str]) -> pl.DataFrame:
    """Returns the measured rows of all scopes by minute.

    Args:
        tasks: measured rows by task, without `scope` and `path`.
        paths: by the name of a terminal operator, the path to it as text.
    """
    null = pl.lit(None, pl.String)
    of_terminals = tasks.filter(pl.col("operator").is_in(list(paths)))
    path, no_operator = pl.col("operator").replace(paths), dict.fromkeys(TASK[1:], null)
    frames = {
        Scope.OPERATOR: tasks.with_columns(task_id=null, path=null),
        Scope.TASK: tasks.with_columns(path=null),
        Scope.TOPOLOGY: of_terminals.with_columns(**no_operator, path=null),
        # The latency of a path is that of the operator that ends it.
        Scope.PATH: of_terminals.with_columns(**no_operator, path=path),
    }
    measured = [frame.with_columns(scope=pl.lit(scope.value)) for scope, frame in frames.items()]
    return _merged(pl.concat(measured), Grain.MINUTE)


def rows_to_keep(stored: pl.DataFrame, hour: Interval, minutes: Collection[Interval]) -> pl.DataFrame:
    """Returns the *stored* rows that a rollup of *minutes* in *hour* needs beside its own, and leaves as they are.

    These are the other minutes of *hour*, and the other hours of its day.
    """
    grain = pl.col("grain")
    is_minute = (grain == Grain.MINUTE.value) & starts_in([hour]) & ~starts_in(minutes)
    is_hour = (grain == Grain.HOUR.value) & starts_in([hour.widened(Grain.DAY)]) & ~starts_in([hour])
    return stored.filter(is_minute | is_hour)


def starts_in(intervals: Collection[Interval]) -> pl.Expr:
    """Returns True for a row whose interval starts in one of *intervals*."""
    return _is_in("interval_start", intervals)


def by_grain(minutes: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """Returns the measured rows of all grains: *minutes*, the hours that they are in, and the days of these.

    *stored* has, with their `grain`, the other minutes of these hours and the other hours of these days.
    """

    def with_stored(new: pl.DataFrame, grain: Grain) -> pl.DataFrame:
        return pl.concat([new, stored.filter(grain=grain.value).select(new.columns)])

    hours = _merged(with_stored(minutes, Grain.MINUTE), Grain.HOUR)
    days = _merged(with_stored(hours, Grain.HOUR), Grain.DAY)
    frames = {Grain.MINUTE: minutes.select(hours.columns), Grain.HOUR: hours, Grain.DAY: days}
    rows: list[pl.DataFrame] = []
    for grain, frame in frames.items():
        interval_end = pl.col("interval_start").dt.offset_by(_LENGTH[grain])
        rows.append(frame.with_columns(grain=pl.lit(grain.value), interval_end=interval_end))
    return pl.concat(rows)


def latencies(measured: pl.DataFrame, outline: Outline) -> pl.DataFrame:
    """Returns the *measured* rows, one per scope and interval, with average, percentiles and the share over the SLA."""
    interval = [*SCOPED, "grain", "interval_start", "interval_end"]
    statistics = measured.with_columns(avg_ms=pl.col("sum_ms") / pl.col("n"), sla_ms=_promised(outline))
    of_buckets = _of_buckets(statistics.lazy().select(*interval, "sla_ms", "buckets"), interval)
    joined = statistics.join(of_buckets, on=interval, how="left", nulls_equal=True)
    # As in `buckets.quantile`, a value that a bucket stands for is not beyond the exact extremes.
    within = pl.col(*QUANTILES).clip(pl.col("min_ms"), pl.col("max_ms"))
    return joined.with_columns(within, over_sla_share=pl.col("over_sla_n") / pl.col("n"))


def shrunk_minutes(stored: pl.DataFrame, tasks: pl.DataFrame) -> list[int]:
    """Returns the starts, epoch ms, of minutes for which *tasks* count fewer records than *stored* rows do."""
    of_tasks = stored.filter(grain=Grain.MINUTE.value, scope=Scope.TASK.value)
    row = [*TASK, "interval_start"]
    had, left = (in_rows(rows.lazy().select(*row, "buckets")) for rows in (of_tasks, tasks))
    joined = had.join(left.rename({"n": "left_n"}), on=[*row, "bucket"], how="left", nulls_equal=True).collect()
    # Facts are only ever added, so some facts of these minutes were removed.
    fewer = joined.filter(pl.col("left_n").fill_null(0) < pl.col("n"))
    return fewer["interval_start"].dt.epoch("ms").unique().sort().to_list()


_LENGTH: Mapping[Grain, str] = {Grain.MINUTE: "1m", Grain.HOUR: "1h", Grain.DAY: "1d"}


def _is_in(column: str, intervals: Collection[Interval]) -> pl.Expr:
    at_ms = pl.col(column).dt.epoch("ms")
    each = (at_ms.is_between(interval.start_ms, interval.end_ms, closed="left") for interval in intervals)
    return pl.any_horizontal(pl.lit(value=False), *each)


def _merged(measured: pl.DataFrame, grain: Grain) -> pl.DataFrame:
    start = pl.col("interval_start").dt.truncate(_LENGTH[grain])
    return merged(measured.lazy().with_columns(start), [*SCOPED, "interval_start"])


def _promised(outline: Outline) -> pl.Expr:
    """Returns what is promised for the operator, path or topology of a row, in ms; null if nothing is."""
    of_operator = pl.col("operator").replace_strict(outline.sla_ms, default=None, return_dtype=pl.Int64)
    of_path = pl.col("path").replace_strict(outline.of_paths, default=None, return_dtype=pl.Int64)
    is_topology = pl.col("scope") == Scope.TOPOLOGY.value
    return pl.when(is_topology).then(pl.lit(outline.of_topology, pl.Int64)).otherwise(pl.coalesce(of_operator, of_path))


def _of_buckets(lists: pl.LazyFrame, by: list[str]) -> pl.DataFrame:
    """Returns quantiles and the records over the SLA per *by*."""
    counts = in_rows(lists).collect()
    stands_for = {bucket: value_of(bucket) for bucket in counts["bucket"].unique()}
    value_ms = pl.col("bucket").replace_strict(stands_for, return_dtype=pl.Float64)
    up_to, total = pl.col("n").cum_sum(), pl.col("n").sum()
    # The rank is that of `semantics.quantiles`.
    quantiles = {
        name: value_ms.filter(up_to >= (q * total).round(DIGITS).ceil()).min() for name, q in QUANTILES.items()
    }
    over_n = pl.col("n").filter(value_ms > pl.col("sla_ms")).sum()
    over_sla_n = pl.when(pl.col("sla_ms").first().is_not_null()).then(over_n)
    return counts.sort("bucket").group_by(by).agg(**quantiles, over_sla_n=over_sla_n)
