"""The progress that a stream keeps from batch to batch: offsets, watermarks, open windows.

Progress is small, and every journal entry has all of it; the keyed state of operators lies in files of its own.
Instants are epoch ms UTC: record time for timestamps and watermarks, the batch's decision time for `*_at_ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark.selection import omit
from tidemark.semantics.idleness import Activity
from tidemark.semantics.schema_watch import SourceFields
from tidemark.semantics.skip_rate import Skips

WATCHED_FILES = 500
"""Most files of a source whose sizes are remembered after they were read; each journal entry has them."""


class WriterPosition(NamedTuple):
    """How far the records of a writer that numbers what it sends (header `tidemark-id`) were read.

    `epoch` is the highest epoch that was seen of the writer. `batch` and `sequence` are the numbers of its last
    record in order: a record that does not come after them is a repeat.
    """

    epoch: int
    batch: int
    sequence: int


class TopicPartition(NamedTuple):
    """A partition of a topic, by Kafka's number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Returns the partition as people write it: `orders/0`."""
        return f"{self.topic}/{self.partition}"


class LeftBehind(NamedTuple):
    """The batch `batch_id` was planned when records up to `until_offset` existed, and left some of them unread."""

    until_offset: int
    batch_id: int


MOST_LEFT = 64
"""Most batches that left records unread are remembered of a partition; of more, every second one is forgotten."""


class SentMark(NamedTuple):
    """The newest mark of time that a sink sent: its watermark and whether it is idle, for readers of its topic.

    `at_ms` is the decision time of the batch that sent the mark.
    """

    at_ms: int
    watermark_ms: int | None
    idle: bool


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """Progress of one input partition.

    Attributes:
        max_timestamp_ms: timestamp of its newest record.
        watermark_ms: its watermark.
        active_at_ms: when it last had a record.
        until_offset: the offset after the last record that was read.
        done_until_offset: every record before it was sent on; records from there to `until_offset` wait.
        activity: its state.
        writers: by name, the writers that number their records (`tidemark-id`).
        told_idle: the latest mark of time from the topic's writer declares the partition idle.
        newest_ms: newest event time that was read, also of a record that waits or is ahead of the clock. Tombstones get
            this time.
        set_back_from_ms: the record time that the partition had reached when it was set back (`tidemark reset-time`).
            None if that never happened, or once its writer's marks carry an earlier time.
        topic_id: Kafka's id of the topic in which `until_offset` is a position; None if not known.
        latest_offset: of a source over several topics, the offset at which the partition ended when the broker was
            asked last; None if not known, or for a source of one topic.
        left_behind: earlier batches that left records which are still unread, oldest first.
    """

    max_timestamp_ms: int | None = None
    watermark_ms: int | None = None
    active_at_ms: int | None = None
    until_offset: int = 0
    done_until_offset: int = 0
    activity: Activity = Activity.ACTIVE
    writers: Mapping[str, WriterPosition] = field(default_factory=dict)
    told_idle: bool = False
    newest_ms: int | None = None
    set_back_from_ms: int | None = None
    topic_id: str | None = None
    latest_offset: int | None = None
    left_behind: tuple[LeftBehind, ...] = ()

    def leaves(self, left_offset: int | None, batch_id: int) -> PartitionProgress:
        """Returns this progress after the batch *batch_id* was planned.

        The plan left records before *left_offset* unread; None if it left none.
        """
        plans = [plan for plan in self.left_behind if plan.until_offset > self.until_offset]
        if left_offset is not None and (not plans or left_offset > plans[-1].until_offset):
            plans.append(LeftBehind(left_offset, batch_id))
        if len(plans) > MOST_LEFT:
            # Records that a forgotten batch left unread count as left by the next one.
            plans = plans[::2]
        return self if tuple(plans) == self.left_behind else replace(self, left_behind=tuple(plans))

    def believes(self, mark_ms: int | None) -> bool:
        """Returns True unless the writer sent this mark before the partition's time was set back.

        The mark counts as a record of *mark_ms*.
        """
        return self.set_back_from_ms is None or (mark_ms is not None and mark_ms < self.set_back_from_ms)


@dataclass(frozen=True, kw_only=True)
class InputProgress:
    """Progress of one input of a stream: a source, or the table of an upstream stream.

    Attributes:
        partitions: progress by input partition.
        watermark_ms: the watermark over all partitions; None before the first.
        held_by: the partition that holds this watermark back; None if nothing does.
        idle: every partition is idle.
        places: of a source over several topics, the Kafka partition behind each input partition, by its number. The
            tuple only grows, so that no number ever means another partition; a deleted topic only leaves `partitions`.
        idle_watermark_ms: of an upstream's table, the lowest watermark of an idle partition of the upstream, as it said
            last; None if none was idle.
        files: of a source of files, the bytes of those that were read last, by name, the newest at the end.
    """

    partitions: Mapping[int, PartitionProgress] = field(default_factory=dict)
    watermark_ms: int | None = None
    held_by: str | None = None
    idle: bool = False
    places: tuple[TopicPartition, ...] = ()
    idle_watermark_ms: int | None = None
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def offsets_read(self) -> dict[int, int]:
        """The offset up to which each partition was read, exclusive."""
        return {number: partition.until_offset for number, partition in self.partitions.items()}

    def with_writers(self, writers: Mapping[int, Mapping[str, WriterPosition]]) -> InputProgress:
        """Returns this progress with the *writers* of each partition."""
        partitions: dict[int, PartitionProgress] = {}
        for number, partition in self.partitions.items():
            partitions[number] = replace(partition, writers=writers.get(number, {}))
        return replace(self, partitions=partitions)

    def positions(self, numbers: Iterable[int]) -> dict[int, int]:
        """Returns the next offset to read of each partition.

        Partitions among *numbers* that were added since the first batch begin at 0.
        """
        added = dict.fromkeys(numbers, 0) if self.partitions else {}
        return {**added, **self.offsets_read}

    def read_until(self, offsets: Mapping[int, int]) -> InputProgress:
        """Returns this progress with other *offsets* of some partitions."""
        partitions = dict(self.partitions)
        for number, offset in offsets.items():
            partitions[number] = replace(partitions[number], until_offset=offset)
        return replace(self, partitions=partitions)

    @property
    def topic_ids(self) -> dict[int, str | None]:
        """Kafka's id of the topic of each partition; None where it is not known."""
        return {number: partition.topic_id for number, partition in self.partitions.items()}

    def with_topic_ids(self, ids: Mapping[int, str | None]) -> InputProgress:
        """Returns this progress with the topic id of each partition."""
        partitions: dict[int, PartitionProgress] = {}
        for number, partition in self.partitions.items():
            partitions[number] = replace(partition, topic_id=ids.get(number))
        return replace(self, partitions=partitions)

    def with_latest_offsets(self, latest: Mapping[int, int | None]) -> InputProgress:
        """Returns this progress with the latest offset of each partition."""
        partitions: dict[int, PartitionProgress] = {}
        for number, partition in self.partitions.items():
            partitions[number] = replace(partition, latest_offset=latest.get(number))
        return replace(self, partitions=partitions)

    def with_left(self, left: Mapping[int, int | None], batch_id: int) -> InputProgress:
        """Returns this progress after the batch *batch_id* was planned.

        *left* has, by partition, the offset before which the plan left records unread; None where it left none.
        """
        partitions: dict[int, PartitionProgress] = {}
        for number, partition in self.partitions.items():
            partitions[number] = partition.leaves(left.get(number), batch_id)
        return replace(self, partitions=partitions)

    def with_files(self, sizes: Mapping[str, int]) -> InputProgress:
        """Returns this progress with files that were read now, and their *sizes* in bytes."""
        files = {**{name: size for name, size in self.files.items() if name not in sizes}, **sizes}
        return replace(self, files=dict([*files.items()][-WATCHED_FILES:]))


@dataclass(frozen=True, kw_only=True)
class TableIntervals:
    """The intervals of a table that are, or will be, complete.

    Attributes:
        every_ms: their length.
        timezone: the zone whose clock they follow; None means UTC.
        first_ms: the start of the first interval; None while the table has no record.
        up_to_ms: every interval that ends by then is complete.
        counts: by start of an open interval, its records and results.
        uncounted: the first and the last start of open intervals that are not counted; None if all are.
        waits: by start of an open interval, how long it waited for each partition, input or operator, ms.
        blocked_by: an operator that still holds results of the next interval; None if none does.
        before_change: start and end of the newest interval that was complete when length or zone changed; None without
            such a change.
    """

    every_ms: int
    timezone: str | None = None
    first_ms: int | None = None
    up_to_ms: int | None = None
    counts: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    uncounted: tuple[int, int] | None = None
    waits: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    blocked_by: str | None = None
    before_change: tuple[int, int] | None = None


STREAMING = ""
"""The key of streaming windows in `stay_closed`; no operator has this name."""


@dataclass(frozen=True, kw_only=True)
class StreamProgress:
    """Progress of a stream: per source, per operator, and of windows.

    Attributes:
        batch_id: number of the newest batch, counting each part of a batch that was carried out in parts.
        decided_at_ms: its decision time.
        inputs: progress by source.
        watermark_ms: watermark of the sub-topology.
        held_by: the input that holds the watermark back.
        idle: every source that may hold the watermark back is idle.
        windows: starts of the streaming windows that had records, are measured and not closed.
        uncounted: older ones that are not measured, as first and last start of consecutive windows.
        records: by operator and window start, the number of records that the operator finished.
        skipped: by operator and task, the total of idempotent-update-skips.
        skipped_lately: by operator, the skips of the last minute.
        marks: newest mark of time by sink.
        resets: the batches in which time was set back, by the id of the request.
        stay_closed: by aggregate, the windows (start, end) that were closed when time was set back and that the
            watermark has not passed again; streaming windows under STREAMING.
        forgotten: by aggregate, the latest end of a window whose states were removed.
        ended: by aggregate, the latest end of such a window since time was set back.
        reopened: the batches in which late records were processed again, by the id of the request.
        ahead: how many more batches there were than Spark planned, because each part of a batch counts as one.
        complete: by operator with the setting `complete`, its intervals.
        fields: by source, the fields that its records have.
        reads: how many rows the batches have stored in the table `reads`; they are numbered from 0.
    """

    batch_id: int = -1
    decided_at_ms: int | None = None
    inputs: Mapping[str, InputProgress] = field(default_factory=dict)
    watermark_ms: int | None = None
    held_by: str | None = None
    idle: bool = False
    windows: tuple[int, ...] = ()
    uncounted: tuple[tuple[int, int], ...] = ()
    records: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    skipped: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    skipped_lately: Mapping[str, Skips] = field(default_factory=dict)
    marks: Mapping[str, SentMark] = field(default_factory=dict)
    resets: Mapping[str, int] = field(default_factory=dict)
    stay_closed: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    forgotten: Mapping[str, int] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    reopened: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0
    complete: Mapping[str, TableIntervals] = field(default_factory=dict)
    fields: Mapping[str, SourceFields] = field(default_factory=dict)
    reads: int = 0

    @property
    def planned_id(self) -> int:
        """Spark's number of the newest batch and its parts; -1 before the first."""
        return self.batch_id - self.ahead

    def decided_at(self, planned_at_ms: int) -> int:
        """Returns the decision time of the next batch: when Spark planned it, but never before the last batch's."""
        return planned_at_ms if self.decided_at_ms is None else max(planned_at_ms, self.decided_at_ms)

    def without_operators(self, names: Collection[str]) -> StreamProgress:
        """Returns the progress for operators *names* that begin with empty states: nothing of theirs is closed."""
        if not names:
            return self
        closed, forgotten, ended = omit(self.stay_closed, names), omit(self.forgotten, names), omit(self.ended, names)
        return replace(self, stay_closed=closed, forgotten=forgotten, ended=ended)

    def without_windows(self) -> StreamProgress:
        """Returns the progress without the state of windows and fields."""
        return replace(self, windows=(), uncounted=(), records={}, fields={})

    def same_as(self, other: StreamProgress) -> bool:
        """Returns True if only the batch number and the decision time differ: such a batch writes nothing."""
        return replace(self, batch_id=0, decided_at_ms=0) == replace(other, batch_id=0, decided_at_ms=0)
