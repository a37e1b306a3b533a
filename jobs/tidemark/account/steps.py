"""Walks through the instants of a result, and gives the time between them to owners.

A cursor starts at the beginning of the result's age. It moves to one instant after the other, never back, and never
beyond the instant at which the result is visible. So the parts add up to the age, even if clocks are wrong.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.facts import MS, TEXT
from tidemark.account.owners.clock import CLOCK
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.timeline import overlay

STEPS = pl.Schema(
    {
        "result": pl.Int64(),
        "until_ms": MS,
        "error_ms": MS,
        "owner": TEXT,
        "detail": TEXT,
        "stream": TEXT,
    }
)
"""Steps of results, in their order: until the instant `until_ms`, reference, the time belongs to `owner`.

`error_ms` is by how much that instant may be wrong. If the owner is null, the time belongs to the owners in the
timeline of `stream`. Otherwise `stream` is where the record waited (null: outside of streams).
"""
AGES = pl.Schema(
    {
        "result": pl.Int64(),
        "start_ms": MS,
        "visible_ms": MS,
        "ahead_ms": MS,
        "clock_error_ms": MS,
        "host": TEXT,
        "producer": TEXT,
    }
)
"""The age of a result: from `start_ms`, an event time or the end of a window, to `visible_ms`, wall clock of `host`.

That clock is `ahead_ms` ahead of the reference, give or take `clock_error_ms` (null: nothing measured it). If the age
is negative, the producer with the detail `producer` owns the negative part.
"""
PARTS = pl.Schema(
    {
        "result": pl.Int64(),
        "owner": TEXT,
        "detail": TEXT,
        "stream": TEXT,
        "batch_id": pl.Int64(),
        "ended_ms": MS,
        "ms": MS,
        "error_ms": MS,
    }
)
"""Parts of ages: the `ms` of a result add up to its age.

A part may be wrong by `error_ms` (null: a clock was not measured). `stream` and `batch_id` are those for which the time
was spent (null: it was spent for none). `ended_ms` is when the event that took the time ended, reference. Parts of
several results with the same end come from one event.
"""
OF = ["result", "owner", "detail", "stream", "batch_id", "ended_ms"]
_SUMS = (pl.sum("ms"), pl.when(pl.col("error_ms").is_not_null().all()).then(pl.sum("error_ms")).alias("error_ms"))


def input_partition() -> pl.Expr:
    """Returns INPUT/PARTITION, or the name of a hop alone."""
    return pl.concat_str(["input", "partition"], separator="/", ignore_nulls=True)


def parts_of(ages: pl.DataFrame, steps: pl.DataFrame, timeline: pl.DataFrame) -> pl.DataFrame:
    """Returns the PARTS of the results in *ages* (AGES).

    *steps* are the STEPS of each result in order, of which the last ends when the result is visible. *timeline* is the
    TIMELINE of all streams.
    """
    by_reference = ages.with_columns(end_ms=pl.col("visible_ms") - pl.col("ahead_ms"))
    walked = _walk(by_reference, steps)
    in_timeline = overlay(walked.filter(pl.col("owner").is_null()), timeline)
    owned = walked.filter(pl.col("owner").is_not_null())
    return (
        pl.concat(
            [
                owned.with_columns(ms=pl.col("ended_ms") - pl.col("began_ms")),
                in_timeline.with_columns(ended_ms="piece_ended_ms"),
                _negative(by_reference),
                _of_clocks(by_reference),
            ],
            how="diagonal",
        )
        .group_by(OF, maintain_order=True)
        .agg(*_SUMS)
        .select(PARTS.names())
    )


def by_owner(parts: pl.DataFrame) -> pl.DataFrame:
    """Returns the sums of PARTS of each `result`, `owner` and `detail`: `ms` and `error_ms`."""
    return parts.group_by(OF[:3], maintain_order=True).agg(*_SUMS)


def _walk(ages: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Returns the steps that take time, with `began_ms` and `ended_ms`, and with the errors of both instants added
    up.
    """
    reached = (
        steps.join(ages.select("result", "start_ms", "end_ms", "clock_error_ms"), on="result", maintain_order="left")
        .filter(pl.col("start_ms") <= pl.col("end_ms"))
        .with_columns(
            ended_ms=pl.max_horizontal("start_ms", pl.min_horizontal("until_ms", "end_ms")).cum_max().over("result")
        )
    )
    began_ms = pl.col("ended_ms").shift().over("result").fill_null(pl.col("start_ms"))
    moved = reached.with_columns(began_ms=began_ms).with_columns(moves=pl.col("began_ms") < pl.col("ended_ms"))
    # An instant that does not move the cursor belongs to the move before it: it may be later than its clock says.
    moved = moved.with_columns(move=pl.col("moves").cum_sum().over("result"))
    errors = moved.group_by("result", "move", maintain_order=True).agg(
        at_ms=pl.when(pl.col("error_ms").is_not_null().all()).then(pl.max("error_ms"))
    )
    before = errors.with_columns(move=pl.col("move") + 1)
    of_first = errors.filter(pl.col("move") == 1).select("result", move=pl.lit(1, pl.UInt32), at_ms=pl.lit(0, MS))
    before = pl.concat([before, of_first.join(before, on=["result", "move"], how="anti")])
    return (
        moved.filter("moves")
        .drop("error_ms")
        .join(errors.rename({"at_ms": "until_error_ms"}), on=["result", "move"], maintain_order="left")
        .join(before.rename({"at_ms": "from_error_ms"}), on=["result", "move"], maintain_order="left")
        .with_columns(error_ms=pl.col("until_error_ms") + pl.col("from_error_ms"))
    )


def _negative(ages: pl.DataFrame) -> pl.DataFrame:
    """Returns the negative parts of results that are visible before their event time: a producer's clock is ahead."""
    return ages.filter(pl.col("end_ms") < pl.col("start_ms")).select(
        "result",
        owner=pl.lit(PRODUCER),
        detail="producer",
        ms=pl.col("end_ms") - pl.col("start_ms"),
        error_ms="clock_error_ms",
    )


def _of_clocks(ages: pl.DataFrame) -> pl.DataFrame:
    """Returns the parts by which ages are wrong because the wall clock of a host is ahead of the reference."""
    return ages.filter(pl.col("ahead_ms") != 0).select(
        "result", owner=pl.lit(CLOCK), detail="host", ms="ahead_ms", error_ms="clock_error_ms"
    )
