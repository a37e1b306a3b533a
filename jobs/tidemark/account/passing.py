"""What let the watermark pass an instant of record time: the end of a window, or the time that others wait for.

A partition passes the instant with its first record at or beyond the instant plus the bound: from then on nobody waits
for it. If several partitions passed in one batch, the last of them is the one whose record arrived last; names decide
between equal arrivals. Nobody waits for a partition that counts as silent. If it had its first record in the same
batch, it is the last one only if no other partition passed.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.facts import MS, TEXT
from tidemark.account.ledger import Ledger
from tidemark.account.steps import input_partition

PARTITION = ["stream", "input", "partition"]
PASSING = pl.Schema(
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
        "read_batch": pl.Int64(),
        "whose": TEXT,
        "was_awake": pl.Boolean(),
    }
)
"""What let a partition pass the end of a window.

`kind` is `record` (with its `event_ms`), `silence`, `hop` (the mark of `writer_batch` in the hop), or `unknown`. It is
`behind` for a partition that has not passed. `at_ms` is when the record, the silence or the mark was there, reference,
with its error. `whose` names the partition, and the setting of a silence. `was_awake` is False for the record of a
partition that counted as silent before. What is known of the record is as in FIRSTS. `read_batch` is the batch that
read the record, if an earlier batch did (null: the batch itself).
"""


def last_passing(ledger: Ledger, windows: pl.DataFrame) -> pl.DataFrame:
    """Returns what let the last partition pass each of *windows*, as PASSING; a window without a row is not
    explained.
    """
    closed_ms = pl.col("end_ms") + pl.col("allowed_ms").fill_null(0)
    asked = windows.select("result", "stream", "batch_id", end_ms=closed_ms)
    return _last(
        [_records(ledger, asked), _silences(ledger, asked), _hops(ledger, asked), _without_bounds(ledger, asked)]
    )


def let_go(ledger: Ledger, ahead: pl.DataFrame) -> pl.DataFrame:
    """Returns what ended the wait of records that were too far ahead of another partition, as PASSING with `batch_id`.

    The rows of *ahead* have `result`, PARTITION, the `batch_id` that sent the records on, and `max_drift_ms`. The batch
    before that one read what let them go, and `batch_id` in the answer is that batch. The records may also have been
    sent on because too many were held; then the answer is the partition that was furthest `behind`. A result without a
    row is not explained.
    """
    before = ledger.batches.select("stream", "batch_id", batch_before=pl.col("batch_id").shift().over("stream"))
    rows = (
        ahead.select("result", *PARTITION, "batch_id", "max_drift_ms")
        .join(ledger.facts.bounds, on=["stream", "input"])
        .join(before, on=["stream", "batch_id"])
    )
    # Other partitions had to come this near to the watermark of the partition that was ahead.
    end_ms = pl.col("newest_ms") - pl.col("bound_ms") - pl.col("max_drift_ms")
    asked = (
        _before(rows, _newest(ledger)).select("result", "stream", batch_id="batch_before", end_ms=end_ms).drop_nulls()
    )
    came = _last([_records(ledger, asked), _silences(ledger, asked)])
    behind = _furthest_behind(ledger, asked.join(came, on="result", how="anti"))
    found = pl.concat([came.drop("is_doubtful"), _as_passing(behind)])
    return found.join(asked.select("result", "batch_id"), on="result", maintain_order="left")


def _last(found: list[pl.DataFrame]) -> pl.DataFrame:
    """Returns for each `result` the partition that passed last; `is_doubtful` if it may have been another one."""
    # An unknown passing may have been the last one, so it is sorted to the end.
    last = ["result", pl.col("kind") == "unknown", "was_awake", "at_ms", "whose"]
    passed = pl.concat([_as_passing(frame) for frame in found]).sort(last)
    doubts = passed.group_by("result").agg(is_doubtful=_may_be_later())
    return passed.group_by("result", maintain_order=True).last().join(doubts, on="result", maintain_order="left")


def _as_passing(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, kind).alias(name) for name, kind in PASSING.items() if name not in rows.columns]
    return rows.with_columns(missing).select(PASSING.names())


def _may_be_later() -> pl.Expr:
    """Returns True for a group if the errors of clocks leave open which of its rows came last."""
    at_ms, error_ms = pl.col("at_ms").last(), pl.col("at_error_ms").last()
    errors_ms = pl.col("at_error_ms") + error_ms
    is_near = ((at_ms - pl.col("at_ms") <= errors_ms) & (errors_ms > 0)).fill_null(value=True)
    # The last one is near itself, unless its own error is 0.
    return is_near.sum() > ((error_ms > 0).fill_null(value=True)).cast(pl.Int64())


def _records(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the record with which each partition passed; the kind is `unknown` if that record is missing.

    The record is in FIRSTS if the window was known when the batch read it. Otherwise it is in the first row of READS
    that is beyond the instant, which has one age for all its records. If the partition was ahead of others (DRIFTS),
    that row may be of an earlier batch.
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
    passed = _reached_before(ledger, rows).filter(_is_missing())
    of_row = ["result", "input", "partition"]
    waited = _sent_on(ledger, passed)
    fresh = passed.join(waited, on=of_row, how="anti")
    firsts = fresh.join(ledger.facts.firsts, on=[*PARTITION, "batch_id"]).filter(
        pl.col("event_ms") >= pl.col("needed_ms"),
        pl.col("reached_ms").is_null() | (pl.col("reached_ms") < pl.col("needed_ms")),
    )
    read = _in_reads(ledger, fresh.join(firsts, on=of_row, how="anti"))
    found = _with_writes(ledger, pl.concat([waited, firsts, read], how="diagonal"))
    missing = passed.join(found, on=of_row, how="anti")
    return pl.concat(
        [
            found.with_columns(
                kind=pl.lit("record"),
                at_ms=pl.coalesce("arrived_ms", "written_ms", "looked_ms"),
                at_error_ms=pl.coalesce("arrival_error_ms", "written_error_ms"),
                was_awake=~_was_silent(),
            ),
            missing.with_columns(kind=pl.lit("unknown"), was_awake=pl.lit(value=True)),
        ],
        how="diagonal",
    ).with_columns(whose=input_partition())


def _sent_on(ledger: Ledger, passed: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of READS with records that an earlier batch had read, and that had waited, as in DRIFTS.

    With such a record a partition in *passed* passed in the batch that sent it on.
    """
    drifting = ledger.facts.drifts.select("stream", "input").unique()
    rows = passed.join(drifting, on=["stream", "input"], how="semi").drop("newest_ms")
    reads = ledger.facts.reads.drop("n").rename({"batch_id": "read_batch"}).sort("read_batch", "arrived_ms", "row")
    found = _first_beyond(rows, "needed_ms", reads, "newest_ms", by=PARTITION, exact=True)
    return found.filter(pl.col("read_batch") < pl.col("batch_id")).with_columns(
        event_ms=pl.max_horizontal("event_ms", "needed_ms")
    )


def _in_reads(ledger: Ledger, passed: pl.DataFrame) -> pl.DataFrame:
    """Returns the row of READS with the record by which each partition in *passed* passed.

    A partition has no row if READS lacks some of the records that the batch planned to read there.
    """
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
    """Returns *rows* with `written_ms`, the instant at which a stream of this warehouse had written the record."""
    of_writer = ["writer", "writer_place", "writer_batch", "writer_row"]
    results = ledger.facts.results.rename(
        {"stream": "writer", "place": "writer_place", "batch_id": "writer_batch", "row": "writer_row"}
    ).join(rows, on=of_writer, how="semi")
    written = ledger.made_visible(results.rename({"writer": "stream"})).select(
        *of_writer[1:], writer="stream", written_ms="until_ms", written_error_ms="clock_error_ms"
    )
    return rows.join(written, on=of_writer, how="left", maintain_order="left")


def _silences(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the partitions for which the batch stopped waiting because they were silent."""
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
    """Returns the hops that passed with what the batch read of them.

    A hop passes with the first batch of its writer whose watermark is beyond the instant. If no such batch of the
    writer is known, the kind is `unknown`.
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
    """Returns *rows* beside the first row of *later* that has come beyond their instant.

    Args:
        rows: rows with the column *instant*.
        instant: the column of the instant, or of the number, that has to be passed.
        later: rows in their order, with the column *reached*.
        reached: how far a row of *later* has come; what earlier rows have reached counts, too.
        by: columns that both have in common.
        exact: a row that has come just to the instant counts.
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
    """Returns the partitions of sources whose bound is not known, which makes their passing `unknown`."""
    sources = ledger.facts.plans.filter(pl.col("writer").is_null()).select("stream", "batch_id", "input", "partition")
    return (
        asked.join(sources, on=["stream", "batch_id"])
        .join(ledger.facts.bounds, on=["stream", "input"], how="anti")
        .with_columns(kind=pl.lit("unknown"), whose=input_partition(), was_awake=pl.lit(value=True))
    )


def _furthest_behind(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
    """Returns the partition of a source that was furthest behind the instant after the batch, without silent ones."""
    partitions = ledger.facts.plans.select(PARTITION).unique()
    after = (
        asked.with_columns(pl.col("batch_id") + 1)
        .join(partitions, on="stream")
        .join(ledger.facts.bounds, on=["stream", "input"])
    )
    rows = _reached_before(ledger, after).filter(pl.col("newest_ms").is_not_null(), _is_missing(), ~_was_silent())
    furthest = rows.sort(pl.col("newest_ms") - pl.col("bound_ms"), "input", "partition")
    first = furthest.group_by("result", maintain_order=True).first()
    return first.with_columns(kind=pl.lit("behind"), whose=input_partition())


def _newest(ledger: Ledger) -> pl.DataFrame:
    """Returns the newest event time of each partition after each batch that read from it or moved its time."""
    plans = ledger.facts.plans.sort("batch_id")
    has_moved = pl.col("newest_ms").ne_missing(pl.col("newest_ms").shift().over(PARTITION))
    return plans.filter((pl.col("n") > 0) | has_moved).select(
        *PARTITION, "batch_id", "newest_ms", newest_batch="batch_id"
    )


def _reached_before(ledger: Ledger, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the newest event time of their partition before their batch, and its last silent batch."""
    silences = ledger.facts.silences.select(*PARTITION, "batch_id", silent_batch="batch_id")
    return _before(_before(rows, _newest(ledger)), silences)


def _was_silent() -> pl.Expr:
    """Returns the condition for partitions that count as silent: no batch has read from them since."""
    return (pl.col("silent_batch") > pl.col("newest_batch").fill_null(-1)).fill_null(value=False)


def _before(rows: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* beside the newest of *facts* about their partition from before their batch."""
    return rows.sort("batch_id").join_asof(
        facts.sort("batch_id"), on="batch_id", by=PARTITION, allow_exact_matches=False, check_sortedness=False
    )


def _is_missing() -> pl.Expr:
    """Returns the condition for partitions that had not passed the instant before."""
    return pl.col("newest_ms").is_null() | (pl.col("newest_ms") < pl.col("end_ms") + pl.col("bound_ms"))
