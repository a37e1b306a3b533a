"""Watermarks: how far record time has come.

They exist per partition, and combined.

A watermark of *t* says that record time has come to *t*: a record at or before *t* that comes after it is late.
`None` is "none yet": before the first record there is no number. Everything is in epoch milliseconds of record time,
and nothing here reads a clock.
Same rules as Apache Flink: BoundedOutOfOrdernessWatermarks, CombinedWatermarkStatus and StatusWatermarkValve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.collecting import present
from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of one partition or input; no watermark before its first record."""

    watermark_ms: int | None = None
    activity: Activity = Activity.ACTIVE


@dataclass(frozen=True, kw_only=True)
class CombinedWatermark:
    """The watermark of many; `held_by` names the one that holds it back.

    That is the one with the lowest watermark; None when nothing holds it back.
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

    Keep-alive records, which carry a timestamp and nothing else, count like any record. None stays None. Source: Flink,
    BoundedOutOfOrdernessWatermarks.

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


def combine(parts: Mapping[str, Progress], *, previous_ms: int | None) -> CombinedWatermark:
    """Returns the watermark of one source over its partitions.

    It is the lowest over the partitions that are not idle, and never earlier than *previous_ms*, the one before. A
    partition with unread records, or without a record yet, holds it back. Of equally low partitions the first by name
    counts as holding. Without partitions the watermark stays, idle once there has been one. Source: Flink,
    CombinedWatermarkStatus (FLINK-38454).
    """
    if not parts:
        return CombinedWatermark(watermark_ms=previous_ms, idle=previous_ms is not None, held_by=None)
    awake = {name: part.watermark_ms for name, part in parts.items() if part.activity is not Activity.IDLE}
    if not awake:
        # When all are idle nothing more is coming: then the watermark is the highest of all.
        highest = _highest(part.watermark_ms for part in parts.values())
        return CombinedWatermark(watermark_ms=later(previous_ms, highest), idle=True, held_by=None)
    # A partition without a watermark holds back before any other, so None sorts first.
    held_by, lowest = min(awake.items(), key=lambda named: (named[1] is not None, named[1] or 0, named[0]))
    return CombinedWatermark(watermark_ms=later(previous_ms, lowest), idle=False, held_by=held_by)


def combine_inputs(inputs: Mapping[str, Progress], *, previous_ms: int | None) -> CombinedWatermark:
    """Returns the watermark of an operator over its inputs.

    The rule is that of `combine`, except that an input behind *previous_ms*, because it was idle while the others
    advanced, does not hold back until it has caught up. Source: Flink, StatusWatermarkValve (FLINK-40475).
    """
    # An input that was idle while the others advanced does not hold back until it has caught up.
    aligned: dict[str, Progress] = {}
    for name, part in inputs.items():
        has_caught_up = later(part.watermark_ms, previous_ms) == part.watermark_ms
        if has_caught_up and part.activity is not Activity.IDLE:
            aligned[name] = part
    return combine(aligned or inputs, previous_ms=previous_ms)


def is_late(timestamp_ms: int, watermark_ms: int | None, *, allowed_lateness_ms: int = 0) -> bool:
    """Returns True once the watermark passed a timestamp by the allowed lateness.

    Never before there is a watermark. Source: Flink, WindowOperator.isElementLate.
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
