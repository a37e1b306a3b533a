"""The account of a window's age, from its end to the instant at which its first result is visible.

A window waits for the bound (and before it for `allowed_lateness`, if it is sent when it is closed), then for the
record, or the silence, that let the last partition pass; then that record's own account goes on. Of a partition it is
the first record to arrive at or beyond end + bound, because from then on nothing was missing that the partition could
give. Of several partitions that passed in the batch it is the one whose record arrived last; names decide between
equal arrivals. Nobody waited for a partition that counted as silent, so that one whose first record came in the same
batch decides only if no other partition passed.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.facts import MS, TEXT
from tidemark.account.ledger import Ledger
from tidemark.account.owners.allowed_lateness import ALLOWED_LATENESS
from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.next_record import NEXT_RECORD
from tidemark.account.owners.silence import SILENCE
from tidemark.account.owners.unknown import UNKNOWN
from tidemark.account.records import (
    VISIBLE,
    behind_hop,
    between,
    in_order,
    input_partition,
    numbered,
    placed,
    reading_steps,
    step,
    unread_steps,
)
from tidemark.account.steps import AGES, parts_of

_BEFORE_ALL = 1_000
"""A depth that no hop has: its steps come first. Windows wait before the record that closes them is produced."""
PARTITION = ["stream", "input", "partition"]
_PASSING = pl.Schema(
    {
        "result": pl.Int64(),
        "kind": TEXT,
        "input": TEXT,
        "partition": pl.Int64(),
        "bound_ms": MS,
        "at_ms": MS,
        "at_error_ms": MS,
        "event_ms": MS,
        "arrived_ms": MS,
        "arrival_error_ms": MS,
        "in_transaction": pl.Boolean(),
        "left_by": pl.Int64(),
        "writer": TEXT,
        "writer_place": TEXT,
        "writer_batch": pl.Int64(),
        "writer_row": pl.Int64(),
        "whose": TEXT,
        "was_awake": pl.Boolean(),
    }
)
"""What let a partition pass a window: a `record` (its `event_ms`), a `silence`, the mark of `writer_batch` in a `hop`,
or `unknown`.

`at_ms` is when it was there, reference, with its error, and `whose` names partition and setting. `was_awake` is False
for the record of a partition that counted as silent before. What is known of the record is as in FIRSTS.
"""


def window_parts(ledger: Ledger, windows: pl.DataFrame | None = None) -> pl.DataFrame:
    """Returns the PARTS of *windows*, rows of WINDOWS; None: of all in the facts. `result` is the row's number."""
    visible = ledger.made_visible(numbered(ledger.facts.windows if windows is None else windows))
    passing = _passing(ledger, visible)
    producer = visible.join(
        passing.select("result", producer=input_partition()), on="result", how="left", maintain_order="left"
    )
    ages = producer.with_columns(start_ms="end_ms")
    closed_ms, allowed = pl.col("end_ms") + pl.col("allowed_ms"), pl.lit(ALLOWED_LATENESS)
    waited = step(visible, _BEFORE_ALL, 0, closed_ms, owner=allowed, detail=pl.col("place"))
    steps = pl.concat([waited, _window_steps(ledger, visible, passing, 0)])
    return parts_of(ages.select(AGES.names()), in_order(steps), ledger.timeline)


def _window_steps(ledger: Ledger, visible: pl.DataFrame, passing: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Returns the steps of windows, which `Ledger.made_visible` has placed on the reference clock."""
    rows = visible.join(passing, on="result", how="left", maintain_order="left")
    rows = placed(ledger, rows.with_columns(read_batch="batch_id", is_read=pl.lit(value=True)))
    by_record, silent, of_hops = (rows.filter(pl.col("kind") == kind) for kind in ("record", "silence", "hop"))
    unknown = rows.filter((pl.col("kind") == "unknown") | pl.col("kind").is_null())
    # Which of several passed last is not known where their clocks are not.
    is_sure, error_ms = ~pl.col("is_doubtful").fill_null(value=False), between("driver", "clock_error_ms")
    closed_ms = pl.col("end_ms") + pl.col("allowed_ms").fill_null(0)
    at_bound_ms, silence = closed_ms + pl.col("bound_ms"), pl.lit(SILENCE)
    own = rows.filter(pl.col("kind") != "hop")
    return pl.concat(
        [
            step(own, _BEFORE_ALL, 1, at_bound_ms, owner=pl.lit(BOUND), detail=pl.col("input")),
            step(by_record, _BEFORE_ALL, 2, "event_ms", owner=pl.lit(NEXT_RECORD), detail=input_partition()),
            step(silent, _BEFORE_ALL, 2, "at_ms", owner=silence, detail=pl.col("whose"), error_ms="read_error_ms"),
            step(unknown, _BEFORE_ALL, 2, "looked_ms", owner=pl.lit(UNKNOWN), detail=pl.lit("passing")),
            reading_steps(ledger, by_record, depth),
            *_behind_hops(ledger, of_hops, depth),
            *unread_steps(ledger, of_hops, depth),
            step(rows, depth, VISIBLE, "until_ms", stream="stream", error_ms=pl.when(is_sure).then(error_ms)),
        ]
    )


def _behind_hops(ledger: Ledger, rows: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Returns the steps of the writers' batches that let the windows of *rows* pass, as if each had had that window."""
    if rows.is_empty():
        return []
    closed_ms = pl.col("end_ms") + pl.col("allowed_ms").fill_null(0)
    asked = rows.select(
        "result", "read_error_ms", stream="writer", place="input", batch_id="writer_batch", end_ms=closed_ms
    )
    of_window = ["stream", "place", "batch_id", "end_ms"]
    marks = ledger.facts.marks.drop("watermark_ms")
    windows = asked.select(of_window).unique(maintain_order=True).join(marks, on=of_window[:3])
    origins = ledger.made_visible(numbered(windows.with_columns(allowed_ms=pl.lit(None, MS))))
    steps = _window_steps(ledger, origins, _passing(ledger, origins), depth + 1)
    links = asked.join(origins.select(*of_window, origin="result"), on=of_window)
    return [behind_hop(steps, origins, links, depth)]


def _passing(ledger: Ledger, windows: pl.DataFrame) -> pl.DataFrame:
    """Returns what let the last partition pass each of *windows*, in rows of _PASSING; no row: nothing is known."""
    closed_ms = pl.col("end_ms") + pl.col("allowed_ms").fill_null(0)
    asked = windows.select("result", "stream", "batch_id", end_ms=closed_ms)
    found = [_records(ledger, asked), _silences(ledger, asked), _hops(ledger, asked), _without_bounds(ledger, asked)]
    # What is not known may have come last.
    last = ["result", pl.col("kind") == "unknown", "was_awake", "at_ms", "whose"]
    passed = pl.concat([_of_passing(frame) for frame in found]).sort(last)
    doubts = passed.group_by("result").agg(is_doubtful=_may_be_later())
    return passed.group_by("result", maintain_order=True).last().join(doubts, on="result", maintain_order="left")


def _of_passing(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, kind).alias(name) for name, kind in _PASSING.items() if name not in rows.columns]
    return rows.with_columns(missing).select(_PASSING.names())


def _may_be_later() -> pl.Expr:
    """Returns True if another of a group may have come after the last one, by their clocks' errors."""
    at_ms, error_ms = pl.col("at_ms").last(), pl.col("at_error_ms").last()
    errors_ms = pl.col("at_error_ms") + error_ms
    is_near = ((at_ms - pl.col("at_ms") <= errors_ms) & (errors_ms > 0)).fill_null(value=True)
    # The last one is near itself, unless its own error is 0.
    return is_near.sum() > ((error_ms > 0).fill_null(value=True)).cast(pl.Int64())


def _records(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the first record of each partition with which it passed; `unknown` where that record is missing.

    It is in FIRSTS if the window was known when the batch read it. Else the first row of READS has it, as nearly as a
    row has one age.
    """
    looked = ledger.batches.select("stream", "batch_id", "looked_ms")
    plans = ledger.facts.plans.select(*PARTITION, "batch_id", planned="n", until_ms="newest_ms")
    rows = (
        asked.join(plans, on=["stream", "batch_id"])
        .join(ledger.facts.bounds, on=["stream", "input"])
        .with_columns(needed_ms=pl.col("end_ms") + pl.col("bound_ms"))
        .filter(pl.col("until_ms") >= pl.col("needed_ms"))
        .join(looked, on=["stream", "batch_id"], how="left")
    )
    silences = ledger.facts.silences.select(*PARTITION, "batch_id", silent_batch="batch_id")
    passed = _before(_before(rows, _newest(ledger)), silences).filter(_is_missing())
    of_row = ["result", "input", "partition"]
    firsts = passed.join(ledger.facts.firsts, on=[*PARTITION, "batch_id"]).filter(
        pl.col("event_ms") >= pl.col("needed_ms"),
        pl.col("reached_ms").is_null() | (pl.col("reached_ms") < pl.col("needed_ms")),
    )
    found = _with_writes(
        ledger, pl.concat([firsts, _in_reads(ledger, passed.join(firsts, on=of_row, how="anti"))], how="diagonal")
    )
    missing = passed.join(found, on=of_row, how="anti")
    was_idle = (pl.col("silent_batch") > pl.col("newest_batch").fill_null(-1)).fill_null(value=False)
    return pl.concat(
        [
            found.with_columns(
                kind=pl.lit("record"),
                at_ms=pl.coalesce("arrived_ms", "written_ms", "looked_ms"),
                at_error_ms=pl.coalesce("arrival_error_ms", "written_error_ms"),
                was_awake=~was_idle,
            ),
            missing.with_columns(kind=pl.lit("unknown"), was_awake=pl.lit(value=True)),
        ],
        how="diagonal",
    ).with_columns(whose=input_partition())


def _in_reads(ledger: Ledger, passed: pl.DataFrame) -> pl.DataFrame:
    """Returns the row of READS that has the first record of each partition in *passed*; none if one may be missing."""
    batch = [*PARTITION, "batch_id"]
    reads = ledger.facts.reads.join(passed.select(batch).unique(), on=batch, how="semi")
    complete = reads.group_by(batch).agg(known=pl.sum("n"))
    rows = passed.join(complete, on=batch).filter(pl.col("known") == pl.col("planned")).drop("newest_ms")
    return (
        rows.join(reads.drop("n"), on=batch)
        .filter(pl.col("newest_ms") >= pl.col("needed_ms"))
        .with_columns(event_ms=pl.max_horizontal("event_ms", "needed_ms"))
        .sort("arrived_ms", "row", nulls_last=True)
        .group_by("result", "input", "partition", maintain_order=True)
        .first()
    )


def _with_writes(ledger: Ledger, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with `written_ms`, when the record was visible in the topic of its writer."""
    of_writer = ["writer", "writer_place", "writer_batch", "writer_row"]
    results = ledger.facts.results.rename(
        {"stream": "writer", "place": "writer_place", "batch_id": "writer_batch", "row": "writer_row"}
    ).join(rows, on=of_writer, how="semi")
    written = ledger.made_visible(results.rename({"writer": "stream"})).select(
        *of_writer[1:], writer="stream", written_ms="until_ms", written_error_ms="clock_error_ms"
    )
    return rows.join(written, on=of_writer, how="left", maintain_order="left")


def _silences(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the partitions for which the batch stopped waiting."""
    rows = (
        asked.join(ledger.facts.silences, on=["stream", "batch_id"])
        .join(ledger.facts.bounds, on=["stream", "input"])
        .join(ledger.batches.select("stream", "batch_id", "driver"), on=["stream", "batch_id"])
        .join(ledger.clocks, on=["stream", "driver"])
    )
    return (
        _before(rows, _newest(ledger))
        .filter(_is_missing())
        .select(
            "result",
            "input",
            "partition",
            "bound_ms",
            kind=pl.lit("silence"),
            at_ms=pl.col("due_ms") + pl.col("to_reference_ms"),
            at_error_ms="clock_error_ms",
            whose=pl.concat_str(input_partition(), "setting", separator=" "),
            was_awake=pl.lit(value=True),
        )
    )


def _hops(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the hops whose writer's watermark passed in a batch that this one was the first to read; `unknown` where
    no such batch is known.
    """
    plans = ledger.facts.plans.filter(pl.col("writer").is_not_null())
    marks = ledger.made_visible(ledger.facts.marks.filter(pl.col("watermark_ms").is_not_null())).select(
        "watermark_ms",
        writer="stream",
        input="place",
        writer_batch="batch_id",
        at_ms="until_ms",
        at_error_ms="clock_error_ms",
    )
    rows = asked.join(plans, on=["stream", "batch_id"])
    rows = _first_beyond(rows, "end_ms", marks.sort("writer_batch"), "watermark_ms", by=["writer", "input"], exact=True)
    is_read = (pl.col("writer_batch") < pl.col("until_offset")).fill_null(value=False)
    rows = rows.filter(~is_read | (pl.col("writer_batch") >= pl.col("from_offset")))
    saw = plans.select("stream", "input", left_by="batch_id", seen_batch="latest_offset").sort("left_by")
    rows = _first_beyond(rows, "writer_batch", saw, "seen_batch", by=["stream", "input"], exact=False)
    return rows.with_columns(
        kind=pl.when(is_read).then(pl.lit("hop")).otherwise(pl.lit("unknown")),
        at_ms=pl.when(is_read).then("at_ms"),
        left_by=pl.when(pl.col("left_by") < pl.col("batch_id")).then("left_by"),
        whose=input_partition(),
        was_awake=pl.lit(value=True),
    )


def _first_beyond(
    rows: pl.DataFrame, instant: str, later: pl.DataFrame, reached: str, *, by: list[str], exact: bool
) -> pl.DataFrame:
    """Returns *rows* with the first of *later*, which are in order, that had *reached* beyond the *instant*, or it if
    *exact*.
    """
    first = later.with_columns(pl.col(reached).cum_max().over(by)).unique([*by, reached], keep="first")
    return rows.sort(instant, nulls_last=True).join_asof(
        first.sort(reached),
        left_on=instant,
        right_on=reached,
        by=by,
        strategy="forward",
        allow_exact_matches=exact,
        check_sortedness=False,
    )


def _without_bounds(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the partitions of sources whose bound is not known."""
    sources = ledger.facts.plans.filter(pl.col("writer").is_null()).select("stream", "batch_id", "input", "partition")
    return (
        asked.join(sources, on=["stream", "batch_id"])
        .join(ledger.facts.bounds, on=["stream", "input"], how="anti")
        .with_columns(kind=pl.lit("unknown"), whose=input_partition(), was_awake=pl.lit(value=True))
    )


def _newest(ledger: Ledger) -> pl.DataFrame:
    """Returns the newest event time of each partition after each batch that read from it."""
    return ledger.facts.plans.filter(pl.col("n") > 0).select(
        *PARTITION, "batch_id", "newest_ms", newest_batch="batch_id"
    )


def _before(rows: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the newest of *facts* about their partition that is older than their batch."""
    return rows.sort("batch_id").join_asof(
        facts.sort("batch_id"), on="batch_id", by=PARTITION, allow_exact_matches=False, check_sortedness=False
    )


def _is_missing() -> pl.Expr:
    """Returns True for a partition that had not passed the window before."""
    return pl.col("newest_ms").is_null() | (pl.col("newest_ms") < pl.col("end_ms") + pl.col("bound_ms"))
