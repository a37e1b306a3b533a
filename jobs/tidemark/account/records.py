"""The account of a record's age, from its event time to the instant at which its row is visible.

A record passes these instants in order, and until each of them its time belongs to somebody:

1. The record arrived: its producer.
2. The last driver without its source ended, if the topology file was changed: that change.
3. A transaction ended: the open transaction.
4. The first plan that saw the record was made: the stream, by its timeline.
5. The look ended whose plan took the record: what made the record wait unread.
6. The operator ended that holds the result: the stream, by its timeline.
7. The held result was due: the setting that held it.
8. The row was visible: the stream, by its timeline.

A record that is too far ahead of another partition waits for a record of that partition. The wait belongs to
`max_drift` until the event time of that record, and after that to the account of that record.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.arrivals import at_source, begun_before
from tidemark.account.ledger import Ledger
from tidemark.account.owners.capacity import CAPACITY
from tidemark.account.owners.max_drift import MAX_DRIFT
from tidemark.account.owners.open_transaction import OPEN_TRANSACTION
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.owners.silence import SILENCE
from tidemark.account.owners.topology_change import TOPOLOGY_CHANGE
from tidemark.account.owners.unknown import UNKNOWN
from tidemark.account.passing import let_go
from tidemark.account.steps import AGES, STEPS, input_partition, parts_of

READ = ["stream", "read_batch", "input", "partition", "read_row"]
"""The columns that name a row of READS in a frame of results, whose `batch_id` is the batch of the result."""
_ORDERED = pl.Schema({**STEPS, "depth": pl.Int32(), "seq": pl.Int32(), "nth": pl.Int64()})
"""STEPS with their order. Steps of writers behind more hops (`depth`) come first, then `seq` decides, then `nth`."""
_ORDER = ["result", -pl.col("depth"), "seq", "nth"]
VISIBLE = 9
"""The `seq` of the last step of a result."""
_UNKNOWN = pl.lit(UNKNOWN)


def record_parts(ledger: Ledger, results: pl.DataFrame | None = None) -> pl.DataFrame:
    """Returns the PARTS of *results*, rows of RESULTS; None stands for all in the facts. `result` is the row's
    number.
    """
    visible = ledger.made_visible(numbered(ledger.facts.results if results is None else results))
    ages = visible.select(
        "result", "visible_ms", "ahead_ms", "clock_error_ms", "host", start_ms="event_ms", producer=input_partition()
    )
    return parts_of(ages.select(AGES.names()), in_order(record_steps(ledger, visible)), ledger.timeline)


def numbered(results: pl.DataFrame) -> pl.DataFrame:
    """Returns *results* with the column `result`, which numbers the rows."""
    return results.with_row_index("result").cast({"result": pl.Int64()})


def in_order(steps: pl.DataFrame) -> pl.DataFrame:
    """Returns *steps* of all results in their order, as STEPS."""
    return steps.sort(_ORDER).select(STEPS.names())


def record_steps(ledger: Ledger, visible: pl.DataFrame, depth: int = 0) -> pl.DataFrame:
    """Returns the steps of results as _ORDERED; *visible* are RESULTS from `Ledger.made_visible`.

    *depth* is the number of hops between these results and those that the account is about.
    """
    rows = placed_reads(ledger, visible)
    emitted = ledger.batches.select("stream", "batch_id", emitted_ms="looked_ms")
    held = (
        rows.filter(pl.col("held_by").is_not_null())
        .join(emitted, on=["stream", "batch_id"], how="left", maintain_order="left")
        .with_columns(
            held_from_ms=pl.col("held_from_ms") + pl.col("read_to_reference_ms"),
            due_ms=pl.col("due_ms") - pl.col("ahead_ms"),
        )
    )
    is_known = pl.all_horizontal(pl.col("held_from_ms", "due_ms").is_not_null())
    return pl.concat(
        [
            reading_steps(ledger, rows, depth),
            *ahead_steps(ledger, rows.filter(pl.col("held_by").is_null()), depth),
            step(held.filter(is_known), depth, 6, "held_from_ms", stream="stream"),
            step(
                held.filter(is_known),
                depth,
                7,
                "due_ms",
                owner=pl.col("held_by"),
                detail=pl.col("held_detail"),
                stream="stream",
            ),
            step(
                held.filter(~is_known),
                depth,
                7,
                pl.coalesce("due_ms", "emitted_ms"),
                owner=_UNKNOWN,
                detail=pl.lit("hold"),
            ),
            step(rows, depth, VISIBLE, "until_ms", stream="stream", error_ms=between("driver", "clock_error_ms")),
        ]
    )


def placed_reads(ledger: Ledger, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows*, which have READ and `event_ms`, with the other columns of READS and those of `placed`.

    A row may be about only some of the records in its row of READS. They waited for as long as all of these did.
    """
    reads = ledger.facts.reads.select(
        pl.all().exclude("batch_id", "row", "n", "event_ms", "arrived_ms"),
        read_batch="batch_id",
        read_row="row",
        delay_ms=pl.col("arrived_ms") - pl.col("event_ms"),
        is_read=pl.lit(value=True),
    )
    found = rows.join(reads, on=READ, how="left", maintain_order="left", nulls_equal=True)
    arrived_ms = pl.coalesce("arrived_ms", pl.col("event_ms") + pl.col("delay_ms"))
    return placed(ledger, found.with_columns(arrived_ms=arrived_ms).drop("delay_ms"))


def placed(ledger: Ledger, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with the instants of the batch that read their records, by the reference clock.

    The rows have `stream`, `read_batch` and `left_by`. `excluded_ms` is the last look at their input that did not see
    the records (null: there was none), and `seen_ms` the first look that saw them.
    """
    of_read = {"driver": "read_driver", "clock_error_ms": "read_error_ms", "to_reference_ms": "read_to_reference_ms"}
    batches = ledger.batches.rename({"batch_id": "read_batch", **of_read})
    seen = ledger.batches.select(
        "stream",
        left_by="batch_id",
        left_ms="looked_ms",
        left_excluded_ms="excluded_ms",
        left_driver="driver",
        left_error_ms="clock_error_ms",
    )
    was_left = pl.col("left_by").is_not_null()
    begun_ms = begun_before(rows, ledger.begun, pl.col("read_batch"))["begun_ms"]
    return (
        rows.join(batches, on=["stream", "read_batch"], how="left", maintain_order="left")
        .join(seen, on=["stream", "left_by"], how="left", maintain_order="left")
        .with_columns(
            excluded_ms=pl.when(was_left).then("left_excluded_ms").otherwise("excluded_ms"),
            seen_ms=pl.when(was_left).then("left_ms").otherwise("looked_ms"),
            read_driver=pl.coalesce("read_driver", "driver"),
            read_error_ms=pl.when(pl.col("read_driver").is_null()).then("clock_error_ms").otherwise("read_error_ms"),
        )
        .with_columns(excluded_ms=at_source("excluded_ms", begun_ms))
    )


def reading_steps(ledger: Ledger, rows: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Returns the steps until the look whose plan took the records; *rows* come from `placed_reads`."""
    # A record of a hop arrives with the commit of its writer's batch, at which the steps of the writer end.
    of_source = rows.filter(pl.col("writer").is_null())
    arrived = of_source.filter(pl.col("arrived_ms").is_not_null())
    not_known = of_source.filter(pl.col("arrived_ms").is_null())
    excluded = not_known.filter(pl.col("is_read").is_not_null())
    error_ms = pl.col("arrival_error_ms") + pl.col("read_error_ms")
    waited = rows.filter(pl.col("in_transaction"))
    unseen = waited.filter(pl.col("seen_ms").is_null())
    producer, whose = pl.lit(PRODUCER), input_partition()
    return pl.concat(
        [
            step(arrived, depth, 1, "arrived_ms", owner=producer, detail=whose, error_ms=error_ms),
            step(excluded, depth, 1, "excluded_ms", owner=producer, detail=whose, error_ms="read_error_ms"),
            step(not_known, depth, 2, "seen_ms", owner=_UNKNOWN, detail=pl.lit("arrival")),
            _begin_step(ledger, of_source, depth),
            step(waited, depth, 3, "seen_ms", owner=pl.lit(OPEN_TRANSACTION), detail=whose),
            step(unseen, depth, 3, pl.coalesce("looked_ms", "until_ms"), owner=_UNKNOWN, detail=pl.lit("look")),
            *unread_steps(ledger, rows, depth),
            *_hop_steps(ledger, rows.filter(pl.col("writer").is_not_null()), depth),
        ]
    )


def _begin_step(ledger: Ledger, rows: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Returns the step until the last driver without the source had ended.

    Only those of *rows* have it whose source the stream reads since a change of the topology file.
    """
    found = rows.with_columns(begun_before(rows, ledger.begun, pl.col("read_batch"))["without_ms"])
    owner, nth = pl.lit(TOPOLOGY_CHANGE), pl.lit(-1, pl.Int64())
    return step(found, depth, 3, "without_ms", owner=owner, detail=pl.col("input"), stream="stream", nth=nth)


def ahead_steps(ledger: Ledger, rows: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Returns the steps of those of *rows* that were too far ahead of other partitions; *rows* come from `placed`.

    The wait begins when the source has worked on the batch that read the record. It ends with the look that found what
    let the record go on, in the batch before the one that sent it on.
    """
    drifts = ledger.facts.drifts.rename({"batch_id": "read_batch"})
    ahead = rows.filter(pl.col("read_batch") < pl.col("batch_id")).join(
        drifts, on=["stream", "read_batch", "input"], maintain_order="left"
    )
    if ahead.is_empty():
        return []
    looks = ledger.batches.select("stream", "batch_id", sent_on_ms="looked_ms")
    sent_on = ahead.select("result", "stream", "batch_id", "driver", "clock_error_ms", "until_ms").join(
        looks, on=["stream", "batch_id"], how="left", maintain_order="left"
    )
    waited_for = sent_on.drop("batch_id").join(let_go(ledger, ahead), on="result", how="left", maintain_order="left")
    read_batch = pl.coalesce("read_batch", "batch_id")
    waited_for = placed(ledger, waited_for.with_columns(read_batch=read_batch, is_read=pl.lit(value=True)))
    by_record, silent, behind = (waited_for.filter(pl.col("kind") == kind) for kind in ("record", "silence", "behind"))
    unknown = waited_for.filter((pl.col("kind") == "unknown") | pl.col("kind").is_null())
    drift, silence, whose = pl.lit(MAX_DRIFT), pl.lit(SILENCE), pl.col("whose")
    steps = pl.concat(
        [
            step(by_record, depth, 0, "event_ms", owner=drift, detail=whose, stream="stream"),
            step(behind, depth, 0, "sent_on_ms", owner=drift, detail=whose, stream="stream"),
            step(silent, depth, 0, "at_ms", owner=silence, detail=whose, error_ms="read_error_ms"),
            step(unknown, depth, 0, "sent_on_ms", owner=_UNKNOWN, detail=pl.lit("passing")),
            reading_steps(ledger, by_record, depth),
            *ahead_steps(ledger, by_record, depth),
        ]
    )
    from_ms = pl.col("from_ms") + pl.col("read_to_reference_ms")
    # All that the record waited for, also behind a hop, comes between its source's work and its own next step.
    in_turn = steps.sort(_ORDER).with_columns(
        depth=pl.lit(depth, pl.Int32()), seq=pl.lit(7, pl.Int32()), nth=pl.int_range(pl.len())
    )
    return [step(ahead, depth, 6, from_ms, stream="stream"), in_turn.select(_ORDERED.names())]


def unread_steps(ledger: Ledger, rows: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Returns the steps of records that a plan left behind, until the look whose plan took them."""
    rows = rows.filter(pl.col("left_by").is_not_null())
    plans = ledger.facts.plans.select(
        "stream", "input", "partition", "cut_by", "cut_detail", left_by="batch_id", is_planned=pl.lit(value=True)
    )
    rows = rows.join(
        plans, on=["stream", "left_by", "input", "partition"], how="left", maintain_order="left", nulls_equal=True
    )
    is_known = pl.all_horizontal(pl.col("left_ms", "looked_ms", "is_planned").is_not_null())
    known, unknown = rows.filter(is_known), rows.filter(~is_known)
    before_ms = pl.col("looked_ms").shift().over("stream")
    looks = ledger.batches.select("stream", look="batch_id", look_ms="looked_ms", before_ms=before_ms)
    planned = ledger.facts.plans.select("stream", look="batch_id", has_plan=pl.lit(value=True)).unique()
    stretches = (
        known.with_columns(look=pl.int_ranges(pl.col("left_by") + 1, pl.col("read_batch") + 1))
        .explode("look")
        .join(looks.join(planned, on=["stream", "look"], how="left"), on=["stream", "look"])
        .join(ledger.waiting.rename({"batch_id": "look"}), on=["stream", "look"], how="left")
        .sort("result", "look", "since", "until")
    )
    is_owed = pl.col("owner").is_not_null()
    share_ms = ((pl.col("look_ms") - pl.col("before_ms")) * pl.col("until")).floor().cast(pl.Int64())
    until_ms = pl.when(is_owed).then(pl.col("before_ms") + share_ms).otherwise("look_ms")
    # The debts at a look are known only with the plan that was made from it.
    unowed, whose = pl.col("cut_by").fill_null(CAPACITY), pl.coalesce("cut_detail", "stream")
    owner = pl.when(is_owed).then("owner").when("has_plan").then(unowed).otherwise(_UNKNOWN)
    detail = pl.when(is_owed).then("detail").when("has_plan").then(whose).otherwise(pl.lit("plan"))
    return [
        step(rows, depth, 4, "left_ms", stream="stream", error_ms=between("left_driver", "left_error_ms")),
        step(stretches, depth, 5, until_ms, owner=owner, detail=detail, stream="stream", nth=pl.int_range(pl.len())),
        step(unknown, depth, 5, pl.coalesce("looked_ms", "until_ms"), owner=_UNKNOWN, detail=pl.lit("plan")),
    ]


def _hop_steps(ledger: Ledger, rows: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Returns the steps until records were written to a hop or topic: those of the results of the writers."""
    if rows.is_empty():
        return []
    written = numbered(ledger.facts.results).rename({"result": "origin"})
    found = rows.select(
        "result",
        "seen_ms",
        "read_error_ms",
        stream="writer",
        place="writer_place",
        batch_id="writer_batch",
        row="writer_row",
    ).join(
        written.select("origin", "stream", "batch_id", "place", "row"),
        on=["stream", "batch_id", "place", "row"], how="left", maintain_order="left",
    )  # fmt: skip
    known, unknown = found.filter(pl.col("origin").is_not_null()), found.filter(pl.col("origin").is_null())
    origins = ledger.made_visible(
        written.join(known.select("origin").unique(), on="origin").rename({"origin": "result"})
    )
    return [
        behind_hop(record_steps(ledger, origins, depth + 1), origins, known, depth),
        step(unknown, depth, 2, "seen_ms", owner=_UNKNOWN, detail=pl.lit("hop")),
    ]


def behind_hop(steps: pl.DataFrame, origins: pl.DataFrame, links: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Returns the steps of results of writers as steps of the results that were made from them.

    Where a record goes from one driver to the next, the errors of both clocks add up.

    Args:
        steps: steps of the writers' results.
        origins: the writers' results.
        links: which result (`result`) was made from which result of a writer (`origin`), with `read_error_ms`.
        depth: the depth of the results that were made from them.
    """
    ends = (pl.col("seq") == VISIBLE) & (pl.col("depth") == depth + 1)
    error_ms = pl.sum_horizontal("error_ms", "read_error_ms", "written_error_ms", ignore_nulls=False)
    return (
        steps.rename({"result": "origin"})
        .join(links.select("origin", "result", "read_error_ms"), on="origin")
        .join(origins.select(origin="result", written_error_ms="clock_error_ms"), on="origin")
        .with_columns(error_ms=pl.when(ends).then(error_ms).otherwise("error_ms"))
        .select(_ORDERED.names())
    )


def between(driver: str, error_ms: str) -> pl.Expr:
    """Returns the error between the clocks of a driver and of the driver that read; 0 if both are the same driver."""
    is_same = pl.col(driver) == pl.col("read_driver")
    return pl.when(is_same).then(0).otherwise(pl.col(error_ms) + pl.col("read_error_ms"))


def step(
    rows: pl.DataFrame,
    depth: int,
    seq: int,
    until_ms: str | pl.Expr,
    *,
    owner: pl.Expr | None = None,
    detail: pl.Expr | None = None,
    stream: str | None = None,
    error_ms: str | pl.Expr | None = None,
    nth: pl.Expr | None = None,
) -> pl.DataFrame:
    """Returns the same step for each of *rows*, as _ORDERED; rows whose instant is null have none.

    Args:
        rows: rows with `result`.
        depth: the number of hops between their results and those that the account is about.
        seq: the position of the step in the account of a result.
        until_ms: the instant at which the step ends, reference.
        owner: the owner of the time; None leaves it to the timeline of *stream*.
        detail: the detail of that owner.
        stream: the column with the stream for which the time was spent.
        error_ms: by how much the instant may be wrong; None stands for 0.
        nth: the order of several steps with the same *seq*; None stands for 0.
    """
    none = pl.lit(None, pl.String())
    return rows.select(
        "result",
        until_ms=until_ms,
        error_ms=pl.lit(0, pl.Int64()) if error_ms is None else error_ms,
        owner=none if owner is None else owner,
        detail=none if detail is None else detail,
        stream=none if stream is None else stream,
        depth=pl.lit(depth, pl.Int32()),
        seq=pl.lit(seq, pl.Int32()),
        nth=pl.lit(0, pl.Int64()) if nth is None else nth,
    ).filter(pl.col("until_ms").is_not_null())
