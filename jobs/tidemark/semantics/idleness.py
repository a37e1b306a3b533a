"""Decides when a silent partition is idle. Nothing waits for an idle partition."""

from __future__ import annotations

from enum import StrEnum

from tidemark.errors import InvalidArgument


class Activity(StrEnum):
    """State of a partition. The watermark of a source leaves out only idle partitions."""

    ACTIVE = "active"
    IDLE = "idle"
    BACKLOGGED = "backlogged"


def activity(*, silent_since_ms: int | None, now_ms: int, idle_after_ms: int | None, caught_up: bool) -> Activity:
    """Returns the state of a partition at *now_ms*.

    *now_ms* and *silent_since_ms* come from the same clock.

    Args:
        silent_since_ms: when its last record was read; None when this batch has read one.
        now_ms: the decision time of the batch.
        idle_after_ms: silence of more than this is idleness; None when the partition never becomes idle.
        caught_up: the partition has been read to its end. A silent partition with unread records is backlogged, never
            idle.

    Raises:
        InvalidArgument: *idle_after_ms* is not above 0.
    """
    check_timeout(idle_after_ms)
    if silent_since_ms is None:
        return Activity.ACTIVE
    if not caught_up:
        return Activity.BACKLOGGED
    silent_too_long = idle_after_ms is not None and now_ms >= idle_from_ms(silent_since_ms, idle_after_ms)
    return Activity.IDLE if silent_too_long else Activity.ACTIVE


def idle_from_ms(silent_since_ms: int, idle_after_ms: int) -> int:
    """Returns the first instant at which a silence exceeds *idle_after_ms*.

    >>> idle_from_ms(1_000, 30)
    1031
    """
    return silent_since_ms + idle_after_ms + 1


def check_timeout(timeout_ms: int | None) -> None:
    """Refuses an idle timeout that is not above 0 with InvalidArgument."""
    if timeout_ms is not None and timeout_ms <= 0:
        msg = f"the idle timeout must be above 0 ms, got {timeout_ms}; leave it out for an input that is never idle"
        raise InvalidArgument(msg)
