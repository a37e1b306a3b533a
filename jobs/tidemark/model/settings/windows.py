"""Windows of record time, and their keys in a topology file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from zoneinfo import available_timezones

from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import given, needs
from tidemark.model.settings.declared_tables import TableForm, Values, defaulted, inner_table, optional, required
from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.value_types import refuse
from tidemark.semantics.completeness import Intervals

LEAST_LOCAL_HOP_MS = 7_200_000
"""Shortest hop on a local clock, longer than any jump of clocks.

So hopping windows on a local clock start one after the other.
"""
LEAST_INTERVAL_MS = 1_000
"""Shortest interval of a table that can be complete."""


class Shape(StrEnum):
    """The shapes of windows."""

    TUMBLING = "tumbling"
    HOPPING = "hopping"
    SESSION = "session"


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of record time.

    Attributes:
        shape: tumbling, hopping or session.
        size_ms: their length; of sessions the gap that ends one.
        hop_ms: distance between their starts.
        offset_ms: how long after the epoch they start.
        allowed_lateness_ms: how long after the end results may change.
        timezone: the IANA name of the zone whose clock counts, so that a day may have 23 or 25 hours; None for UTC.
        reopen_for_ms: how much longer states of closed windows are kept, for corrections on request.
    """

    shape: Shape
    size_ms: int
    hop_ms: int
    offset_ms: int = 0
    allowed_lateness_ms: int = 0
    timezone: str | None = None
    reopen_for_ms: int | None = None

    @property
    def longest_ms(self) -> int:
        """The length that no window exceeds."""
        # A local clock may be put back meanwhile, by a day at most.
        return self.size_ms + (DAY_MS if self.timezone else 0)

    @property
    def behind_ms(self) -> int:
        """How far behind the watermark records of an open result can be."""
        return self.longest_ms + self.allowed_lateness_ms + (self.reopen_for_ms or 0)

    def closed_up_to_ms(self, watermark_ms: int, ended_ms: int | None = None) -> int:
        """Returns the latest end of a closed window.

        The definition is that of `semantics.watermark.is_window_late`.
        """
        closed_ms = watermark_ms + 1 - self.allowed_lateness_ms
        # `allowed_lateness` was shorter when the watermark passed these windows.
        return closed_ms if ended_ms is None else max(closed_ms, ended_ms)

    def forgotten_up_to_ms(self, watermark_ms: int) -> int:
        """Returns the latest end of a closed window whose states were removed."""
        return self.closed_up_to_ms(watermark_ms) - (self.reopen_for_ms or 0)


@cache
def _zones() -> frozenset[str]:
    # It searches all folders of the data of time zones.
    return frozenset(available_timezones() - {"Factory", "localtime"})


def _zone(name: str, *_: str) -> str:
    zones = _zones()
    if name not in zones:
        near = difflib.get_close_matches(name, zones, n=1)
        remedy = f"use an IANA name, such as {near[0] if near else 'America/New_York'}"
        refuse(f"is {name!r}, which is not a known time zone", remedy)
    return name


def _interval(length_ms: int, _: str, example: str) -> int:
    if length_ms < LEAST_INTERVAL_MS:
        refuse(
            f"is {length_in_toml(length_ms)!r}",
            f'write "{length_in_toml(LEAST_INTERVAL_MS)}" or more, such as {example}',
        )
    return length_ms


TUMBLING = optional(
    "tumbling", value_types.length(), example='"1 min"', meaning="windows of that length, one after the other"
)
HOPPING = optional("hopping", value_types.length(), example='"1 min"', meaning="windows of that length, which overlap")
EVERY = optional(
    "every",
    value_types.length(),
    example='"10 s"',
    meaning="the time between the starts of hopping windows",
    needs=[needs(given(HOPPING))],
    required_if=needs(given(HOPPING)),
)
SESSION = optional(
    "session",
    value_types.length(),
    example='"30 s"',
    meaning=(
        "windows of records of a key with at most this time between them. If a record connects two sessions, they "
        "become one, and the later one is deleted"
    ),
)
OFFSET = defaulted(
    "offset",
    value_types.length(zero=True),
    example='"15 min"',
    default="0 ms",
    meaning="of tumbling and hopping windows: how long after the epoch they start",
    needs=[needs(given(TUMBLING, HOPPING), because="a session starts with a record")],
)
TIMEZONE = optional(
    "timezone",
    value_types.text().then(_zone),
    example='"America/New_York"',
    without="UTC",
    meaning="of tumbling and hopping windows: the local clock that they follow, an IANA name",
    needs=[needs(given(TUMBLING, HOPPING), because="the length of a gap does not depend on it")],
)


def _refuse_gaps(values: Values) -> None:
    """Refuses hopping windows between which records would be in no window."""
    size_ms, every_ms = values[HOPPING], values[EVERY]
    if size_ms is not None and every_ms is not None and every_ms > size_ms:
        problem = f"is longer than the window ({dict(values.written)})"
        values.fail(EVERY, problem, "make it at most that long, or some records are in no window")


def _refuse_short_local_hops(values: Values) -> None:
    """Refuses hopping windows of which several would start at once on a local clock."""
    zone, every_ms = values[TIMEZONE], values[EVERY]
    if zone is not None and every_ms is not None and every_ms < LEAST_LOCAL_HOP_MS:
        problem = f"is {zone!r}, but windows start every {for_people(every_ms)}"
        remedy = 'start them every "2 h" or more: several would start at once when daylight saving time begins'
        values.fail(TIMEZONE, problem, remedy)


WINDOW_FORM = TableForm(
    keys=(TUMBLING, HOPPING, EVERY, SESSION, OFFSET, TIMEZONE),
    one_of=((TUMBLING, HOPPING, SESSION),),
    rules=(_refuse_gaps, _refuse_short_local_hops),
)
"""The table `window`."""


def windows_of(values: Values, *, allowed_lateness_ms: int, reopen_for_ms: int | None) -> Windows:
    """Returns the windows of a table of WINDOW_FORM."""
    size_ms, hop_ms, gap_ms = values[TUMBLING], values[HOPPING], values[SESSION]
    shape = Shape.HOPPING if hop_ms else Shape.SESSION if gap_ms else Shape.TUMBLING
    length_ms = hop_ms or gap_ms or size_ms or 0
    return Windows(
        shape=shape,
        size_ms=length_ms,
        hop_ms=values[EVERY] or length_ms,
        offset_ms=values[OFFSET],
        timezone=values[TIMEZONE],
        allowed_lateness_ms=allowed_lateness_ms,
        reopen_for_ms=reopen_for_ms,
    )


COMPLETE_EVERY = required(
    "every",
    value_types.length().then(_interval),
    example='"1 h"',
    meaning="the length of an interval",
)
COMPLETE_ZONE = optional(
    "timezone",
    value_types.text().then(_zone),
    example='"Europe/Berlin"',
    without="UTC",
    meaning="the local clock whose days the intervals divide, an IANA name",
)


def _refuse_parts_of_no_day(values: Values) -> None:
    """Refuses intervals that do not fit into the days of a local clock."""
    every_ms, zone = values[COMPLETE_EVERY], values[COMPLETE_ZONE]
    if zone and every_ms % DAY_MS and DAY_MS % every_ms:
        problem = f"is {values.written['every']!r}, which divides no day of {zone}"
        values.fail(COMPLETE_EVERY, problem, 'write a part of a day such as "1 h", or whole days such as "1 d"')


COMPLETE = inner_table(
    "complete",
    TableForm(keys=(COMPLETE_EVERY, COMPLETE_ZONE), rules=(_refuse_parts_of_no_day,)),
    example='{ every = "1 h", timezone = "Europe/Berlin" }',
    meaning=(
        "the intervals of record time for which the table `completeness` says when they are complete: "
        "[complete.md](complete.md)"
    ),
)


def intervals_of(values: Values | None) -> Intervals | None:
    """Returns the intervals of a table `complete`; None without it."""
    return None if values is None else Intervals(values[COMPLETE_EVERY], values[COMPLETE_ZONE])
