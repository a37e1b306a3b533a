"""Computes how a batch moves record time: of each partition of a source, of the source, and of the sub-topology.

Decision times (`*_at_ms`, `now_ms`) and record times are epoch ms UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tidemark.semantics.idleness import Activity, activity, idle_from_ms
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.semantics.watermark import (
    CombinedWatermark,
    Progress,
    bounded_out_of_orderness,
    combine,
    combine_inputs,
    later,
)


@dataclass(frozen=True, kw_only=True)
class PartitionReading:
    """What a batch read of one partition.

    Attributes:
        from_offset: first offset, inclusive.
        until_offset: last offset, exclusive.
        max_timestamp_ms: timestamp of the newest usable record; None when there is none.
        latest_offset: the broker's latest offset; None without a broker.
        held_from: offset of the first record that waits for other sources (`max_drift`); None when none waits.
        lost: the range of offsets, from (inclusive) until (exclusive), that the topic no longer has and that was given
            up; None when nothing was lost.
        told_idle: whether the newest mark of time declares the partition idle; None when no new mark was read. A mark
            is a record by which the writer of a topic publishes its watermark.
        newest_ms: newest event time so far, also of records that wait or are ahead of the clock.
        went_back: a mark was read that the writer sent after its time was set back.
        traces: `traceparent` headers of its records; empty if they have none, or the source does not note them.
        has_open_transaction: records of an open transaction follow `latest_offset`, and will be read when it ends.
        left_offset: the end of the records that existed when the batch was planned and that it left unread; None if it
            left none.
    """

    from_offset: int
    until_offset: int
    max_timestamp_ms: int | None = None
    latest_offset: int | None = None
    held_from: int | None = None
    lost: tuple[int, int] | None = None
    told_idle: bool | None = None
    newest_ms: int | None = None
    went_back: bool = False
    traces: tuple[str, ...] = ()
    has_open_transaction: bool = False
    left_offset: int | None = None

    @property
    def silent(self) -> bool:
        """True if the batch read neither a record nor a mark."""
        return self.until_offset == self.from_offset and self.told_idle is None

    @property
    def caught_up(self) -> bool:
        """True if the partition was read to its end and no record waits.

        The end is the latest offset that the broker reported. Records of an open transaction count as waiting.
        """
        is_read = self.latest_offset is not None and self.latest_offset <= self.until_offset
        return is_read and self.held_from is None and not self.has_open_transaction

    def marked(self, before: PartitionProgress, *, newest_ms: int | None, idle: bool) -> PartitionReading:
        """Returns this reading with a mark of time, by which the topic's writer publishes its watermark.

        Args:
            before: the partition before the batch.
            newest_ms: the mark counts as a record of this time; None if its writer has no watermark yet.
            idle: whether the mark declares the writer idle.
        """
        # A mark from before its writer's time went back is ignored.
        if not before.believes(newest_ms):
            return self
        reached_ms = later(before.max_timestamp_ms, newest_ms)
        # A mark that repeats what the partition was before does not end its silence.
        if self.silent and (reached_ms, idle) == (before.max_timestamp_ms, before.told_idle):
            return self
        now_ms, went_back = later(self.max_timestamp_ms, newest_ms), newest_ms is not None
        return replace(self, max_timestamp_ms=now_ms, told_idle=idle, went_back=went_back)


def advance(
    before: InputProgress,
    readings: Mapping[int, PartitionReading],
    *,
    bound_ms: int,
    idle_after_ms: int | None,
    now_ms: int,
    idle_advances: bool = False,
) -> InputProgress:
    """Returns the source after a batch that was decided at *now_ms*.

    Args:
        before: the source before the batch.
        readings: what the batch read of every partition.
        bound_ms: how far records may be out of order.
        idle_after_ms: a silence of more than this is idleness; None if the source is never idle.
        now_ms: decision time of the batch.
        idle_advances: while all partitions are idle, record time advances by as much as the clock has since the last
            record.
    """
    partitions: dict[int, PartitionProgress] = {}
    for number, reading in readings.items():
        partition = before.partitions.get(number, PartitionProgress())
        partitions[number] = _partition(partition, reading, bound_ms, idle_after_ms, now_ms)
    now = combine(_by_number(partitions), previous_ms=before.watermark_ms)
    if now.idle and idle_advances and idle_after_ms is not None:
        silent_ms = _watermark_in_silence(
            partitions.values(), bound_ms=bound_ms, idle_after_ms=idle_after_ms, now_ms=now_ms
        )
        now = replace(now, watermark_ms=later(now.watermark_ms, silent_ms))
    return _with_watermark(replace(before, partitions=partitions), now)


def _watermark_in_silence(
    partitions: Collection[PartitionProgress], *, bound_ms: int, idle_after_ms: int, now_ms: int
) -> int | None:
    """Returns the watermark of a source whose partitions are all silent.

    This is the watermark that a record would give if it came now, as old as the newest record was when it came. None
    before the first step of time, and without records.
    """
    newest_ms = max((p.max_timestamp_ms for p in partitions if p.max_timestamp_ms is not None), default=None)
    # The watermark moves when the silence has lasted for *idle_after_ms*, twice as long, four times, and so on. So a
    # whole night takes a dozen steps, and nothing waits for more than twice as long as it must.
    steps = _steps(now_ms - _silent_since_ms(partitions, now_ms), idle_after_ms)
    if newest_ms is None or not steps:
        return None
    return bounded_out_of_orderness(newest_ms + (idle_after_ms << steps - 1), bound_ms=bound_ms)


def _silent_since_ms(partitions: Collection[PartitionProgress], now_ms: int) -> int:
    return max((p.active_at_ms for p in partitions if p.active_at_ms is not None), default=now_ms)


def _steps(silence_ms: int, idle_after_ms: int) -> int:
    """Returns how many steps record time has taken in a silence of *silence_ms*.

    The next step is due when the silence has lasted `idle_after_ms << steps`.
    """
    # The bit length counts doublings: silence of 1, 2, 4 and 8 times idle_after has 1, 2, 3 and 4 steps.
    return (max(0, silence_ms) // idle_after_ms).bit_length()


def silence_moves_at_ms(
    before: InputProgress, *, idle_after_ms: int, idle_advances: bool, after_ms: int
) -> Iterator[int]:
    """Yields the instants at which `advance` would change the source although no record came.

    A partition becomes idle at such an instant, or record time takes its next step in silence.

    Args:
        before: the source after its last batch.
        idle_after_ms: a partition is idle after so much silence.
        idle_advances: record time advances while all partitions are idle.
        after_ms: of the steps of record time, the first after this instant is meant.
    """
    partitions = before.partitions.values()
    for part in partitions:
        if part.activity is not Activity.IDLE and part.active_at_ms is not None:
            yield idle_from_ms(part.active_at_ms, idle_after_ms)
    if idle_advances:
        since_ms = _silent_since_ms(partitions, after_ms)
        step_ms = idle_after_ms << _steps(after_ms - since_ms, idle_after_ms)
        yield max(since_ms + step_ms, idle_from_ms(since_ms, idle_after_ms))


def _partition(
    before: PartitionProgress, reading: PartitionReading, bound_ms: int, idle_after_ms: int | None, now_ms: int
) -> PartitionProgress:
    """Returns a partition after a batch; the arguments are those of `advance`."""
    # A partition that never had a record has been silent since the first batch looked at it.
    active_at_ms = before.active_at_ms if reading.silent and before.active_at_ms is not None else now_ms
    newest_ms = later(before.max_timestamp_ms, reading.max_timestamp_ms)
    told_idle = before.told_idle if reading.told_idle is None else reading.told_idle
    return PartitionProgress(
        max_timestamp_ms=newest_ms,
        watermark_ms=bounded_out_of_orderness(newest_ms, bound_ms=bound_ms),
        active_at_ms=active_at_ms,
        until_offset=reading.until_offset,
        # A driver that starts reads the waiting records again from here.
        done_until_offset=reading.until_offset if reading.held_from is None else reading.held_from,
        told_idle=told_idle,
        newest_ms=later(before.newest_ms, reading.newest_ms),
        set_back_from_ms=None if reading.went_back else before.set_back_from_ms,
        left_behind=before.left_behind,
        activity=Activity.IDLE
        if told_idle and reading.caught_up
        else activity(
            silent_since_ms=active_at_ms if reading.silent else None,
            now_ms=now_ms,
            idle_after_ms=idle_after_ms,
            caught_up=reading.caught_up,
        ),
    )


def set_back(before: InputProgress, number: int, *, to_ms: int, bound_ms: int) -> InputProgress:
    """Returns the source after the record time of one partition was set back.

    The times of the other partitions stay, and the watermark goes back no further than the partition's new one.

    Args:
        before: the source until now.
        number: the partition.
        to_ms: its newest record counts as one of this time from now on.
        bound_ms: how far records of the source may be out of order.
    """
    watermark_ms = bounded_out_of_orderness(to_ms, bound_ms=bound_ms)
    partition = replace(
        before.partitions[number],
        max_timestamp_ms=to_ms,
        newest_ms=to_ms,
        watermark_ms=watermark_ms,
        # Marks of this time or a later one were sent before the reset, and are not believed.
        set_back_from_ms=before.partitions[number].max_timestamp_ms,
    )
    partitions = {**before.partitions, number: partition}
    assert before.watermark_ms is not None
    assert watermark_ms is not None
    # The watermark goes back no further than *to_ms*, whichever other partition is behind.
    now = combine(_by_number(partitions), previous_ms=min(before.watermark_ms, watermark_ms))
    return _with_watermark(replace(before, partitions=partitions), now)


def _by_number(partitions: Mapping[int, PartitionProgress]) -> dict[str, Progress]:
    # `combine` knows the partitions of a source by name.
    return {str(n): Progress(watermark_ms=one.watermark_ms, activity=one.activity) for n, one in partitions.items()}


def processing_time(before: InputProgress, readings: Mapping[int, PartitionReading], *, now_ms: int) -> InputProgress:
    """Returns a source whose records get the decision time of their batch, *now_ms*, as record time."""
    partitions: dict[int, PartitionProgress] = {}
    for number, reading in readings.items():
        partitions[number] = PartitionProgress(
            # 1 ms less, so that the records of this batch are not late themselves.
            max_timestamp_ms=now_ms,
            watermark_ms=now_ms - 1,
            active_at_ms=now_ms,
            until_offset=reading.until_offset,
            left_behind=before.partitions.get(number, PartitionProgress()).left_behind,
        )
    return replace(before, partitions=partitions, watermark_ms=now_ms - 1, held_by=None, idle=False)


def follow(
    before: InputProgress,
    reading: PartitionReading,
    *,
    watermark_ms: int | None,
    idle: bool | None = None,
    idle_watermark_ms: int | None = None,
    now_ms: int,
) -> InputProgress:
    """Returns the input of a stream that reads the table of an upstream stream (a hop), after a batch.

    Watermark and idleness are the newest ones that the upstream sent along with its rows: the reader does not ask the
    brokers of the upstream's sources.
    Source: Flink, StatusWatermarkValve, to whose channels a WatermarkStatus comes beside watermarks.

    Args:
        before: the input before the batch.
        reading: what the batch read of the table.
        watermark_ms: the upstream's newest watermark; None if it has none yet.
        idle: whether the upstream says it is idle; None if it sent nothing new.
        idle_watermark_ms: the lowest watermark of an idle partition of the upstream, sent along with *idle*; None if no
            partition is idle.
        now_ms: decision time of the batch.
    """
    partition = before.partitions.get(0, PartitionProgress(active_at_ms=now_ms))
    reached_ms = later(before.watermark_ms, watermark_ms)
    if idle is None:
        idle, idle_watermark_ms = before.idle, before.idle_watermark_ms
    now = PartitionProgress(
        max_timestamp_ms=later(partition.max_timestamp_ms, reading.max_timestamp_ms),
        watermark_ms=reached_ms,
        active_at_ms=partition.active_at_ms if reading.silent else now_ms,
        until_offset=reading.until_offset,
        activity=Activity.IDLE if idle else Activity.ACTIVE,
    )
    return replace(before, partitions={0: now}, watermark_ms=reached_ms, idle=idle, idle_watermark_ms=idle_watermark_ms)


def watermark_over_inputs(inputs: Mapping[str, InputProgress], *, previous_ms: int | None) -> CombinedWatermark:
    """Returns the watermark of a sub-topology over those of its *inputs* that may hold it back."""
    progress: dict[str, Progress] = {}
    for name, source in inputs.items():
        activity = Activity.IDLE if source.idle else Activity.ACTIVE
        progress[name] = Progress(watermark_ms=source.watermark_ms, activity=activity)
    return combine_inputs(progress, previous_ms=previous_ms)


def _with_watermark(source: InputProgress, combined: CombinedWatermark) -> InputProgress:
    return replace(source, watermark_ms=combined.watermark_ms, idle=combined.idle, held_by=combined.held_by)
