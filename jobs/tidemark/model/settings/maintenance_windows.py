"""Times without alerts: hours of days in a time zone, or once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import TableForm, Values, defaulted, required
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.value_types import refuse

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = r"([01]\d|2[0-3]):([0-5]\d)"
_HOURS = re.compile(rf"(daily|{'|'.join(DAYS)}) {_CLOCK}-{_CLOCK}(?: (\S+))?")
MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS
_TIME = re.compile(rf"{_CLOCK}|(24):(00)")
EXAMPLE = '["Sun 02:00-04:00 Europe/Berlin", "2026-12-24T00:00Z/2026-12-26T00:00Z"]'


@dataclass(frozen=True)
class WeeklyHours:
    """Hours of *days*, by the clock of *zone*.

    They last from *start*, inclusive, to *end*, exclusive, both minutes after midnight. An *end* that is not after
    *start* is on the next day. A day is its index in DAYS. An instant lies in the hours if the clock shows a time in
    them. So an hour that a clock change repeats counts twice, and an hour that it skips does not exist.
    """

    days: frozenset[int]
    start: int
    end: int
    zone: ZoneInfo

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms*, epoch ms, lies in the hours."""
        local = datetime.fromtimestamp(at_ms / 1_000, self.zone)
        minute, today = 60 * local.hour + local.minute, local.weekday()
        if self.start < self.end:
            return today in self.days and self.start <= minute < self.end
        return (today in self.days and minute >= self.start) or ((today - 1) % 7 in self.days and minute < self.end)

    def changed_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns when the hours last began or ended by *at_ms*; all instants are epoch ms.

        None if that was not after *after_ms*, or not in the week before *at_ms*.
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
    """The time from *start_ms*, inclusive, to *end_ms*, exclusive, both epoch ms."""

    start_ms: int
    end_ms: int

    def holds(self, at_ms: int) -> bool:
        """Returns True if the instant *at_ms*, epoch ms, lies in it."""
        return self.start_ms <= at_ms < self.end_ms

    def changed_ms(self, at_ms: int, *, after_ms: int) -> int | None:
        """Returns when the time last began or ended by *at_ms*, epoch ms; None if that was not after *after_ms*."""
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


def _windows(texts: tuple[str, ...], *_: str) -> tuple[MaintenanceWindow, ...]:
    windows = []
    for text in texts:
        if (window := maintenance_window(text)) is None:
            refuse(f"has {text!r}", f"write hours, with a time zone unless it is UTC, such as {EXAMPLE}")
        windows.append(window)
    return tuple(windows)


def _zone(name: str, key: str, example: str) -> ZoneInfo:
    if (zone := zone_named(name)) is None:
        refuse(f"is {name!r}, which is no time zone", f"write a name such as {key} = {example}")
    return zone


def _time_of_day(text: str, key: str, example: str) -> int:
    if (minute := minute_of_day(text)) is None:
        refuse(f"is {text!r}", f"write a time of day, such as {key} = {example}")
    return minute


WINDOWS = value_types.texts().then(_windows)
"""The type of lists of maintenance windows."""
TIME_OF_DAY = value_types.text({"type": "string", "pattern": f"^({_TIME.pattern})$"}).then(_time_of_day)
"""The type of times of day, minutes after midnight."""
OF_ZONE = value_types.text().then(_zone)
"""The type of names of time zones."""
ZONE = required(
    "zone",
    OF_ZONE,
    example='"Europe/Berlin"',
    meaning="the time zone of their clock",
)
OF_DAYS = defaulted(
    "days",
    value_types.words(DAYS),
    example='["Mon", "Tue", "Wed", "Thu", "Fri"]',
    default=[*DAYS],
    meaning="the days on which the hours begin",
)
FROM = defaulted("from", TIME_OF_DAY, example='"07:00"', default="00:00", meaning="when they begin, on that clock")
TO = defaulted(
    "to",
    TIME_OF_DAY,
    example='"19:00"',
    default="24:00",
    meaning="when they end; an end that is not after the begin is of the next day",
)


def _refuse_no_hours(values: Values) -> None:
    if values[FROM] == values[TO]:
        values.fail(TO, "is the same time as from", f"write a later time, such as to = {TO.example}, or leave both out")


CALENDAR = TableForm(keys=(ZONE, OF_DAYS, FROM, TO), rules=(_refuse_no_hours,))
"""The table of hours of days in a time zone."""


def weekly_hours(values: Values) -> WeeklyHours:
    """Returns the hours of a table of CALENDAR."""
    days = frozenset(map(DAYS.index, values[OF_DAYS]))
    return WeeklyHours(days, values[FROM], values[TO], values[ZONE])


def minute_of_day(text: str) -> int | None:
    """Returns the minutes from midnight to *text*; None if it is no time of day.

    >>> minute_of_day("06:30"), minute_of_day("6 h")
    (390, None)
    """
    if (match := _TIME.fullmatch(text)) is None:
        return None
    hour, minute = (part for part in match.groups() if part is not None)
    return 60 * int(hour) + int(minute)


def zone_named(name: str) -> ZoneInfo | None:
    """Returns the time zone *name*, such as Europe/Berlin; None if there is no such zone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a relative path; a folder of zones, such as Europe
        return None
