"""The account of results that are not visible yet: their age ends now.

Nobody knows whether records came after the last look. So from that look on, or from the first look that saw the unread
records, the time belongs to what the stream does now.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from tidemark.account.clocks import DRIVER
from tidemark.account.facts import MS, SEGMENTS, TEXT, AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.next_record import NEXT_RECORD
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.records import VISIBLE, in_order, numbered, placed, step, unread_steps
from tidemark.account.steps import AGES, input_partition, parts_of

RUNNING = pl.Schema(
    {
        "stream": TEXT,
        "driver": pl.Int64(),
        "owner": TEXT,
        "detail": TEXT,
        "now_ms": MS,
    }
)
"""What each stream does now, as owner and detail: the segment that its newest heartbeat names, or the absence of a
driver. `now_ms` is now by the boot clock of its driver.
"""
OPEN = pl.Schema(
    {
        "stream": TEXT,
        "driver": pl.Int64(),
        "input": TEXT,
        "partition": pl.Int64(),
        "start_ms": MS,
        "waited_until_ms": MS,
        "waits_by": TEXT,
        "bound_ms": MS,
        "late_ms": MS,
        "left_by": pl.Int64(),
        "visible_ms": MS,
        "visible_boot_ms": MS,
    }
)
"""Results that are not visible yet.

`start_ms` is the end of a window, or the event time of a record; a row is about a window if `bound_ms` is not null.

A window has waited for the partition until `waited_until_ms`, reference: the last look, or the first look that saw
unread records of the partition. The record that it waits for counts as `late_ms` old at that instant, as the newest
record of the partition was when it arrived (null: 0). Until that record was produced the time belongs to `waits_by`
(null: `next_record`). For a record, `waited_until_ms` is when it arrived.

`left_by` is the first batch whose plan left the record behind (null: none did). `visible_ms` and `visible_boot_ms` are
now, by the clocks of the stream's newest driver.
"""


def until_now(facts: AccountFacts, running: pl.DataFrame) -> AccountFacts:
    """Returns *facts* with a last segment for each stream in *running* (RUNNING), from its driver's last sign until
    now.
    """
    signs = pl.concat([frame.select(*DRIVER, "ended_ms") for frame in (facts.segments, facts.heartbeats)])
    last = signs.group_by(DRIVER).agg(began_ms=pl.max("ended_ms"))
    newest = facts.segments.group_by(DRIVER).agg(pl.max("batch_id"))
    segments = (
        running.join(last, on=DRIVER, maintain_order="left")
        .join(newest, on=DRIVER, how="left", maintain_order="left")
        .rename({"now_ms": "ended_ms"})
        .filter(pl.col("began_ms") < pl.col("ended_ms"))
    )
    return replace(facts, segments=pl.concat([facts.segments, segments.select(SEGMENTS.names())]))


def open_parts(ledger: Ledger, unfinished: pl.DataFrame) -> pl.DataFrame:
    """Returns the PARTS of the results in *unfinished* (OPEN), numbered by their row.

    The facts of *ledger* come from `until_now`.
    """
    rows = ledger.made_visible(numbered(unfinished))
    windows, records = rows.filter(pl.col("bound_ms").is_not_null()), rows.filter(pl.col("bound_ms").is_null())
    at_bound_ms = pl.col("start_ms") + pl.col("bound_ms")
    produced_ms = pl.col("waited_until_ms") - pl.col("late_ms").fill_null(0)
    newest = ledger.facts.batches.group_by("stream").agg(read_batch=pl.max("batch_id"))
    left = rows.filter(pl.col("left_by").is_not_null()).join(newest, on="stream", maintain_order="left")
    waits_by = pl.coalesce("waits_by", pl.lit(NEXT_RECORD))
    steps = pl.concat(
        [
            step(windows, 0, 1, at_bound_ms, owner=pl.lit(BOUND), detail=pl.col("input")),
            step(windows, 0, 2, produced_ms, owner=waits_by, detail=input_partition()),
            step(windows, 0, 3, "waited_until_ms", owner=pl.lit(PRODUCER), detail=input_partition()),
            step(records, 0, 2, "waited_until_ms", owner=pl.lit(PRODUCER), detail=input_partition()),
            *unread_steps(ledger, placed(ledger, left), 0),
            step(rows, 0, VISIBLE, "until_ms", stream="stream", error_ms="clock_error_ms"),
        ]
    )
    ages = rows.with_columns(producer=input_partition())
    return parts_of(ages.select(AGES.names()), in_order(steps), ledger.timeline)
