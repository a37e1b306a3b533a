"""What the account of time is made of: every fact that has to be recorded, as typed frames.

Clocks: *boot* is ms of `CLOCK_BOOTTIME` of the driver's host, which goes on while the host is suspended and never
steps; it is comparable within one driver only. *Wall* is epoch ms of the named host, as it was read, steps included.
*Reference* is epoch ms of the clock that hosts are measured against, the brokers'. Event times are epoch ms of the
producers' clocks, which nobody measures: a wrong one is a part of the producer. Lengths are ms.

A row that is missing is a missing fact: the time that it would explain becomes `unknown`, and nothing else does. A row
whose column says "null: ..." is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

TEXT, MS, COUNT = pl.String(), pl.Int64(), pl.Int64()

SEGMENTS = pl.Schema(
    {
        "stream": TEXT,
        "driver": COUNT,
        "batch_id": COUNT,
        "owner": TEXT,
        "detail": TEXT,
        "began_ms": MS,
        "ended_ms": MS,
    }
)
"""What the main thread of a stream did, without a gap: the list of phases of `batches`.

`driver` is the epoch of the stream's driver, `owner` and `detail` those of `account.owners`, and the instants boot. A
wait for the trigger and looks without news belong to the batch that comes after them. Segments that ended after the
newest entry ride in heartbeats, so that those of a driver that died are there up to its last heartbeat.
"""
TASKS = pl.Schema(
    {
        "stream": TEXT,
        "driver": COUNT,
        "batch_id": COUNT,
        "host": TEXT,
        "task": TEXT,
        "operator": TEXT,
        "began_ms": MS,
        "ended_ms": MS,
    }
)
"""What the tasks of a batch did within the driver's segments of TASKS_OF_SPARK, in the list of tasks of
`operator_batches`.

`task` names the shard, partition or hot key. The instants are the wall clock of the task's `host`.
"""
BATCHES = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "driver": COUNT,
        "host": TEXT,
        "wall_ms": MS,
        "boot_ms": MS,
        "excluded_ms": MS,
        "looked_ms": MS,
    }
)
"""The batches that were decided, a row of `batches` each.

`driver` is the one that decided the batch. `wall_ms` is the batch's one reading of the wall clock of `host`, and
`boot_ms` the same instant. `looked_ms`, boot, is when the end offsets that the plan used were known; of a later part of
a planned batch, when the part before ended. `excluded_ms` is the look before that (null: it was the driver's first
one). If that is not the look of the batch before, it found nothing.
"""
HEARTBEATS = pl.Schema(
    {
        "stream": TEXT,
        "driver": COUNT,
        "host": TEXT,
        "began_ms": MS,
        "ended_ms": MS,
        "wall_ms": MS,
        "gaps": pl.List(pl.Struct({"began_ms": MS, "ended_ms": MS, "cpu_ms": MS})),
    }
)
"""The time for which the pulse vouches: from the heartbeat before (or the driver's first look) to this one, boot.

`wall_ms` is the wall clock of `host` at `ended_ms`. `gaps` are the stretches between two beats of at least 1 s, with
the CPU time that the process used in each.
"""
CLOCKS = pl.Schema({"stream": TEXT, "driver": COUNT, "host": TEXT, "at_ms": MS, "offset_ms": MS, "error_ms": MS})
"""Measured clocks, the list of clock offsets of `heartbeats`.

`offset_ms` added to the wall clock of `host` is the reference, give or take `error_ms`; negative where the host is
ahead. `at_ms` is `ended_ms` of the heartbeat with it. For the host of a task the offset of the driver's host is added.
"""
PLANS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "input": TEXT,
        "partition": COUNT,
        "from_offset": COUNT,
        "until_offset": COUNT,
        "latest_offset": COUNT,
        "cut_by": TEXT,
        "cut_detail": TEXT,
        "n": COUNT,
        "newest_ms": MS,
        "writer": TEXT,
    }
)
"""What each plan took from an input partition, a row of `partition_batches`.

`n` is the number of records that the batch read there, and `newest_ms` the newest event time of the partition with
these (null: it has had no record). Of a hop offsets are batches of `writer`, the stream that writes it (null: the input
is a source). A batch may also have told how far the hop is complete, and have written no record.
Offsets are as there: exclusive ends. `cut_by` is the owner (`max_records`) because of which a plan took less than there
was, null: it took all, or nothing limited it; `cut_detail` is that owner's detail.
"""
_ARRIVAL = {
    "arrived_ms": MS,
    "arrival_error_ms": MS,
    "in_transaction": pl.Boolean(),
    "left_by": COUNT,
    "writer": TEXT,
    "writer_place": TEXT,
    "writer_batch": COUNT,
    "writer_row": COUNT,
}
"""What is known of how records came, which READS explains."""
READS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "input": TEXT,
        "partition": COUNT,
        "row": COUNT,
        "event_ms": MS,
        "newest_ms": MS,
        "n": COUNT,
        **_ARRIVAL,
    }
)
"""What a batch read: `n` records of an input partition that arrived, waited and aged alike, in `partition_batches`.

`row` numbers the rows of a batch and partition. `event_ms` is the mean event time, `newest_ms` the newest, and
`arrived_ms` the mean arrival by the reference, with its error (both null: not known). `in_transaction`: a look had seen
them beyond the last stable offset. `left_by` is the first batch whose plan saw them and left them behind (null: the
first plan that saw them took them). Of a hop, or of a topic whose records have an id of this warehouse, `writer`,
`writer_place`, `writer_batch` and `writer_row` name their row of RESULTS, and their arrival is null: it is the end of
that write. They are null for others.
"""
FIRSTS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "input": TEXT,
        "partition": COUNT,
        "row": COUNT,
        "event_ms": MS,
        "reached_ms": MS,
        **_ARRIVAL,
    }
)
"""Single records, in the order of arrival by `row`: of each partition of a source, and for each instant for which a
window that the batch closed had waited (its end, `allowed_ms` and the bound), the first record at or beyond it.

They are among those of READS, and the columns are as there. `reached_ms` is the newest event time of the partition
before the record (null: there was none), so that it is the first one also beyond each instant between the two.
"""
RESULTS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "driver": COUNT,
        "place": TEXT,
        "row": COUNT,
        "visible_ms": MS,
        "visible_boot_ms": MS,
        "read_batch": COUNT,
        "input": TEXT,
        "partition": COUNT,
        "read_row": COUNT,
        "event_ms": MS,
        "arrived_ms": MS,
        "n": COUNT,
        "held_by": TEXT,
        "held_detail": TEXT,
        "held_from_ms": MS,
        "due_ms": MS,
    }
)
"""What a batch made visible at a place (an operator's table, hop or topic): `n` rows that came about alike.

`visible_ms` is the wall clock of `driver`, whose write it was, when that write ended, and `visible_boot_ms` the same
instant. `row` is different for each row of a batch and place. `read_batch`, `input`, `partition` and `read_row` name
the row of READS; `event_ms` is the mean event time of these results, and `arrived_ms` their mean arrival, where it is
known better than from that row (null). `held_by` is the setting of an operator because of which the result came later
than its batch (null: none did). It waited from `held_from_ms` on, boot of the driver that read the record (the end of
the operator; of a merge the end of the write), until `due_ms`, the wall clock of `driver`.
"""
WINDOWS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "driver": COUNT,
        "place": TEXT,
        "end_ms": MS,
        "allowed_ms": MS,
        "visible_ms": MS,
        "visible_boot_ms": MS,
    }
)
"""Windows, a row of `operator_windows` each.

`batch_id` is the first batch whose watermark passed `end_ms`, record time, and `allowed_ms` beyond it: that is the
`allowed_lateness` of an operator that sends a window only when it is closed (null: it sends it at its end). A session
ends at its merged end. `visible_ms` and `visible_boot_ms` are when the place had the window's first result, as in
RESULTS.
"""
MARKS = pl.Schema(
    {
        "stream": TEXT,
        "batch_id": COUNT,
        "driver": COUNT,
        "place": TEXT,
        "watermark_ms": MS,
        "visible_ms": MS,
        "visible_boot_ms": MS,
    }
)
"""How far a hop was complete with a batch that it showed, the watermark of `batches` (null: there was none yet).

`visible_ms` and `visible_boot_ms` are as in RESULTS.
"""
BOUNDS = pl.Schema({"stream": TEXT, "input": TEXT, "bound_ms": MS})
"""The bound of each source that a stream reads."""
DRIFTS = pl.Schema({"stream": TEXT, "batch_id": COUNT, "input": TEXT, "from_ms": MS, "max_drift_ms": MS})
"""When a source had worked on a batch, boot, whose partitions may be `max_drift_ms` ahead of the slowest of the stream.

Records further ahead wait from then on, until a later batch sends them on.
"""
BEGINS = pl.Schema({"stream": TEXT, "input": TEXT, "batch_id": COUNT})
"""The first batch of a driver that reads a source which began, or began anew, because the topology file was changed.

What it found there had come while the file was without the source, or is read again. A source that the stream has had
from the beginning has no row. The batch itself may have been planned by the driver before, without the source.
"""
SILENCES = pl.Schema(
    {"stream": TEXT, "batch_id": COUNT, "input": TEXT, "partition": COUNT, "setting": TEXT, "due_ms": MS}
)
"""Partitions that a batch stopped waiting for, because of a setting (`idle_after`, `idle_advances`).

`due_ms` is when the silence had lasted for long enough, boot. The partition holds nothing back until a batch reads
from it.
"""
USUAL_LENGTHS = pl.Schema(
    {"stream": TEXT, "owner": TEXT, "detail": TEXT, "usual_ms": pl.Float64(), "varying_ms": pl.Float64()}
)
"""How long an owner usually has of the time from one look to the next. Owners without a row: 0.

`varying_ms` is what of it grows with the number of records (null: all of it).
"""
USUAL_ARRIVALS = pl.Schema({"stream": TEXT, "input": TEXT, "per_ms": pl.Float64(), "per_batch": pl.Float64()})
"""How many records of an input usually arrive in a ms, and how many a batch usually reads."""


@dataclass(frozen=True, kw_only=True)
class AccountFacts:
    """All that is known of the streams of a topology, in frames with the schemas above."""

    segments: pl.DataFrame = field(default_factory=SEGMENTS.to_frame)
    tasks: pl.DataFrame = field(default_factory=TASKS.to_frame)
    batches: pl.DataFrame = field(default_factory=BATCHES.to_frame)
    heartbeats: pl.DataFrame = field(default_factory=HEARTBEATS.to_frame)
    clocks: pl.DataFrame = field(default_factory=CLOCKS.to_frame)
    plans: pl.DataFrame = field(default_factory=PLANS.to_frame)
    reads: pl.DataFrame = field(default_factory=READS.to_frame)
    firsts: pl.DataFrame = field(default_factory=FIRSTS.to_frame)
    results: pl.DataFrame = field(default_factory=RESULTS.to_frame)
    windows: pl.DataFrame = field(default_factory=WINDOWS.to_frame)
    marks: pl.DataFrame = field(default_factory=MARKS.to_frame)
    bounds: pl.DataFrame = field(default_factory=BOUNDS.to_frame)
    drifts: pl.DataFrame = field(default_factory=DRIFTS.to_frame)
    begins: pl.DataFrame = field(default_factory=BEGINS.to_frame)
    silences: pl.DataFrame = field(default_factory=SILENCES.to_frame)
    usual_lengths: pl.DataFrame = field(default_factory=USUAL_LENGTHS.to_frame)
    usual_arrivals: pl.DataFrame = field(default_factory=USUAL_ARRIVALS.to_frame)
