"""Times without alerts: UTC hours of a week or day, or once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemark.errors import InvalidArgument
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.retention import DAY_MS

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_EPOCH_DAY = _DAYS.index("Thu")
_HOURS = re.compile(r"(daily|Mon|Tue|Wed|Thu|Fri|Sat|Sun) ([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class MaintenanceWindow:
    """From *start_ms* for *length_ms*, again every *period_ms* (None: once)."""

    start_ms: int
    length_ms: int
    period_ms: int | None

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms* lies in it."""
        after_ms = at_ms - self.start_ms
        return 0 <= (after_ms % self.period_ms if self.period_ms else after_ms) < self.length_ms


def maintenance_window(text: str) -> MaintenanceWindow | None:
    """Reads a maintenance window; None if *text* is none.

    Its forms are `Sun 22:00-02:00`, `daily 01:00-01:30` and `2026-12-24T00:00Z/2026-12-26T00:00Z`.

    >>> maintenance_window("daily 01:00-01:30")
    MaintenanceWindow(start_ms=3600000, length_ms=1800000, period_ms=86400000)
    """
    if match := _HOURS.fullmatch(text):
        day, *clock = match.groups()
        start_ms, end_ms = (60_000 * (60 * int(hour) + int(minute)) for hour, minute in (clock[:2], clock[2:]))
        if start_ms == end_ms:
            return None
        length_ms = (end_ms - start_ms) % DAY_MS  # an end before the start is of the next day
        if day == "daily":
            return MaintenanceWindow(start_ms, length_ms, DAY_MS)
        days = (_DAYS.index(day) - _EPOCH_DAY) % 7
        return MaintenanceWindow(days * DAY_MS + start_ms, length_ms, 7 * DAY_MS)
    first, separator, last = text.partition("/")
    try:
        start_ms, end_ms = instant_ms(first), instant_ms(last)
    except InvalidArgument:
        return None
    return MaintenanceWindow(start_ms, end_ms - start_ms, None) if separator and start_ms < end_ms else None
