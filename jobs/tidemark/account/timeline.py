"""The life of a stream: a sequence of pieces without a gap, each with one owner.

The pieces come from layers, of which an upper one covers those below. On top are the absences of a driver, with the
time before the first one. Then come pauses of the process, then time that no heartbeat vouches for, then the work of
the slowest task, and at the bottom the segments that the main thread recorded. Time without a layer is `unknown`.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tidemark.account.clocks import DRIVER, driver_clocks
from tidemark.account.facts import MS, TEXT, AccountFacts
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.broker import BROKER
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.pause import PAUSE
from tidemark.account.owners.spark import SPARK
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.owners.unknown import UNKNOWN
from tidemark.semantics.segments import TASKS_OF_SPARK, is_pause

BEAT_MS = 250
"""The pulse of a driver beats this often, ms. A pause may have begun up to this long after the last beat."""
FIRST_MS, LAST_MS = -(2**60), 2**60
"""Instants before and after all others: the timeline of each stream reaches from one to the other."""
TIMELINE = pl.Schema(
    {
        "stream": TEXT,
        "began_ms": MS,
        "ended_ms": MS,
        "owner": TEXT,
        "detail": TEXT,
        "error_ms": MS,
        "batch_id": pl.Int64(),
    }
)
"""Pieces of streams' lives by the reference clock, in order, from FIRST_MS to LAST_MS without a gap.

`error_ms` is by how much the piece may be longer or shorter, null where a clock was not measured. `batch_id` is null
for a piece that belongs to no batch.
"""
_PIECE = ["stream", "began_ms", "ended_ms", "owner", "detail", "batch_id"]


def timeline_of(facts: AccountFacts) -> pl.DataFrame:
    """Returns the TIMELINE of all streams.

    If a driver ends before it has decided its batch, the next driver does that work again. So the absence of a driver
    owns the time from the look of that batch on.
    """
    clocks = driver_clocks(facts)
    segments, beats = _by_reference(facts.segments, clocks), _by_reference(facts.heartbeats, clocks)
    lives = _lives(segments, beats, facts.batches, clocks)
    segments = (
        segments.join(lives.select(*DRIVER, "next_ms"), on=DRIVER, maintain_order="left")
        .with_columns(ended_ms=pl.min_horizontal("ended_ms", "next_ms"))
        .filter(pl.col("began_ms") < pl.col("ended_ms"))
    )
    pauses = _pauses(beats)
    tasks, segments = _slowest_tasks(facts, segments, clocks)
    layers = [
        piece.select(_PIECE + [name for name in piece.columns if name == "error_ms"])
        for piece in (_absences(lives, segments), pauses, _without_heartbeat(beats, lives), tasks, segments)
    ]
    return _merged(layers, _near_pauses(pauses), _overlaps(lives))


def _by_reference(rows: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows*, in which `began_ms` and `ended_ms` are by boot clocks, with these by the reference, in order."""
    return (
        rows.join(clocks.select(*DRIVER, "to_reference_ms"), on=DRIVER, maintain_order="left")
        .with_columns(pl.col("began_ms", "ended_ms") + pl.col("to_reference_ms"))
        .sort("stream", "began_ms", "ended_ms")
    )


def _lives(segments: pl.DataFrame, beats: pl.DataFrame, batches: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Returns for each driver its first and last sign of life, and when the next driver began (`next_ms`).

    `absent_ms` is when its absence starts: its last sign of life, or the look of the batch that it did not decide.
    """
    signs = pl.concat([frame.select(*DRIVER, "began_ms", "ended_ms") for frame in (segments, beats)])
    decided = batches.group_by(DRIVER).agg(newest_batch=pl.max("batch_id"))
    undecided = segments.join(decided, on=DRIVER, how="left").filter(
        pl.col("newest_batch").is_null() | (pl.col("batch_id") > pl.col("newest_batch"))
    )
    # A batch that changed nothing leaves no entry. So what comes before the driver's last wait was not lost.
    waited = undecided.filter(pl.col("owner") == TRIGGER).group_by(DRIVER).agg(waited_ms=pl.max("ended_ms"))
    undecided = undecided.join(waited, on=DRIVER, how="left").filter(
        pl.col("waited_ms").is_null() | (pl.col("began_ms") >= pl.col("waited_ms"))
    )
    # A batch begins with the look that found its records; looks that found nothing may come right before it.
    is_work = ~pl.col("owner").is_in([TRIGGER, BROKER])
    worked_ms = pl.col("began_ms").filter(is_work).min()
    found_ms = pl.col("began_ms").filter((pl.col("owner") == BROKER) & (pl.col("ended_ms") == worked_ms)).min()
    lost = undecided.group_by(DRIVER).agg(lost_ms=pl.coalesce(found_ms, worked_ms))
    return (
        signs.group_by(DRIVER)
        .agg(pl.min("began_ms"), pl.max("ended_ms"))
        .join(lost, on=DRIVER, how="left")
        .join(clocks.select(*DRIVER, "clock_error_ms"), on=DRIVER, how="left")
        .sort(DRIVER)
        .with_columns(
            next_ms=pl.col("began_ms").shift(-1).over("stream"),
            next_error_ms=pl.col("clock_error_ms").shift(-1).over("stream"),
            absent_ms=pl.min_horizontal("lost_ms", "ended_ms"),
        )
    )


def _absences(lives: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Returns the time between two drivers, and the time before the first driver of a stream.

    The first driver is known only if the segments of its stream go back to batch 0.
    """
    begun = segments.filter(pl.col("batch_id") == 0).select("stream").unique()
    first = lives.group_by("stream", maintain_order=True).first().join(begun, on="stream", how="semi")
    before = first.select("stream", began_ms=pl.lit(FIRST_MS), ended_ms="began_ms", error_ms="clock_error_ms")
    between = lives.filter(pl.col("absent_ms") < pl.col("next_ms")).select(
        "stream", began_ms="absent_ms", ended_ms="next_ms", error_ms=pl.col("clock_error_ms") + pl.col("next_error_ms")
    )
    return pl.concat([before, between]).with_columns(
        owner=pl.lit(ABSENCE), detail="stream", batch_id=pl.lit(None, pl.Int64())
    )


def _overlaps(lives: pl.DataFrame) -> pl.DataFrame:
    """Returns the times in which two drivers seem to be alive at once, because a clock is wrong."""
    error_ms = pl.col("clock_error_ms") + pl.col("next_error_ms")
    return lives.filter(pl.col("next_ms") < pl.col("ended_ms")).select(
        "stream", "ended_ms", began_ms="next_ms", error_ms=error_ms
    )


def _pauses(beats: pl.DataFrame) -> pl.DataFrame:
    """Returns the gaps between beats in which the process did not run, as it used too little CPU."""
    gaps = beats.explode("gaps").filter(pl.col("gaps").is_not_null())
    length_ms = pl.col("gaps").struct["ended_ms"] - pl.col("gaps").struct["began_ms"]
    return gaps.filter(is_pause(length_ms, pl.col("gaps").struct["cpu_ms"])).select(
        "stream",
        began_ms=pl.col("gaps").struct["began_ms"] + pl.col("to_reference_ms") + BEAT_MS // 2,
        ended_ms=pl.col("gaps").struct["ended_ms"] + pl.col("to_reference_ms"),
        owner=pl.lit(PAUSE),
        detail="stream",
        batch_id=pl.lit(None, pl.Int64()),
        error_ms=pl.lit(BEAT_MS // 2, MS),
    )


def _near_pauses(pauses: pl.DataFrame) -> pl.DataFrame:
    """Returns a stretch of one beat around the beginning of each pause: time there may belong to its neighbour."""
    began_ms = pl.col("began_ms") - BEAT_MS // 2
    return pauses.select("stream", began_ms=began_ms, ended_ms=began_ms + BEAT_MS)


def _without_heartbeat(beats: pl.DataFrame, lives: pl.DataFrame) -> pl.DataFrame:
    """Returns the time of drivers that a missing heartbeat should have vouched for."""
    first_ms = lives.select(*DRIVER, first_ms="began_ms")
    before_ms = pl.col("ended_ms").shift().over(DRIVER).fill_null(pl.col("first_ms"))
    return (
        beats.join(first_ms, on=DRIVER, maintain_order="left")
        .with_columns(before_ms=before_ms)
        .filter(pl.col("before_ms") < pl.col("began_ms"))
        .select(
            "stream",
            began_ms="before_ms",
            ended_ms="began_ms",
            owner=pl.lit(UNKNOWN),
            detail=pl.lit("heartbeat"),
            batch_id=pl.lit(None, pl.Int64()),
        )
    )


def _slowest_tasks(
    facts: AccountFacts, segments: pl.DataFrame, clocks: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the work of the slowest task in each segment in which the driver waited for tasks, and all segments.

    Spark owns the rest of such a segment. The errors of the tasks' clocks and of the driver's clock add up, in the work
    and in the segment.
    """
    of_batch = [*DRIVER, "batch_id"]
    offsets = facts.clocks.sort("error_ms", "at_ms").group_by(*DRIVER, "host").first()
    tasks = facts.tasks.join(offsets.select(*DRIVER, "host", "offset_ms", "error_ms"), on=[*DRIVER, "host"], how="left")
    tasks = tasks.with_columns(pl.col("began_ms", "ended_ms") + pl.col("offset_ms").fill_null(0))
    # If the clock of one task is not known, it is not known either which task ended last.
    all_known = pl.col("error_ms").is_not_null().all()
    errors = (
        tasks.group_by(of_batch)
        .agg(has_tasks=pl.lit(value=True), error_ms=pl.when(all_known).then(pl.max("error_ms")))
        .join(clocks.select(*DRIVER, "clock_error_ms"), on=DRIVER)
        .with_columns(error_ms=pl.col("error_ms") + pl.col("clock_error_ms"))
        .drop("clock_error_ms")
    )
    waits = (pl.col("owner") == SPARK) & (pl.col("detail") == TASKS_OF_SPARK) & pl.col("has_tasks")
    segments = segments.join(errors, on=of_batch, how="left", maintain_order="left").with_columns(
        error_ms=pl.when(waits.fill_null(value=False)).then("error_ms").otherwise(0)
    )
    waited = segments.filter(waits).select(*of_batch, "error_ms", since_ms="began_ms", until_ms="ended_ms")
    slowest = (
        tasks.group_by(*of_batch, "task").agg(pl.max("ended_ms")).sort("ended_ms", "task").group_by(of_batch).last()
    )
    work = (
        tasks.drop("error_ms")
        .join(slowest.select(*of_batch, "task"), on=[*of_batch, "task"])
        .join(waited, on=of_batch)
        .select(
            "stream",
            began_ms=pl.col("began_ms").clip("since_ms", "until_ms"),
            ended_ms=pl.col("ended_ms").clip("since_ms", "until_ms"),
            owner=pl.lit(OPERATOR),
            detail=pl.concat_str("operator", "task", separator=" "),
            batch_id="batch_id",
            error_ms="error_ms",
        )
        .filter(pl.col("began_ms") < pl.col("ended_ms"))
        .sort("stream", "began_ms")
    )
    return work, segments


def _merged(layers: list[pl.DataFrame], near_pauses: pl.DataFrame, overlaps: pl.DataFrame) -> pl.DataFrame:
    """Returns the TIMELINE: each instant belongs to the first of *layers* that covers it.

    Pieces in *near_pauses* and *overlaps* may be wrong by their whole length, or by the errors of both clocks.
    """
    spans = pl.concat([frame.select("stream", "began_ms", "ended_ms") for frame in [*layers, near_pauses, overlaps]])
    streams = spans.select(pl.col("stream").unique())
    ends = streams.join(pl.DataFrame({"at_ms": [FIRST_MS, LAST_MS]}), how="cross")
    points = pl.concat(
        [ends, *(spans.select("stream", at_ms=pl.col(name)) for name in ("began_ms", "ended_ms"))]
    ).unique()
    pieces = points.sort("stream", "at_ms").with_columns(until_ms=pl.col("at_ms").shift(-1).over("stream"))
    pieces = pieces.filter(pl.col("until_ms").is_not_null()).with_columns(
        owner=pl.lit(None, TEXT), detail=pl.lit(None, TEXT), batch_id=pl.lit(None, pl.Int64()), error_ms=pl.lit(0, MS)
    )
    for layer in layers:
        pieces = _under(pieces, layer)
    near, doubtful = _covering(pieces, near_pauses), _asof(pieces, overlaps)
    length_ms = pl.col("until_ms") - pl.col("at_ms")
    pieces = pieces.with_columns(
        owner=pl.col("owner").fill_null(UNKNOWN),
        detail=pl.when(pl.col("owner").is_null()).then(pl.lit("segment")).otherwise("detail"),
        error_ms=pl.when(near & (pl.col("owner") != PAUSE)).then(length_ms).otherwise("error_ms"),
    )
    pieces = pieces.with_columns(
        error_ms=pl.when((doubtful["at_ms"] < doubtful["ended_ms"]).fill_null(value=False))
        .then(doubtful["error_ms_right"])
        .otherwise("error_ms")
    )
    of_one = ["stream", "owner", "detail", "batch_id"]
    return (
        pieces.group_by(pl.struct(of_one).rle_id().alias("piece"), *of_one, maintain_order=True)
        .agg(
            began_ms=pl.first("at_ms"),
            ended_ms=pl.last("until_ms"),
            error_ms=pl.when(pl.col("error_ms").is_not_null().all()).then(pl.sum("error_ms")),
        )
        .select(TIMELINE.names())
    )


def _under(pieces: pl.DataFrame, layer: pl.DataFrame) -> pl.DataFrame:
    """Returns *pieces*, in which a piece without an owner gets the owner that *layer* has at its time."""
    found = _asof(pieces, layer)
    is_found = pl.col("owner").is_null() & (pl.col("at_ms") < pl.col("ended_ms"))
    columns = [name for name in ("owner", "detail", "batch_id", "error_ms") if name in layer.columns]
    return found.with_columns(
        pl.when(is_found).then(f"{name}_right").otherwise(name).alias(name) for name in columns
    ).select(pieces.columns)


def _covering(pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    return _asof(pieces, spans).select((pl.col("at_ms") < pl.col("ended_ms")).fill_null(value=False)).to_series()


def _asof(pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    return pieces.join_asof(
        spans.sort("stream", "began_ms"),
        left_on="at_ms",
        right_on="began_ms",
        by="stream",
        check_sortedness=False,
    )


def overlay(spans: pl.DataFrame, timeline: pl.DataFrame) -> pl.DataFrame:
    """Returns the pieces of *timeline* that lie in each of *spans*, with the columns of the span.

    A span has `stream`, `began_ms`, `ended_ms` (reference) and `error_ms`. `ms` is the length of a piece within the
    span, and `error_ms` of a piece is its own error plus that of the span.
    """
    by_stream = {stream: pieces for (stream,), pieces in timeline.group_by("stream", maintain_order=True)}
    found = [_within(spans.clear(), timeline.clear())]
    for (stream,), of_stream in spans.group_by("stream", maintain_order=True):
        found.append(_within(of_stream, by_stream.get(stream, _NOTHING_KNOWN)))
    ms = pl.min_horizontal("ended_ms", "piece_ended_ms") - pl.max_horizontal("began_ms", "piece_began_ms")
    return pl.concat(found).with_columns(ms=ms, error_ms=pl.col("error_ms") + pl.col("span_error_ms"))


_NOTHING_KNOWN = pl.DataFrame(
    [{"began_ms": FIRST_MS, "ended_ms": LAST_MS, "owner": UNKNOWN, "detail": "segment", "error_ms": 0}], schema=TIMELINE
)
"""The timeline of a stream without a segment."""


def _within(spans: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Returns each of *spans* beside each of *pieces* that overlaps it; all are of one stream and in order."""
    first = np.searchsorted(pieces["ended_ms"].to_numpy(), spans["began_ms"].to_numpy(), side="right")
    last = np.searchsorted(pieces["began_ms"].to_numpy(), spans["ended_ms"].to_numpy(), side="left")
    counts = np.maximum(0, last - first)
    rows = np.repeat(np.arange(spans.height), counts)
    piece_rows = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    span = spans[rows].drop("stream", "owner", "detail", "batch_id", strict=False).rename({"error_ms": "span_error_ms"})
    piece = pieces[piece_rows].rename({"began_ms": "piece_began_ms", "ended_ms": "piece_ended_ms"})
    return span.hstack(piece)
