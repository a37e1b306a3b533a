"""Watermarks: how far record time has come, per partition and combined.

A watermark of *t* says that record time has come to *t*: a record at or before *t* that comes after it is late. Before
the first record there is no watermark (None). Everything is in epoch milliseconds of record time, and nothing here
reads a clock. Same rules as Apache Flink: BoundedOutOfOrdernessWatermarks, CombinedWatermarkStatus and
StatusWatermarkValve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.errors import InvalidArgument
from tidemark.selection import present
from tidemark.semantics.idleness import Activity


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of one partition or input. Before its first record there is no watermark (None)."""

    watermark_ms: int | None = None
    activity: Activity = Activity.ACTIVE


@dataclass(frozen=True, kw_only=True)
class CombinedWatermark:
    """The watermark over several partitions or inputs.

    Attributes:
        watermark_ms: the watermark; None before the first.
        idle: all of the partitions or inputs are idle.
        held_by: the partition or input with the lowest watermark, which holds the combined one back; None when nothing
            does.
    """

    watermark_ms: int | None
    idle: bool
    held_by: str | None


def later(one_ms: int | None, other_ms: int | None) -> int | None:
    """Returns the later of two watermarks; any watermark is later than none."""
    if one_ms is None or other_ms is None:
        return one_ms if other_ms is None else other_ms
    return max(one_ms, other_ms)


def bounded_out_of_orderness(max_timestamp_ms: int | None, *, bound_ms: int) -> int | None:
    """Returns a partition's watermark: newest timestamp − bound − 1 ms.

    Keep-alive records, which carry a timestamp and nothing else, count like any record. Without a timestamp there is no
    watermark. Source: Flink, BoundedOutOfOrdernessWatermarks.

    Raises:
        InvalidArgument: *bound_ms* is negative.

    >>> bounded_out_of_orderness(12345, bound_ms=10)
    12334
    """
    if bound_ms < 0:
        msg = f"the bound must be 0 ms or more, got {bound_ms}; 0 means that records come in order"
        raise InvalidArgument(msg)
    # The 1 ms keeps a second record of the same timestamp in time.
    return None if max_timestamp_ms is None else max_timestamp_ms - bound_ms - 1


def combine(partitions: Mapping[str, Progress], *, previous_ms: int | None) -> CombinedWatermark:
    """Returns the watermark of one source over its *partitions*, by name.

    This is the lowest watermark of the partitions that are not idle, and never earlier than *previous_ms*, the source's
    watermark before. A partition with unread records, or without a record yet, holds the watermark back. Of equally low
    partitions the first by name is said to hold it back. A source without partitions keeps its watermark, and is idle
    once it has had one. Source: Flink, CombinedWatermarkStatus (FLINK-38454).
    """
    if not partitions:
        return CombinedWatermark(watermark_ms=previous_ms, idle=previous_ms is not None, held_by=None)
    awake = {name: one.watermark_ms for name, one in partitions.items() if one.activity is not Activity.IDLE}
    if not awake:
        # When all are idle nothing more is coming: then the watermark is the highest of all.
        highest = _highest(one.watermark_ms for one in partitions.values())
        return CombinedWatermark(watermark_ms=later(previous_ms, highest), idle=True, held_by=None)
    # A partition without a watermark holds back before any other, so None sorts first.
    held_by, lowest = min(awake.items(), key=lambda named: (named[1] is not None, named[1] or 0, named[0]))
    return CombinedWatermark(watermark_ms=later(previous_ms, lowest), idle=False, held_by=held_by)


def combine_inputs(inputs: Mapping[str, Progress], *, previous_ms: int | None) -> CombinedWatermark:
    """Returns the watermark of an operator over its *inputs*, by name.

    The rule is the same as in `combine`, with one exception: an input that is behind *previous_ms*, because it was idle
    while the others advanced, does not hold the watermark back until it has caught up. Source: Flink,
    StatusWatermarkValve (FLINK-40475).
    """
    aligned: dict[str, Progress] = {}
    for name, one in inputs.items():
        has_caught_up = later(one.watermark_ms, previous_ms) == one.watermark_ms
        if has_caught_up and one.activity is not Activity.IDLE:
            aligned[name] = one
    return combine(aligned or inputs, previous_ms=previous_ms)


def is_late(timestamp_ms: int, watermark_ms: int | None, *, allowed_lateness_ms: int = 0) -> bool:
    """Returns True once the watermark has passed a timestamp by the allowed lateness.

    Without a watermark nothing is late. Source: Flink, WindowOperator.isElementLate.
    """
    return watermark_ms is not None and timestamp_ms + allowed_lateness_ms <= watermark_ms


def is_window_late(end_ms: int, watermark_ms: int | None, *, allowed_lateness_ms: int = 0) -> bool:
    """Returns True once a window takes no more records.

    With an allowed lateness of 0 this is also the moment at which it is complete. Source: Flink,
    WindowOperator.isWindowLate.
    """
    # The window is half-open: its last instant is 1 ms before its end.
    return is_late(end_ms - 1, watermark_ms, allowed_lateness_ms=allowed_lateness_ms)


def _highest(watermarks_ms: Iterable[int | None]) -> int | None:
    return max(present(watermarks_ms), default=None)
