"""Decides when an interval of a table's record time is complete.

An interval is complete when the watermark of every path into the table has passed its end and the allowed lateness. A
record may still come after that; where late records are accepted it reopens the interval. Intervals are half-open,
[start, end), in epoch ms of record time; decision times and waits are ms of the driver's clock. Nothing here reads a
clock. Source: the end of a window in Flink, WindowOperator.isWindowLate, applied to a whole table; what it waits for
is Tidemark's own rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from tidemark.selection import present
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress, TableIntervals
from tidemark.semantics.windows import instant_of, latest_shown_ms

DAY_MS = 86_400_000
MOST = 1_000
"""Most intervals that one batch completes in a row, and most open intervals of a table whose records are counted."""
MOST_WAITING = 100
"""Waits are added up for the first so many open intervals of a table, the next ones to be complete."""
NEVER = -(2**63)
"""In place of a watermark that has passed no interval at all."""


@dataclass(frozen=True)
class Intervals:
    """Intervals of *every_ms*, each beginning where the one before ends.

    Without a *timezone* they begin at multiples of their length since the epoch. With one, whole days begin when its
    clock shows midnight, and have 23, 24 or 25 hours; shorter intervals are counted from midnight, and the last one
    ends with its day.
    """

    every_ms: int
    timezone: str | None = None

    def start_of(self, at_ms: int) -> int:
        """Returns the start of the interval that *at_ms* is in."""
        if self.timezone is None:
            return at_ms // self.every_ms * self.every_ms
        days_ms = max(self.every_ms, DAY_MS)
        shown_ms = latest_shown_ms(at_ms, ZoneInfo(self.timezone))
        midnight_ms = instant_of(shown_ms // days_ms * days_ms, ZoneInfo(self.timezone))
        return midnight_ms + (at_ms - midnight_ms) // self.every_ms * self.every_ms if self._in_days else midnight_ms

    def end_of(self, start_ms: int) -> int:
        """Returns the end of the interval that begins at *start_ms*."""
        if self.timezone is None:
            return start_ms + self.every_ms
        days_ms = max(self.every_ms, DAY_MS)
        shown_ms = latest_shown_ms(start_ms, ZoneInfo(self.timezone))
        midnight_ms = instant_of((shown_ms // days_ms + 1) * days_ms, ZoneInfo(self.timezone))
        return min(start_ms + self.every_ms, midnight_ms) if self._in_days else midnight_ms

    @property
    def _in_days(self) -> bool:
        """True if the intervals are shorter than a day."""
        return self.every_ms < DAY_MS

    def between(self, start_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
        """Yields each interval from *start_ms* that ends by *until_ms*."""
        while (end_ms := self.end_of(start_ms)) <= until_ms:
            yield start_ms, end_ms
            start_ms = end_ms


@dataclass(frozen=True)
class IntervalCount:
    """The records of an interval in a batch.

    Attributes:
        records: records of the interval that the table's operator finished.
        emitted: results of the interval that it sent on.
        first: input partition and offset of the record that caused the first of these results; None without results.
    """

    records: int = 0
    emitted: int = 0
    first: tuple[int, int] | None = None

    def plus(self, other: IntervalCount) -> IntervalCount:
        """Returns the sum of the two counts, with the earlier first record."""
        firsts = present((self.first, other.first))
        return IntervalCount(self.records + other.records, self.emitted + other.emitted, min(firsts, default=None))


NO_RECORDS = IntervalCount()


@dataclass(frozen=True, kw_only=True)
class PathTime:
    """How far record time has come on the paths from sources to a table.

    Attributes:
        passed_ms: the latest end of an interval that every path has passed; None before the first.
        fastest_ms: the latest end that the path furthest ahead had passed before the batch.
        held_by: the partition or input that held the watermark back before the batch; None if nothing did.
        since_ms: how long `held_by` held it back: the time between the decisions of the last batch and this one.
        idle_ms: the latest end that the watermarks of all idle partitions have passed; None if no partition is idle.
        blocked_by: an operator that still holds results of passed intervals; None if no operator does.
    """

    passed_ms: int | None
    fastest_ms: int | None = None
    held_by: str | None = None
    since_ms: int = 0
    idle_ms: int | None = None
    blocked_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """An interval that is complete, or changed after it was.

    Attributes:
        start_ms: its start.
        end_ms: its end.
        records: records that the operator finished since the last completion of the interval; None if nobody counted.
        emitted: results that it sent on or wrote since then; None if nobody counted.
        waited_for: the partition, input or operator that the interval waited for longest; None if it waited for
            nothing.
        waited_ms: how long it waited for that.
        by_idleness: the interval is complete only because idle partitions were not waited for.
        is_reopened: it was complete before, and got results since.
        first: input partition and offset of the record that caused the first of these results; None unless it is
            reopened.
    """

    start_ms: int
    end_ms: int
    records: int | None
    emitted: int | None
    waited_for: str | None = None
    waited_ms: int = 0
    by_idleness: bool = False
    is_reopened: bool = False
    first: tuple[int, int] | None = None


def newest_complete(table: TableIntervals) -> tuple[int, int] | None:
    """Returns start and end of the newest complete interval, or None while no interval is complete.

    After the length of intervals was changed, this stays the last interval of the old length until one of the new
    length ends as late.
    """
    before, up_to_ms = table.before_change, table.up_to_ms
    if up_to_ms is None or up_to_ms == table.first_ms or (before and before[1] > up_to_ms):
        return before
    return _of_table(table).start_of(up_to_ms - 1), up_to_ms


def _of_table(table: TableIntervals) -> Intervals:
    return Intervals(table.every_ms, table.timezone)


def passed_ms(watermark_ms: int | None, *, allowed_lateness_ms: int) -> int | None:
    """Returns the latest end of an interval that a watermark has passed.

    This is the rule of `watermark.is_window_late`: the last instant of an interval is 1 ms before its end.
    """
    return None if watermark_ms is None else watermark_ms + 1 - allowed_lateness_ms


def needed_ms(end_ms: int, *, allowed_lateness_ms: int) -> int:
    """Returns the lowest watermark that has passed the end of an interval."""
    return end_ms - 1 + allowed_lateness_ms


def reached_at_ms(
    watermark_needed_ms: int, *, watermark_ms: int, now_ms: int, bound_ms: int, eta_at_ms: int | None
) -> int:
    """Returns when the watermark is expected to reach *watermark_needed_ms*, epoch ms of the clock.

    The watermark of a stream that keeps up advances as fast as the clock. A stream that catches up must have read
    all waiting records first, and then the record that advances the watermark that far.

    Args:
        watermark_needed_ms: the watermark to reach, epoch ms of record time.
        watermark_ms: the watermark now.
        now_ms: the clock now.
        bound_ms: the bound of the sources.
        eta_at_ms: when a stream that catches up will have read everything (`catching_up`); None for one that keeps up.

    >>> reached_at_ms(59_999, watermark_ms=49_999, now_ms=52_000, bound_ms=1_000, eta_at_ms=None)
    62000
    >>> reached_at_ms(59_999, watermark_ms=9_999, now_ms=52_000, bound_ms=1_000, eta_at_ms=58_000)
    61000
    """
    if eta_at_ms is None:
        return now_ms + watermark_needed_ms - watermark_ms
    return max(eta_at_ms, watermark_needed_ms + bound_ms + 1)


def path_time(
    before: Mapping[str, InputProgress],
    now: Mapping[str, InputProgress],
    watermark_ms: int | None,
    *,
    allowed_lateness_ms: int,
    held_by: str | None,
    since_ms: int,
    blocked_by: str | None,
) -> PathTime:
    """Returns how far record time has come on the paths into a table after a batch.

    Args:
        before: the sources of the paths before the batch.
        now: the same sources after it.
        watermark_ms: watermark of the sub-topology after the batch, which is that of the slowest path.
        allowed_lateness_ms: the longest lateness that an operator of the paths allows.
        held_by: the source that held the watermark back before the batch; None if none did.
        since_ms: the time between the decisions of the last batch and this one.
        blocked_by: the operator that still holds results; None if none does.
    """

    def passed(reached_ms: int | None) -> int:
        end_ms = passed_ms(reached_ms, allowed_lateness_ms=allowed_lateness_ms)
        return NEVER if end_ms is None else end_ms

    ends_ms = [passed(part.watermark_ms) for source in before.values() for part in source.partitions.values()]
    idle_ms = idle_watermark_ms(now)
    partition = before[held_by].held_by if held_by and held_by in before else None
    return PathTime(
        passed_ms=passed_ms(watermark_ms, allowed_lateness_ms=allowed_lateness_ms),
        fastest_ms=max(ends_ms, default=None),
        held_by=held_by if partition is None else f"{held_by}/{partition}",
        since_ms=since_ms,
        idle_ms=idle_ms if idle_ms == NEVER else passed_ms(idle_ms, allowed_lateness_ms=allowed_lateness_ms),
        blocked_by=blocked_by,
    )


def idle_watermark_ms(inputs: Mapping[str, InputProgress]) -> int | None:
    """Returns the lowest watermark of the idle partitions of *inputs*, or None if no partition is idle.

    Idle partitions of upstream streams count too: their watermark comes through the table between the two streams. An
    idle partition without a watermark makes the result NEVER.
    """
    watermarks = present(source.idle_watermark_ms for source in inputs.values())
    for source in inputs.values():
        idle = (part.watermark_ms for part in source.partitions.values() if part.activity is Activity.IDLE)
        watermarks += [NEVER if watermark_ms is None else watermark_ms for watermark_ms in idle]
    return min(watermarks, default=None)


def complete(
    intervals: Intervals, before: TableIntervals | None, counts: Mapping[int, IntervalCount], time: PathTime
) -> tuple[TableIntervals, list[Completion]]:
    """Returns the table after a batch, and the intervals that it completes.

    Every interval from the first with a record to the watermark gets one completion, in order, also without records. An
    interval that gets a result after that is reopened: it is complete at once again, because its time has passed.

    Args:
        intervals: the table's intervals.
        before: the table before the batch; None for a new table.
        counts: the records of the batch by start of their interval.
        time: how far record time has come on the paths into the table.
    """
    now = _with_first(intervals, before, counts)
    if now.first_ms is None or now.up_to_ms is None:
        return now, []
    first_ms, up_to_ms = now.first_ms, now.up_to_ms
    now = replace(now, waits=_with_waits(intervals, now, up_to_ms, time))
    done: list[Completion] = []
    # A record before the first interval: those from there on are complete already, and get their only completion.
    earlier = (start for start, count in counts.items() if start < first_ms and count.emitted)
    earliest_ms = min(earlier, default=first_ms)
    for start_ms, end_ms in _spans(intervals, earliest_ms, first_ms, counts):
        count = counts.get(start_ms, NO_RECORDS)
        # Records before a change of length were counted in other intervals.
        is_counted = now.before_change is None
        records, emitted = (count.records, count.emitted) if is_counted else (None, None)
        done.append(Completion(start_ms=start_ms, end_ms=end_ms, records=records, emitted=emitted))
    for start_ms, count in sorted(counts.items()):
        # A record that changed nothing leaves the table as it was read.
        if first_ms <= start_ms < up_to_ms and count.emitted:
            done.append(_reopened(intervals, start_ms, count))
    is_open = {start: count for start, count in counts.items() if start >= up_to_ms}
    now = _counted(replace(now, first_ms=earliest_ms, blocked_by=None), is_open)
    if time.passed_ms is None or intervals.end_of(up_to_ms) > time.passed_ms:
        return now, done
    if time.blocked_by:
        return replace(now, blocked_by=time.blocked_by), done
    for start_ms, end_ms in _spans(intervals, up_to_ms, time.passed_ms, now.counts):
        done.append(_completed(now, start_ms, end_ms, time))
    # All intervals that end by then are complete, also those without records that a long jump left out.
    reached_ms = intervals.start_of(time.passed_ms)
    return replace(
        now,
        up_to_ms=reached_ms,
        counts={start: count for start, count in now.counts.items() if start >= reached_ms},
        waits={start: waits for start, waits in now.waits.items() if start >= reached_ms},
    ), done


def _with_first(
    intervals: Intervals, before: TableIntervals | None, counts: Mapping[int, IntervalCount]
) -> TableIntervals:
    """Returns the table with its first interval, that of the first record, and with the length it has now."""
    now = before or TableIntervals(every_ms=intervals.every_ms, timezone=intervals.timezone)
    if (now.every_ms, now.timezone) != (intervals.every_ms, intervals.timezone):
        # Intervals of the old length are complete up to here. The new ones begin with the one that this instant is in.
        from_ms = None if now.up_to_ms is None else intervals.start_of(now.up_to_ms)
        # Records were counted for intervals of the old length, so new ones that overlap with those have no count.
        counted = [] if from_ms == now.up_to_ms else present((from_ms,))
        counted += [intervals.start_of(ms) for start in now.counts for ms in (start, _of_table(now).end_of(start) - 1)]
        counted += [intervals.start_of(_of_table(now).end_of(start) - 1) for start in now.uncounted or ()]
        now = TableIntervals(
            every_ms=intervals.every_ms,
            timezone=intervals.timezone,
            first_ms=from_ms,
            up_to_ms=from_ms,
            uncounted=(min(counted), max(counted)) if counted else None,
            before_change=newest_complete(now),
        )
    first_ms = min(counts, default=None)
    # Nothing is complete yet, also not before a change of length: an earlier record makes its interval the first.
    is_new = now.first_ms == now.up_to_ms and now.before_change is None
    if first_ms is not None and is_new and (now.first_ms is None or first_ms < now.first_ms):
        now = replace(now, first_ms=first_ms, up_to_ms=first_ms)
    return now


def _spans(
    intervals: Intervals, start_ms: int, until_ms: int, counted: Mapping[int, object]
) -> Iterator[tuple[int, int]]:
    """Yields start and end of the intervals from *start_ms* that end by *until_ms*.

    After MOST of them only those follow whose start is in *counted*: a record of a wrong year must not make millions of
    rows.
    """
    for n, (start, end) in enumerate(intervals.between(start_ms, until_ms)):
        if n >= MOST:
            later = ((begin, intervals.end_of(begin)) for begin in sorted(counted) if begin >= start)
            yield from ((begin, finish) for begin, finish in later if finish <= until_ms)
            return
        yield start, end


def _with_waits(
    intervals: Intervals, now: TableIntervals, up_to_ms: int, time: PathTime
) -> Mapping[int, Mapping[str, int]]:
    """Returns, by start of an open interval, how long it has waited for each partition, input or operator.

    The time since the last batch is added to the wait for whatever held record time back. An interval waits from the
    moment at which the fastest path has passed its end. *up_to_ms* is the end of the last interval that is complete.
    """
    holder = now.blocked_by or time.held_by
    if holder is None or not time.since_ms or time.fastest_ms is None:
        return now.waits
    waits = dict(now.waits)
    for n, (start_ms, _) in enumerate(intervals.between(up_to_ms, time.fastest_ms)):
        if n >= MOST_WAITING:
            break
        waited = waits.get(start_ms, {})
        waits[start_ms] = {**waited, holder: waited.get(holder, 0) + time.since_ms}
    return waits


def _counted(now: TableIntervals, counts: Mapping[int, IntervalCount]) -> TableIntervals:
    """Returns the table with *counts* added to those of its open intervals.

    Only the earliest MOST intervals keep a count. How many records the others have is then unknown.
    """
    sums = dict(now.counts)
    for start, count in counts.items():
        records, emitted = sums.get(start, (0, 0))
        sums[start] = records + count.records, emitted + count.emitted
    kept = sorted(sums)[:MOST]
    dropped = sums.keys() - {*kept}
    if not dropped:
        return replace(now, counts=sums)
    first, last = now.uncounted or (min(dropped), max(dropped))
    uncounted = min(first, *dropped), max(last, *dropped)
    return replace(now, counts={start: sums[start] for start in kept}, uncounted=uncounted)


def _reopened(intervals: Intervals, start_ms: int, count: IntervalCount) -> Completion:
    return Completion(
        start_ms=start_ms,
        end_ms=intervals.end_of(start_ms),
        records=count.records,
        emitted=count.emitted,
        is_reopened=True,
        first=count.first,
    )


def _completed(now: TableIntervals, start_ms: int, end_ms: int, time: PathTime) -> Completion:
    waits = now.waits.get(start_ms, {})
    # Of equally long waits the first by name is named, so that a repeated batch names the same.
    waited_for = min(waits, key=lambda holder: (-waits[holder], holder), default=None)
    is_counted = now.uncounted is None or not now.uncounted[0] <= start_ms <= now.uncounted[1]
    records, emitted = now.counts.get(start_ms, (0, 0)) if is_counted else (None, None)
    return Completion(
        start_ms=start_ms,
        end_ms=end_ms,
        records=records,
        emitted=emitted,
        waited_for=waited_for,
        waited_ms=waits[waited_for] if waited_for else 0,
        by_idleness=time.idle_ms is not None and time.idle_ms < end_ms,
    )
