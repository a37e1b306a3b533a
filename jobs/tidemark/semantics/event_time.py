"""Computes how a batch moves record time.

It moves for each partition of a source, for the source, and for the sub-topology. Decision times (`*_at_ms`, `now_ms`)
and record times are epoch ms UTC.
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
    """The part of one partition that a batch read.

    Attributes:
        from_offset: first offset, inclusive.
        until_offset: last offset, exclusive.
        max_timestamp_ms: of the newest usable record; None when there is none.
        latest_offset: the broker's latest offset; None without a broker.
        held_from: offset of the first record that waits (`max_drift`); None when none does.
        lost: offsets from (inclusive) until (exclusive) that are gone and were given up; None: none are.
        told_idle: the writer's latest mark declares the partition idle; None: no new mark was read.
        newest_ms: newest event time so far, also of records that wait or are ahead of the clock.
        went_back: a mark was read that the writer sent after its time was set back.
        traces: `traceparent` headers of its records; empty: none, or the source does not note them.
        has_open_transaction: records of an open transaction follow `latest_offset`, and will be read when it ends.
        left_offset: the end of the records that the plan saw and left behind; None: it left none behind.
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
        """True if the partition was read to its end and nothing waits.

        The end is where the broker was when it was asked. Records of an open transaction wait, too.
        """
        is_read = self.latest_offset is not None and self.latest_offset <= self.until_offset
        return is_read and self.held_from is None and not self.has_open_transaction

    def marked(self, was: PartitionProgress, *, newest_ms: int | None, idle: bool) -> PartitionReading:
        """Returns this reading after a mark of time.

        Args:
            was: the partition before the batch.
            newest_ms: the mark counts as a record of this time; None: its writer has no watermark yet.
            idle: the status in the mark.
        """
        # A mark from before its writer's time went back is ignored.
        if not was.believes(newest_ms):
            return self
        reached_ms = later(was.max_timestamp_ms, newest_ms)
        # A mark that repeats what the partition was before does not end its silence.
        if self.silent and (reached_ms, idle) == (was.max_timestamp_ms, was.told_idle):
            return self
        now_ms, went_back = later(self.max_timestamp_ms, newest_ms), newest_ms is not None
        return replace(self, max_timestamp_ms=now_ms, told_idle=idle, went_back=went_back)


def advance(
    was: InputProgress,
    readings: Mapping[int, PartitionReading],
    *,
    bound_ms: int,
    idle_after_ms: int | None,
    now_ms: int,
    idle_advances: bool = False,
) -> InputProgress:
    """Returns the source after a batch that was decided at *now_ms*.

    With *idle_advances* time advances while all partitions are idle: by as much as the clock has since the last record.

    Args:
        was: the source before the batch.
        readings: the part of every partition that the batch read.
        bound_ms: the source's bound.
        idle_after_ms: silence of more than this is idleness; None: never.
        now_ms: decision time of the batch.
        idle_advances: time advances in silence.
    """
    partitions: dict[int, PartitionProgress] = {}
    for number, part in readings.items():
        before = was.partitions.get(number, PartitionProgress())
        partitions[number] = _partition(before, part, bound_ms, idle_after_ms, now_ms)
    now = combine(_by_number(partitions), previous_ms=was.watermark_ms)
    if now.idle and idle_advances and idle_after_ms is not None:
        silent_ms = _in_silence(partitions.values(), bound_ms=bound_ms, idle_after_ms=idle_after_ms, now_ms=now_ms)
        now = replace(now, watermark_ms=later(now.watermark_ms, silent_ms))
    return _with(replace(was, partitions=partitions), now)


def _in_silence(
    partitions: Collection[PartitionProgress], *, bound_ms: int, idle_after_ms: int, now_ms: int
) -> int | None:
    """Returns the watermark that time in silence has reached.

    It is that of a record that would come now, as old as the newest one was when it came.
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
    """Returns how many steps time has taken in a silence of *silence_ms*.

    The next one is due at `idle_after_ms << steps`.
    """
    # The bit length counts doublings: silence of 1, 2, 4 and 8 times idle_after has 1, 2, 3 and 4 steps.
    return (max(0, silence_ms) // idle_after_ms).bit_length()


def silence_moves_at_ms(was: InputProgress, *, idle_after_ms: int, idle_advances: bool, after_ms: int) -> Iterator[int]:
    """Yields the instants at which silence alone may move the source.

    `advance` acts at these instants.

    Args:
        was: the source after its last batch.
        idle_after_ms: a partition is idle after so much silence.
        idle_advances: time advances while all partitions are idle.
        after_ms: the next step of time after this instant is meant.
    """
    partitions = was.partitions.values()
    for part in partitions:
        if part.activity is not Activity.IDLE and part.active_at_ms is not None:
            yield idle_from_ms(part.active_at_ms, idle_after_ms)
    if idle_advances:
        since_ms = _silent_since_ms(partitions, after_ms)
        step_ms = idle_after_ms << _steps(after_ms - since_ms, idle_after_ms)
        yield max(since_ms + step_ms, idle_from_ms(since_ms, idle_after_ms))


def _partition(
    was: PartitionProgress, reading: PartitionReading, bound_ms: int, idle_after_ms: int | None, now_ms: int
) -> PartitionProgress:
    # A partition that never had a record has been silent since the first batch looked at it.
    active_at_ms = was.active_at_ms if reading.silent and was.active_at_ms is not None else now_ms
    newest_ms = later(was.max_timestamp_ms, reading.max_timestamp_ms)
    told_idle = was.told_idle if reading.told_idle is None else reading.told_idle
    return PartitionProgress(
        max_timestamp_ms=newest_ms,
        watermark_ms=bounded_out_of_orderness(newest_ms, bound_ms=bound_ms),
        active_at_ms=active_at_ms,
        until_offset=reading.until_offset,
        # A start reads waiting records again from here.
        done_until_offset=reading.until_offset if reading.held_from is None else reading.held_from,
        told_idle=told_idle,
        newest_ms=later(was.newest_ms, reading.newest_ms),
        set_back_from_ms=None if reading.went_back else was.set_back_from_ms,
        left_behind=was.left_behind,
        activity=Activity.IDLE
        if told_idle and reading.caught_up
        else activity(
            silent_since_ms=active_at_ms if reading.silent else None,
            now_ms=now_ms,
            idle_after_ms=idle_after_ms,
            caught_up=reading.caught_up,
        ),
    )


def set_back(was: InputProgress, number: int, *, to_ms: int, bound_ms: int) -> InputProgress:
    """Returns the source after a partition was set back to *to_ms*.

    No other time goes back, and the watermark goes back no further than that, whichever other partition is behind.

    Args:
        was: the source before.
        number: the partition.
        to_ms: its newest record counts as one of this time.
        bound_ms: of the source.
    """
    watermark_ms = bounded_out_of_orderness(to_ms, bound_ms=bound_ms)
    part = replace(
        was.partitions[number],
        max_timestamp_ms=to_ms,
        newest_ms=to_ms,
        watermark_ms=watermark_ms,
        # Marks of this time or a later one were sent before the reset, and are not believed.
        set_back_from_ms=was.partitions[number].max_timestamp_ms,
    )
    partitions = {**was.partitions, number: part}
    assert was.watermark_ms is not None
    assert watermark_ms is not None
    # The watermark goes back no further than *to_ms*, whichever other partition is behind.
    now = combine(_by_number(partitions), previous_ms=min(was.watermark_ms, watermark_ms))
    return _with(replace(was, partitions=partitions), now)


def _by_number(partitions: Mapping[int, PartitionProgress]) -> dict[str, Progress]:
    # `combine` knows the parts of a source by name.
    return {str(n): Progress(watermark_ms=part.watermark_ms, activity=part.activity) for n, part in partitions.items()}


def processing_time(was: InputProgress, readings: Mapping[int, PartitionReading], *, now_ms: int) -> InputProgress:
    """Returns the source after a batch whose records have the time *now_ms*.

    *now_ms* is the decision time of the batch.
    """
    partitions: dict[int, PartitionProgress] = {}
    for number, part in readings.items():
        partitions[number] = PartitionProgress(
            # 1 ms less, so that the records of this batch are not late themselves.
            max_timestamp_ms=now_ms,
            watermark_ms=now_ms - 1,
            active_at_ms=now_ms,
            until_offset=part.until_offset,
            left_behind=was.partitions.get(number, PartitionProgress()).left_behind,
        )
    return replace(was, partitions=partitions, watermark_ms=now_ms - 1, held_by=None, idle=False)


def follow(
    was: InputProgress,
    reading: PartitionReading,
    *,
    watermark_ms: int | None,
    idle: bool | None = None,
    idle_watermark_ms: int | None = None,
    now_ms: int,
) -> InputProgress:
    """Returns the reading end of a hop after a batch.

    Its watermark is the newest one that the upstream sent, and so is its idleness: a reader does not ask the broker of
    its upstream's sources.
    Source: Flink, StatusWatermarkValve, to whose channels a WatermarkStatus comes beside watermarks.

    Args:
        was: the input before the batch.
        reading: the part of the hop that the batch read.
        watermark_ms: the upstream's newest watermark; None: none yet.
        idle: the upstream's status; None: no new one was sent.
        idle_watermark_ms: the lowest watermark of an idle partition of the upstream, sent with its status; None: none.
        now_ms: decision time of the batch.
    """
    before = was.partitions.get(0, PartitionProgress(active_at_ms=now_ms))
    # A reader does not ask the broker of its upstream's sources: their idleness comes with the marks.
    reached_ms = later(was.watermark_ms, watermark_ms)
    if idle is None:
        idle, idle_watermark_ms = was.idle, was.idle_watermark_ms
    part = PartitionProgress(
        max_timestamp_ms=later(before.max_timestamp_ms, reading.max_timestamp_ms),
        watermark_ms=reached_ms,
        active_at_ms=before.active_at_ms if reading.silent else now_ms,
        until_offset=reading.until_offset,
        activity=Activity.IDLE if idle else Activity.ACTIVE,
    )
    return replace(was, partitions={0: part}, watermark_ms=reached_ms, idle=idle, idle_watermark_ms=idle_watermark_ms)


def watermark_over_inputs(inputs: Mapping[str, InputProgress], *, previous_ms: int | None) -> CombinedWatermark:
    """Returns the watermark of a sub-topology over its *inputs*.

    *inputs* are those that may hold it back.
    """
    parts: dict[str, Progress] = {}
    for name, part in inputs.items():
        activity = Activity.IDLE if part.idle else Activity.ACTIVE
        parts[name] = Progress(watermark_ms=part.watermark_ms, activity=activity)
    return combine_inputs(parts, previous_ms=previous_ms)


def _with(was: InputProgress, now: CombinedWatermark) -> InputProgress:
    return replace(was, watermark_ms=now.watermark_ms, idle=now.idle, held_by=now.held_by)
