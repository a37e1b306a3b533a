"""Walks through the instants of a result, and books the time between them.

A cursor starts where the result's age starts and moves through the instants in order, never back and never beyond the
instant at which the result is visible. So the parts tile the age whatever the clocks say.
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
"""Steps of results, in their order: to whom the time belongs until an instant, reference.

`error_ms` is by how much that instant may be wrong. Without an owner, the time belongs to whoever has the timeline of
`stream` then. With one, `stream` says where the record waited; null: in none.
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
"""What is aged: from `start_ms`, an event time or a window's end, to `visible_ms`, wall clock of `host`.

That clock is `ahead_ms` ahead of the reference, give or take `clock_error_ms`; null: not measured. `producer` is the
detail of a negative part.
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
"""Parts of ages. The `ms` of a result add up to its age, and `error_ms` is by how much a part may be wrong; null: a
clock was not measured.

`stream` and `batch_id` are those for which the time was spent, null where it was spent for none. `ended_ms` is the end,
reference, of what took the time: parts of several results that have it in common are one event's.
"""
OF = ["result", "owner", "detail", "stream", "batch_id", "ended_ms"]
_SUMS = (pl.sum("ms"), pl.when(pl.col("error_ms").is_not_null().all()).then(pl.sum("error_ms")).alias("error_ms"))


def input_partition() -> pl.Expr:
    """Returns INPUT/PARTITION; of a hop its name alone."""
    return pl.concat_str(["input", "partition"], separator="/", ignore_nulls=True)


def parts_of(ages: pl.DataFrame, steps: pl.DataFrame, timeline: pl.DataFrame) -> pl.DataFrame:
    """Returns the PARTS of *ages*, whose *steps* come in order and end with the timeline of a stream."""
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
    """Returns the steps that take time, from `began_ms` to `ended_ms`, with the errors of both instants."""
    reached = (
        steps.join(ages.select("result", "start_ms", "end_ms", "clock_error_ms"), on="result", maintain_order="left")
        .filter(pl.col("start_ms") <= pl.col("end_ms"))
        .with_columns(
            ended_ms=pl.max_horizontal("start_ms", pl.min_horizontal("until_ms", "end_ms")).cum_max().over("result")
        )
    )
    began_ms = pl.col("ended_ms").shift().over("result").fill_null(pl.col("start_ms"))
    moved = reached.with_columns(began_ms=began_ms).with_columns(moves=pl.col("began_ms") < pl.col("ended_ms"))
    # An instant that did not move the cursor may have come later than its clock says, and counts as the one before it.
    moved = moved.with_columns(place=pl.col("moves").cum_sum().over("result"))
    errors = moved.group_by("result", "place", maintain_order=True).agg(
        at_ms=pl.when(pl.col("error_ms").is_not_null().all()).then(pl.max("error_ms"))
    )
    before = errors.with_columns(place=pl.col("place") + 1)
    of_first = errors.filter(pl.col("place") == 1).select("result", place=pl.lit(1, pl.UInt32), at_ms=pl.lit(0, MS))
    before = pl.concat([before, of_first.join(before, on=["result", "place"], how="anti")])
    return (
        moved.filter("moves")
        .drop("error_ms")
        .join(errors.rename({"at_ms": "until_error_ms"}), on=["result", "place"], maintain_order="left")
        .join(before.rename({"at_ms": "from_error_ms"}), on=["result", "place"], maintain_order="left")
        .with_columns(error_ms=pl.col("until_error_ms") + pl.col("from_error_ms"))
    )


def _negative(ages: pl.DataFrame) -> pl.DataFrame:
    """A result that is visible before its time: its producer's clock is ahead, and the part is negative."""
    return ages.filter(pl.col("end_ms") < pl.col("start_ms")).select(
        "result",
        owner=pl.lit(PRODUCER),
        detail="producer",
        ms=pl.col("end_ms") - pl.col("start_ms"),
        error_ms="clock_error_ms",
    )


def _of_clocks(ages: pl.DataFrame) -> pl.DataFrame:
    return ages.filter(pl.col("ahead_ms") != 0).select(
        "result", owner=pl.lit(CLOCK), detail="host", ms="ahead_ms", error_ms="clock_error_ms"
    )
