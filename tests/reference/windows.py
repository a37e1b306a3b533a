"""Finds the windows of record time of one timestamp.

Windows are half-open, [start, end), in epoch milliseconds. `tidemark.semantics.windows` has the rules of local clocks;
`kernels/aggregates/windows.py` does the same for whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument
from tidemark.semantics.windows import clock_ms, instant_of


@dataclass(frozen=True, order=True)
class Window:
    """A window from `start_ms`, inclusive, to `end_ms`, exclusive."""

    start_ms: int
    end_ms: int

    def contains(self, timestamp_ms: int) -> bool:
        """Returns True if a record of that timestamp is in the window."""
        return self.start_ms <= timestamp_ms < self.end_ms


def tumbling(timestamp_ms: int, *, size_ms: int, offset_ms: int = 0, zone: ZoneInfo | None = None) -> Window:
    """Returns the window of *timestamp_ms*; windows follow each other without gaps.

    Args:
        timestamp_ms: record time.
        size_ms: length of the windows.
        offset_ms: how long after the epoch they start.
        zone: their local clock; None: UTC.

    Raises:
        InvalidArgument: *size_ms* is not above 0.
    """
    (window,) = hopping(timestamp_ms, size_ms=size_ms, hop_ms=size_ms, offset_ms=offset_ms, zone=zone)
    return window


def hopping(
    timestamp_ms: int, *, size_ms: int, hop_ms: int, offset_ms: int = 0, zone: ZoneInfo | None = None
) -> tuple[Window, ...]:
    """Returns the windows that *timestamp_ms* is in, earliest first.

    A timestamp may be in no window where the hop is longer than the window.

    Args:
        timestamp_ms: record time.
        size_ms: length of the windows.
        hop_ms: distance between their starts.
        offset_ms: how long after the epoch they start.
        zone: their local clock; None: UTC.

    Raises:
        InvalidArgument: a length is not above 0.
    """
    if size_ms <= 0 or hop_ms <= 0:
        msg = f"a window's size and hop are lengths of time above 0 ms, got {size_ms} and {hop_ms}"
        raise InvalidArgument(msg)
    start = (clock_ms(timestamp_ms, zone) - offset_ms) // hop_ms * hop_ms + offset_ms
    # In the second pass of an hour that comes twice, later boundaries have been reached in the first.
    while instant_of(start + hop_ms, zone) <= timestamp_ms:
        start += hop_ms
    windows: list[Window] = []
    while (end_ms := instant_of(start + size_ms, zone)) > timestamp_ms:
        windows.append(Window(instant_of(start, zone), end_ms))
        start -= hop_ms
    return tuple(reversed(windows))


def session(timestamp_ms: int, *, gap_ms: int) -> Window:
    """Returns the session of a single record.

    It ends after *gap_ms* without records.

    Raises:
        InvalidArgument: *gap_ms* is not above 0.
    """
    if gap_ms <= 0:
        msg = f"a session's gap is a length of time above 0 ms, got {gap_ms}"
        raise InvalidArgument(msg)
    return Window(timestamp_ms, timestamp_ms + gap_ms)


def merged(sessions: Iterable[Window]) -> tuple[Window, ...]:
    """Merges *sessions* that overlap or touch; returns them earliest first.

    So two records that are exactly the gap apart share a session. Source: Flink, TimeWindow.intersects.
    """
    disjoint: list[Window] = []
    for window in sorted(sessions):
        if disjoint and window.start_ms <= disjoint[-1].end_ms:
            disjoint[-1] = Window(disjoint[-1].start_ms, max(disjoint[-1].end_ms, window.end_ms))
        else:
            disjoint.append(window)
    return tuple(disjoint)
