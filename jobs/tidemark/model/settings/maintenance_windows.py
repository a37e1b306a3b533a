"""Times without alerts: hours of days in a time zone, or once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.toml_keys import Keys, read_inner

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = r"([01]\d|2[0-3]):([0-5]\d)"
_HOURS = re.compile(rf"(daily|{'|'.join(DAYS)}) {_CLOCK}-{_CLOCK}(?: (\S+))?")
MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
_TIME = re.compile(rf"{_CLOCK}|(24):(00)")
EXAMPLE = '["Sun 02:00-04:00 Europe/Berlin", "2026-12-24T00:00Z/2026-12-26T00:00Z"]'
EXAMPLE_OF_CALENDAR = (
    '{ zone = "Europe/Berlin", days = ["Mon", "Tue", "Wed", "Thu", "Fri"], from = "07:00", to = "19:00" }'
)


@dataclass(frozen=True)
class WeeklyHours:
    """Hours of *days*, read from a clock on the wall in *zone*.

    They last from *start*, inclusive, to *end*, minutes after midnight. An *end* that is not after *start* is of the
    next day. A day is its place in DAYS. An instant is in the hours if the clock shows one of them then. So an hour
    that a clock change repeats counts twice, and one that it skips does not exist.
    """

    days: frozenset[int]
    start: int
    end: int
    zone: ZoneInfo

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms*, epoch ms, lies in them."""
        local = datetime.fromtimestamp(at_ms / 1_000, self.zone)
        minute, today = 60 * local.hour + local.minute, local.weekday()
        if self.start < self.end:
            return today in self.days and self.start <= minute < self.end
        return (today in self.days and minute >= self.start) or ((today - 1) % 7 in self.days and minute < self.end)

    def changed_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns when they last began or ended until *at_ms*.

        None: they did neither after *after_ms*, or in the week before *at_ms*. Epoch ms.
        """
        holds = self.holds(at_ms)
        first_ms = at_ms // MINUTE_MS * MINUTE_MS
        # Minutes are tried, because clock changes move or drop the times of days.
        for minute_ms in range(first_ms, max(after_ms, first_ms - WEEK_MS), -MINUTE_MS):
            if self.holds(minute_ms - MINUTE_MS) != holds:
                return minute_ms
        return None


@dataclass(frozen=True)
class SingleTime:
    """The time from *start_ms*, inclusive, to *end_ms*: epoch ms."""

    start_ms: int
    end_ms: int

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms*, epoch ms, lies in it."""
        return self.start_ms <= at_ms < self.end_ms

    def changed_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns when it last began or ended until *at_ms*; None: it did neither after *after_ms*. Epoch ms."""
        return max((ms for ms in (self.start_ms, self.end_ms) if after_ms < ms <= at_ms), default=None)


MaintenanceWindow: TypeAlias = WeeklyHours | SingleTime


def maintenance_window(text: str) -> MaintenanceWindow | None:
    """Reads a maintenance window; None if *text* is none.

    Its forms are `Sun 22:00-02:00 Europe/Berlin`, `daily 01:00-01:30` and `2026-12-24T00:00Z/2026-12-26T00:00Z`.
    Without a zone hours are those of UTC.

    >>> maintenance_window("Mon 01:00-01:30")
    WeeklyHours(days=frozenset({0}), start=60, end=90, zone=zoneinfo.ZoneInfo(key='UTC'))
    """
    if match := _HOURS.fullmatch(text):
        day, *clock, name = match.groups()
        start, end = (60 * int(hour) + int(minute) for hour, minute in (clock[:2], clock[2:]))
        zone = zone_named(name or "UTC")
        days = frozenset(range(7) if day == "daily" else [DAYS.index(day)])
        return None if start == end or zone is None else WeeklyHours(days, start, end, zone)
    first, separator, last = text.partition("/")
    try:
        start_ms, end_ms = instant_ms(first), instant_ms(last)
    except InvalidArgument:
        return None
    return SingleTime(start_ms, end_ms) if separator and start_ms < end_ms else None


def maintenance_windows(keys: Keys, key: str) -> Iterator[MaintenanceWindow]:
    """Yields the maintenance windows that *key* lists."""
    for text in keys.names(key, EXAMPLE, ()):
        if (window := maintenance_window(text)) is None:
            keys.fail(key, f"has {text!r}", f"write hours, with a time zone unless it is UTC, such as {EXAMPLE}")
        yield window


def calendar(keys: Keys) -> WeeklyHours | None:
    """Returns the hours in which an SLA is judged; None: always.

    They are the table `calendar`.
    """
    table = keys.get("calendar", dict, EXAMPLE_OF_CALENDAR, None)
    if table is None:
        return None
    return read_inner(keys, "calendar", table, weekly_hours)


def weekly_hours(own: Keys) -> WeeklyHours:
    """Reads the hours of a table."""
    name = own.text("zone", "Europe/Berlin")
    zone = zone_named(name)
    if zone is None:
        own.fail("zone", f"is {name!r}, which is no time zone", 'write a name such as zone = "Europe/Berlin"')
    days = own.names("days", '["Mon", "Tue", "Wed", "Thu", "Fri"]', DAYS)
    if unknown := [day for day in days if day not in DAYS]:
        own.fail("days", f"has {unknown[0]!r}", f"use any of {', '.join(DAYS)}")
    start, end = _minutes(own, "from", "00:00"), _minutes(own, "to", "24:00")
    if start == end:
        own.fail("to", "is the same time as from", 'write a later time, such as to = "19:00", or leave both out')
    return WeeklyHours(frozenset(map(DAYS.index, days)), start, end, zone)


def _minutes(keys: Keys, key: str, default: str) -> int:
    """Returns a time of day as minutes after midnight."""
    text = keys.text(key, default, default)
    if (minute := minute_of_day(text)) is None:
        keys.fail(key, f"is {text!r}", f'write a time of day, such as {key} = "07:00"')
    return minute


def minute_of_day(text: str) -> int | None:
    """Returns the minutes from midnight to *text*; None: no time of day.

    >>> minute_of_day("06:30"), minute_of_day("6 h")
    (390, None)
    """
    if (match := _TIME.fullmatch(text)) is None:
        return None
    hour, minute = (part for part in match.groups() if part is not None)
    return 60 * int(hour) + int(minute)


def zone_named(name: str) -> ZoneInfo | None:
    """Returns the time zone *name*, such as Europe/Berlin; None: unknown."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a relative path; a folder of zones, such as Europe
        return None
