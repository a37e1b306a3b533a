"""Reads and results from the lists in which each batch has stored them (`kernels.records.read_ages`).

Instants are stored as lengths: how long they were before the decision of the batch, or before its look. A row is
written once, so it cannot have what is known only later, such as the offset of a clock.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.arrivals import at_source, begun_before, usual_delays, with_created_arrivals
from tidemark.account.facts import FIRSTS, MS, READS, RESULTS, TEXT

STORED_READS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": pl.Int64(),
        "input": TEXT,
        "partition": pl.Int64(),
        "writer": TEXT,
        "writer_place": TEXT,
        "decided_at_ms": MS,
        "first_read": pl.Int64(),
    }
)
"""Rows of `partition_batches`, with their lists `reads` and `firsts`.

`writer` is the stream that writes the input, and `writer_place` its hop or topic (both null: nothing here does). The
partition of a hop is null.
"""
STORED_RESULTS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": pl.Int64(),
        "driver": pl.Int64(),
        "place": TEXT,
        "decided_at_ms": MS,
        "visible_ms": MS,
        "visible_boot_ms": MS,
    }
)
"""Rows of `operator_batches`, with their list `results`; `visible_ms` and `visible_boot_ms` are as in RESULTS."""


def reads_of(stored: pl.DataFrame, batches: pl.DataFrame, begun: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns READS and FIRSTS from STORED_READS.

    *batches* and *begun* are those of a Ledger. If no broker stamped the arrival of a record, it is estimated from the
    looks at its source, which these have.
    """
    reads, firsts = (_in_rows(stored, STORED_READS, name).rename({"number": "row"}) for name in ("reads", "firsts"))
    means = {"event_ms": _before_decision("age_ms"), "arrived_ms": _before_decision("wait_ms")}
    reads = _with_looks(
        reads.with_columns(**means, newest_ms=pl.col("decided_at_ms") - pl.col("min_age_ms")), batches, begun
    )
    firsts = _with_looks(
        firsts.with_columns(
            n=pl.lit(1, pl.Int64()),
            event_ms=pl.col("decided_at_ms") - pl.col("age_ms"),
            reached_ms=pl.col("decided_at_ms") - pl.col("reached_age_ms"),
            arrived_ms=pl.col("decided_at_ms") - pl.col("wait_ms"),
        ),
        batches,
        begun,
    )
    # Records that were there before the first look had to wait for it, so they do not show what delay is usual.
    usual = usual_delays(reads.filter(_is_created(), pl.col("excluded_ms").is_not_null()))
    return _as_facts(_with_arrivals(reads, usual), READS), _as_facts(_with_arrivals(firsts, usual), FIRSTS)


def results_of(stored: pl.DataFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Returns RESULTS from STORED_RESULTS, with nulls for what held them; *reads* are all STORED_READS."""
    rows = _in_rows(stored, STORED_RESULTS, "results")
    means = {"event_ms": _before_decision("age_ms"), "arrived_ms": _before_decision("wait_ms")}
    numbered = _in_rows(reads, STORED_READS, "reads").select(
        "stream",
        "input",
        "partition",
        read_batch="batch_id",
        read_row="number",
        row=pl.col("first_read") + pl.col("number"),
    )
    named = rows.join(numbered, on=["stream", "row"], how="left", maintain_order="left")
    held = {name: pl.lit(None) for name in ("held_by", "held_detail", "held_from_ms", "due_ms")}
    return _as_facts(named.with_columns(**means, **held), RESULTS)


def _as_facts(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    return rows.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _in_rows(stored: pl.DataFrame, schema: pl.Schema, name: str) -> pl.DataFrame:
    """Returns a row for each struct in the lists of the column *name*, with `number`, its position in the list."""
    lists = stored.select(*schema, name, number=pl.int_ranges(pl.col(name).list.len()))
    return lists.filter(pl.col(name).list.len() > 0).explode(name, "number").unnest(name)


def _before_decision(sum_ms: str) -> pl.Expr:
    """Returns the mean instant of a row's records; *sum_ms* is the sum of their times until the decision of the
    batch.
    """
    return pl.col("decided_at_ms") - (pl.col(sum_ms) / pl.col("n")).round().cast(pl.Int64())


def _is_created() -> pl.Expr:
    """Returns the condition for records whose arrival nobody stamped."""
    return pl.col("arrived_ms").is_null() & pl.col("writer").is_null()


def _with_looks(rows: pl.DataFrame, batches: pl.DataFrame, begun: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the last look without their records, `excluded_ms`, and the first with them, `seen_ms`.

    A driver looks for each plan, and now and then while it works. Of all these looks the nearest to the arrival count.
    """
    looks = batches.select("stream", "batch_id", "looked_ms", first_excluded_ms="excluded_ms")
    first = looks.select("stream", left_by="batch_id", first_ms="looked_ms", first_excluded_ms="first_excluded_ms")
    first_plans = rows.select("stream", "input", "batch_id", left_by=pl.coalesce("left_by", "batch_id"))
    first_looks = first_plans.join(first, on=["stream", "left_by"], how="left", maintain_order="left").with_columns(
        first_excluded_ms=at_source(
            "first_excluded_ms", begun_before(first_plans, begun, pl.col("batch_id"))["begun_ms"]
        )
    )
    looked_ms = rows.select("stream", "batch_id").join(
        looks, on=["stream", "batch_id"], how="left", maintain_order="left"
    )["looked_ms"]
    return rows.with_columns(
        seen_ms=pl.min_horizontal(looked_ms - pl.col("seen_before_ms"), first_looks["first_ms"]),
        excluded_ms=pl.max_horizontal(looked_ms - pl.col("excluded_before_ms"), first_looks["first_excluded_ms"]),
    )


def _with_arrivals(rows: pl.DataFrame, usual: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with `arrived_ms` and `arrival_error_ms`, as stamped or estimated from the *usual* delays."""
    stamped = rows.filter(~_is_created()).with_columns(
        arrival_error_ms=pl.when(pl.col("arrived_ms").is_not_null()).then(pl.lit(0, MS))
    )
    created = with_created_arrivals(rows.filter(_is_created()), usual)
    return pl.concat([stamped, created.select(stamped.columns)])
