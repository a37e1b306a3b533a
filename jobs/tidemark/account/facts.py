"""What the account of time is made of: every fact that has to be recorded, as typed frames.

Clocks: *boot* is ms of `CLOCK_BOOTTIME` of the driver's host. It goes on while the host is suspended and never steps,
and only instants of one driver can be compared. *Wall* is epoch ms of the named host, as it was read, steps included.
*Reference* is epoch ms of the brokers' clock, against which the clocks of hosts are measured. Event times are epoch ms
of the producers' clocks, which nobody measures: if such a clock is wrong, the producer owns the difference. Lengths are
ms.

If a row is missing, the time that it would explain becomes `unknown`, and no other time does. A null means what the
column says ("null: …"), and not that a fact is missing.
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

`driver` is the epoch of the stream's driver, and `owner` and `detail` are those of `account.owners`. The instants are
boot. A wait for the trigger, and looks that found no records, belong to the batch that comes after them. Heartbeats
carry the segments since the newest journal entry, so that the work of a driver that died is known up to its last
heartbeat.
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
`boot_ms` the same instant. `looked_ms`, boot, is when the end offsets that the plan used were known. If a planned batch
is carried out in parts, it is for a later part the end of the part before. `excluded_ms` is the look before that (null:
it was the driver's first look). Unless that was the look of the batch before, it found no records.
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
"""The time that a heartbeat vouches for: from the heartbeat before (or the driver's first look) to this one, boot.

A thread of the driver, the pulse, beats several times a second and notices when the process does not run.

`wall_ms` is the wall clock of `host` at `ended_ms`. `gaps` are the stretches of at least 1 s between two beats, with
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

`n` is the number of records that the batch read there, and `newest_ms` the newest event time of the partition, these
records included (null: it has had no record). The offsets of a hop are batches of its `writer`, the stream that writes
it (null: the input is a source). Such a batch may have written no record, and only told how far the hop is complete.
As in the table, end offsets are exclusive. `cut_by` is the owner (`max_records`) because of which a plan took fewer
records than there were (null: it took all, or nothing limited it), and `cut_detail` the detail of that owner.
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
"""What a batch read, from the lists in `partition_batches`: `n` records of an input partition that arrived, waited and
aged alike.

`row` numbers the rows of a batch and partition. `event_ms` is the mean event time, `newest_ms` the newest, and
`arrived_ms` the mean arrival by the reference, with its error (both null: not known). `in_transaction`: a look had seen
the records beyond the last stable offset. `left_by` is the first batch whose plan saw the records and left them behind
(null: the first plan that saw them took them). If another stream of this warehouse wrote the records, to a hop or to a
topic, `writer`, `writer_place`, `writer_batch` and `writer_row` name their row of RESULTS, and the arrival is null,
since it is the end of that write. For other records these four are null.
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

These records are also in READS, and have the columns of READS. `reached_ms` is the newest event time of the partition
before the record (null: there was none). So the record is the first one beyond every instant between `reached_ms` and
its own event time.
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
"""What a batch made visible: `n` rows that came about alike, in the table, hop or topic of an operator, the `place`.

`visible_ms` is when `driver` had ended the write, by its wall clock, and `visible_boot_ms` the same instant. `row` is
different for each row of a batch and place. `read_batch`, `input`, `partition` and `read_row` name the row of READS
with the records of these results. `event_ms` is the mean event time of the results, and `arrived_ms` their mean arrival
(null: that row knows it as well). `held_by` is the setting because of which an operator sent the results in a later
batch (null: no setting held them). They waited from `held_from_ms`, boot of the driver that read the records, when the
operator had ended (for a merge, its write), until `due_ms`, wall clock of `driver`.
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

`batch_id` is the first batch whose watermark passed the end of the window, `end_ms` (record time), and `allowed_ms`
beyond it. That is the `allowed_lateness` of an operator that sends a window only when it is closed (null: it sends a
window at its end). The end of a session is that after its last merge. `visible_ms` and `visible_boot_ms` are when the
place had the window's first result, as in RESULTS.
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
"""Up to which record time a hop was complete with a batch: the watermark of `batches` (null: there was none yet).

`visible_ms` and `visible_boot_ms` are as in RESULTS.
"""
BOUNDS = pl.Schema({"stream": TEXT, "input": TEXT, "bound_ms": MS})
"""The bound of each source that a stream reads."""
DRIFTS = pl.Schema({"stream": TEXT, "batch_id": COUNT, "input": TEXT, "from_ms": MS, "max_drift_ms": MS})
"""From when on (`from_ms`, boot) records of a batch waited because they were too far ahead of another partition.

Partitions may be at most `max_drift_ms` ahead of the slowest of the stream. Records further ahead wait from the end of
their source's work on, until a later batch sends them on.
"""
BEGINS = pl.Schema({"stream": TEXT, "input": TEXT, "batch_id": COUNT})
"""The first batch of the driver that began to read a source because the topology file was changed.

The records that this driver found there had come while the file did not have the source, or are read again. A source
that the stream has always had has no row. The batch itself may have been planned by the driver before, without the
source.
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
"""How much of the time from one look to the next an owner usually takes; 0 for an owner without a row.

`varying_ms` is the part of `usual_ms` that grows with the number of records (null: all of it).
"""
USUAL_ARRIVALS = pl.Schema({"stream": TEXT, "input": TEXT, "per_ms": pl.Float64(), "per_batch": pl.Float64()})
"""How many records of an input usually arrive in a ms, and how many a batch usually reads."""


@dataclass(frozen=True, kw_only=True)
class AccountFacts:
    """All that is known of the streams of a topology, in frames of the schemas above."""

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
