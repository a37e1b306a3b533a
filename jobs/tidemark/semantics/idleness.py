"""When silence means that nothing is to be waited for.

A reader that knows offsets decides with `activity`. `IdlenessTimer` is Flink's rule, which only sees the silence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.errors import InvalidArgument


class Activity(StrEnum):
    """What a partition is doing; only an idle one is left out of the watermark."""

    ACTIVE = "active"
    IDLE = "idle"
    BACKLOGGED = "backlogged"


def activity(*, silent_since_ms: int | None, now_ms: int, idle_after_ms: int | None, caught_up: bool) -> Activity:
    """What a partition is doing at *now_ms*, the clock that *silent_since_ms* was read from too.

    Args:
        silent_since_ms: when its last record was read; None when this batch has read one.
        now_ms: the decision time of the batch.
        idle_after_ms: silence of more than this is idleness; None when the partition never becomes idle.
        caught_up: whether it has been read to its end. Silent with unread records is backlogged, never idle.

    Raises:
        InvalidArgument: *idle_after_ms* is not above 0.
    """
    _check_timeout(idle_after_ms)
    if silent_since_ms is None:
        return Activity.ACTIVE
    if not caught_up:
        return Activity.BACKLOGGED
    silent_too_long = idle_after_ms is not None and now_ms - silent_since_ms > idle_after_ms
    return Activity.IDLE if silent_too_long else Activity.ACTIVE


@dataclass(frozen=True, kw_only=True)
class IdlenessTimer:
    """Silence as Flink's WatermarksWithIdleness sees it: only when asked, once per emission interval.

    Raises:
        InvalidArgument: `timeout_ms` is not above 0.
    """

    timeout_ms: int
    heard: bool = False
    silent_since_ms: int | None = None

    def __post_init__(self) -> None:
        _check_timeout(self.timeout_ms)


def with_record(timer: IdlenessTimer) -> IdlenessTimer:
    """The timer after a record."""
    return replace(timer, heard=True)


def check_idle(timer: IdlenessTimer, *, now_ms: int) -> tuple[IdlenessTimer, bool]:
    """The timer after a check at *now_ms*, and whether the partition is idle.

    A check after a record resets it; the first silent check starts it; from then on silence of more than
    `timeout_ms` is idleness. So idleness shows one to three intervals after it is due (FLINK-40503).
    """
    if timer.heard:
        return replace(timer, heard=False, silent_since_ms=None), False
    if timer.silent_since_ms is None:
        return replace(timer, silent_since_ms=now_ms), False
    return timer, now_ms - timer.silent_since_ms > timer.timeout_ms


def _check_timeout(timeout_ms: int | None) -> None:
    if timeout_ms is not None and timeout_ms <= 0:
        msg = f"an idle timeout is a length of time above 0 ms, got {timeout_ms}; leave it out to never be idle"
        raise InvalidArgument(msg)
