"""How a batch moves record time: each partition of a source, the source, and the sub-topology.

Decision times (`*_at_ms`, `now_ms`) and record times are epoch ms UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tidemark.semantics.idleness import Activity, activity
from tidemark.semantics.progress import InputProgress, PartitionProgress
from tidemark.semantics.watermark import Combined, Progress, bounded_out_of_orderness, combine, combine_inputs, later


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one batch read of one partition: offsets from (inclusive) until (exclusive), and its newest record.

    `max_timestamp_ms` is None when it read none that can be used; `newest_ms` is the newest event time up to then, also
    of records that wait or are ahead of the clock; `latest_offset` is the broker's, None without one;
    `held_from` is the offset of the first record that waits (`max_drift`), None when none does. `lost` are offsets,
    from (inclusive) until (exclusive), that are gone and were given up, None when none are. `told_idle` is whether its
    writer said last that nothing comes; None when nothing was read, and it said nothing new. `went_back`: it read a
    mark from after its writer's time went back.
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

    @property
    def silent(self) -> bool:
        """Whether the batch read neither a record nor a mark of it."""
        return self.until_offset == self.from_offset and self.told_idle is None

    @property
    def caught_up(self) -> bool:
        """Whether the partition was read to its end, as far as the broker was asked, and nothing of it waits."""
        return self.latest_offset is not None and self.latest_offset <= self.until_offset and self.held_from is None

    def marked(self, was: PartitionProgress, *, newest_ms: int | None, idle: bool) -> Seen:
        """The same after a mark that counts as a record of *newest_ms*, None: no watermark yet; *idle* is its status.

        A mark that repeats what the partition *was* before does not end its silence. One from before its writer's time
        went back says nothing.
        """
        if not was.believes(newest_ms):
            return self
        reached_ms = later(was.max_timestamp_ms, newest_ms)
        if self.silent and (reached_ms, idle) == (was.max_timestamp_ms, was.told_idle):
            return self
        now_ms, went_back = later(self.max_timestamp_ms, newest_ms), newest_ms is not None
        return replace(self, max_timestamp_ms=now_ms, told_idle=idle, went_back=went_back)


def advance(
    was: InputProgress,
    seen: Mapping[int, Seen],
    *,
    bound_ms: int,
    idle_after_ms: int | None,
    now_ms: int,
    idle_advances: bool = False,
) -> InputProgress:
    """The source after a batch that read what *seen* says of every partition, decided at *now_ms*.

    With *idle_advances* time goes on while all partitions are idle: as far as the clock has come since the last record.
    """
    partitions = {
        number: _partition(was.partitions.get(number, PartitionProgress()), part, bound_ms, idle_after_ms, now_ms)
        for number, part in seen.items()
    }
    parts = {
        str(number): Progress(watermark_ms=part.watermark_ms, activity=part.activity)
        for number, part in partitions.items()
    }
    now = combine(parts, previous_ms=was.watermark_ms)
    if now.idle and idle_advances and idle_after_ms is not None:
        gone_on_ms = _in_silence(partitions.values(), bound_ms=bound_ms, idle_after_ms=idle_after_ms, now_ms=now_ms)
        now = replace(now, watermark_ms=later(now.watermark_ms, gone_on_ms))
    return _with(replace(was, partitions=partitions), now)


def _in_silence(
    partitions: Collection[PartitionProgress], *, bound_ms: int, idle_after_ms: int, now_ms: int
) -> int | None:
    """The watermark that a record would have that came now and were as old as the newest one was when that came.

    It moves when the silence has lasted for *idle_after_ms*, twice as long, four times, and so on: a whole night takes
    a dozen steps, and nothing waits for more than twice as long as it must.
    """
    newest_ms = max((p.max_timestamp_ms for p in partitions if p.max_timestamp_ms is not None), default=None)
    silence_ms = now_ms - max((p.active_at_ms for p in partitions if p.active_at_ms is not None), default=now_ms)
    if newest_ms is None or silence_ms < idle_after_ms:
        return None
    step_ms = idle_after_ms << (silence_ms // idle_after_ms).bit_length() - 1
    return bounded_out_of_orderness(newest_ms + step_ms, bound_ms=bound_ms)


def _partition(
    was: PartitionProgress, seen: Seen, bound_ms: int, idle_after_ms: int | None, now_ms: int
) -> PartitionProgress:
    # A partition that never had a record has been silent since the first batch looked at it.
    active_at_ms = was.active_at_ms if seen.silent and was.active_at_ms is not None else now_ms
    newest_ms = later(was.max_timestamp_ms, seen.max_timestamp_ms)
    told_idle = was.told_idle if seen.told_idle is None else seen.told_idle
    return PartitionProgress(
        max_timestamp_ms=newest_ms,
        watermark_ms=bounded_out_of_orderness(newest_ms, bound_ms=bound_ms),
        active_at_ms=active_at_ms,
        until_offset=seen.until_offset,
        done_until_offset=seen.until_offset if seen.held_from is None else seen.held_from,
        told_idle=told_idle,
        newest_ms=later(was.newest_ms, seen.newest_ms),
        set_back_from_ms=None if seen.went_back else was.set_back_from_ms,
        activity=Activity.IDLE
        if told_idle and seen.caught_up
        else activity(
            silent_since_ms=active_at_ms if seen.silent else None,
            now_ms=now_ms,
            idle_after_ms=idle_after_ms,
            caught_up=seen.caught_up,
        ),
    )


def set_back(was: InputProgress, number: int, *, to_ms: int, bound_ms: int) -> InputProgress:
    """The source when the newest record of partition *number* counts as one of *to_ms*: no other time goes back.

    It goes back no further than that, whoever else is behind.
    """
    watermark_ms = bounded_out_of_orderness(to_ms, bound_ms=bound_ms)
    part = replace(
        was.partitions[number],
        max_timestamp_ms=to_ms,
        newest_ms=to_ms,
        watermark_ms=watermark_ms,
        set_back_from_ms=was.partitions[number].max_timestamp_ms,
    )
    partitions = {**was.partitions, number: part}
    parts = {str(n): Progress(watermark_ms=p.watermark_ms, activity=p.activity) for n, p in partitions.items()}
    assert was.watermark_ms is not None
    assert watermark_ms is not None
    now = combine(parts, previous_ms=min(was.watermark_ms, watermark_ms))
    return _with(replace(was, partitions=partitions), now)


def processing_time(was: InputProgress, seen: Mapping[int, Seen], *, now_ms: int) -> InputProgress:
    """The source after a batch decided at *now_ms* when that instant is the record time of all that it read."""
    partitions = {
        number: PartitionProgress(
            max_timestamp_ms=now_ms, watermark_ms=now_ms - 1, active_at_ms=now_ms, until_offset=part.until_offset
        )
        for number, part in seen.items()
    }
    return replace(was, partitions=partitions, watermark_ms=now_ms - 1, held_by=None, idle=False)


def follow(
    was: InputProgress, seen: Seen, *, watermark_ms: int | None, idle: bool | None = None, now_ms: int
) -> InputProgress:
    """The reading end of a hop after a batch: its watermark is the newest one that the upstream handed on.

    So is whether it is *idle*: a reader does not ask the broker of its upstream's sources (None: it said nothing new).
    Source: Flink, StatusWatermarkValve, to whose channels a WatermarkStatus comes beside watermarks.
    """
    before = was.partitions.get(0, PartitionProgress(active_at_ms=now_ms))
    reached_ms = later(was.watermark_ms, watermark_ms)
    idle = was.idle if idle is None else idle
    part = PartitionProgress(
        max_timestamp_ms=later(before.max_timestamp_ms, seen.max_timestamp_ms),
        watermark_ms=reached_ms,
        active_at_ms=before.active_at_ms if seen.silent else now_ms,
        until_offset=seen.until_offset,
        activity=Activity.IDLE if idle else Activity.ACTIVE,
    )
    return replace(was, partitions={0: part}, watermark_ms=reached_ms, idle=idle)


def combined(inputs: Mapping[str, InputProgress], *, previous_ms: int | None) -> Combined:
    """The watermark of a sub-topology over those of its *inputs* that may hold it back."""
    parts = {
        name: Progress(watermark_ms=part.watermark_ms, activity=Activity.IDLE if part.idle else Activity.ACTIVE)
        for name, part in inputs.items()
    }
    return combine_inputs(parts, previous_ms=previous_ms)


def _with(was: InputProgress, now: Combined) -> InputProgress:
    return replace(was, watermark_ms=now.watermark_ms, idle=now.idle, held_by=now.held_by)
