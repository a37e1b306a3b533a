"""Which windows of record time a timestamp belongs to: half-open, [start, end), in epoch milliseconds.

Without a zone, windows start at multiples of their length, or hop, since the epoch plus an offset. In a zone they do
so on the local clock, and a boundary is the first instant at which that clock has reached it: a day in New York has
23, 24 or 25 hours. A local hour that comes twice makes the windows it is in longer; the one that is left out leaves a
window of no length, which no record is in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of the local clock has no zone
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, order=True)
class Window:
    """From `start_ms`, inclusive, to `end_ms`, exclusive."""

    start_ms: int
    end_ms: int

    def contains(self, timestamp_ms: int) -> bool:
        """Whether a record of that timestamp belongs to it."""
        return self.start_ms <= timestamp_ms < self.end_ms


def tumbling(timestamp_ms: int, *, size_ms: int, offset_ms: int = 0, zone: ZoneInfo | None = None) -> Window:
    """The one window that *timestamp_ms* is in, of windows that follow each other without a gap.

    Raises:
        InvalidArgument: *size_ms* is not above 0.
    """
    (window,) = hopping(timestamp_ms, size_ms=size_ms, hop_ms=size_ms, offset_ms=offset_ms, zone=zone)
    return window


def hopping(
    timestamp_ms: int, *, size_ms: int, hop_ms: int, offset_ms: int = 0, zone: ZoneInfo | None = None
) -> tuple[Window, ...]:
    """The windows of *size_ms*, one starting every *hop_ms*, that *timestamp_ms* is in, earliest first.

    None of them where the hop is longer than the window.

    Raises:
        InvalidArgument: a length is not above 0.
    """
    if size_ms <= 0 or hop_ms <= 0:
        msg = f"a window's size and hop are lengths of time above 0 ms, got {size_ms} and {hop_ms}"
        raise InvalidArgument(msg)
    start = (_local_ms(timestamp_ms, zone) - offset_ms) // hop_ms * hop_ms + offset_ms
    # In the second pass of an hour that comes twice, later boundaries have been reached in the first.
    while instant_of(start + hop_ms, zone) <= timestamp_ms:
        start += hop_ms
    found: list[Window] = []
    while (end_ms := instant_of(start + size_ms, zone)) > timestamp_ms:
        found.append(Window(instant_of(start, zone), end_ms))
        start -= hop_ms
    return tuple(reversed(found))


def session(timestamp_ms: int, *, gap_ms: int) -> Window:
    """The session of a single record: it ends when there was none for *gap_ms*.

    Raises:
        InvalidArgument: *gap_ms* is not above 0.
    """
    if gap_ms <= 0:
        msg = f"a session's gap is a length of time above 0 ms, got {gap_ms}"
        raise InvalidArgument(msg)
    return Window(timestamp_ms, timestamp_ms + gap_ms)


def merged(sessions: Iterable[Window]) -> tuple[Window, ...]:
    """The *sessions* with those that overlap or touch made one, earliest first.

    So two records that are exactly the gap apart share a session. Source: Flink, TimeWindow.intersects.
    """
    found: list[Window] = []
    for window in sorted(sessions):
        if found and window.start_ms <= found[-1].end_ms:
            found[-1] = Window(found[-1].start_ms, max(found[-1].end_ms, window.end_ms))
        else:
            found.append(window)
    return tuple(found)


def latest_shown_ms(at_ms: int, zone: ZoneInfo) -> int:
    """The latest that the clock of *zone* has shown up to the instant *at_ms*, as ms since it would have shown 1970.

    While an hour comes for the second time this stays at the end of the first pass. An instant is in a window of the
    local clock if this number is.
    """
    shown_ms = _local_ms(at_ms, zone)
    before_ms, after_ms = instant_of(shown_ms, zone), at_ms
    if before_ms == after_ms:
        return shown_ms
    ahead_ms = shown_ms - before_ms
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if _local_ms(middle_ms, zone) - middle_ms == ahead_ms:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    return before_ms + ahead_ms


def _local_ms(instant_ms: int, zone: ZoneInfo | None) -> int:
    """What the clock of *zone* shows, as milliseconds since it would have shown 1970."""
    if zone is None:
        return instant_ms
    shown = (_EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=instant_ms)).astimezone(zone)
    return (shown.replace(tzinfo=None) - _EPOCH) // _MILLISECOND


def instant_of(local_ms: int, zone: ZoneInfo | None) -> int:
    """The first instant at which the clock of *zone* shows *local_ms*, or a later time if it leaves that one out."""
    if zone is None:
        return local_ms
    local = (_EPOCH + timedelta(milliseconds=local_ms)).replace(tzinfo=zone)
    after_ms, before_ms = _epoch_ms(local), _epoch_ms(local.replace(fold=1))
    if before_ms >= after_ms:
        return after_ms
    # The clock was put forward somewhere in between: that is when it passed the time it left out.
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if _local_ms(middle_ms, zone) < local_ms:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    return after_ms


def _epoch_ms(local: datetime) -> int:
    return (local.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MILLISECOND
