"""Half-open intervals [start, end) of epoch ms UTC, and their grains.

Facts are rolled up to grains. Predicates are text that Spark and delta-rs read alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from enum import StrEnum

from tidemark.errors import InvalidArgument


class Scope(StrEnum):
    """The records that a row of a rollup counts."""

    OPERATOR = "operator"
    TASK = "task"
    """Records of an operator from one input partition."""
    TOPOLOGY = "topology"
    """Records that the terminal operators finished."""
    PATH = "path"
    """Records that the terminal operator at the path's end finished."""


class Grain(StrEnum):
    """The lengths of rolled-up intervals, each a multiple of the length before."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length_ms(self) -> int:
        """Its length; days of UTC are equally long."""
        return {Grain.MINUTE: 60_000, Grain.HOUR: 3_600_000, Grain.DAY: 86_400_000}[self]


@dataclass(frozen=True)
class Interval:
    """The instants from *start_ms*, inclusive, to *end_ms*, exclusive.

    Raises:
        InvalidArgument: *end_ms* is not after *start_ms*.
    """

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            got = f"[{iso(self.start_ms)}, {iso(self.end_ms)})"
            msg = f"an interval must start before it ends, got {got}; swap --from and --to?"
            raise InvalidArgument(msg)

    @property
    def length_ms(self) -> int:
        """From start to end."""
        return self.end_ms - self.start_ms

    def widened(self, grain: Grain) -> Interval:
        """Returns the whole intervals of *grain* that this one touches.

        >>> Interval(61_000, 119_000).widened(Grain.MINUTE)
        Interval(start_ms=60000, end_ms=120000)
        """
        length = grain.length_ms
        return Interval(self.start_ms // length * length, -(-self.end_ms // length) * length)

    def holds(self, column: str) -> str:
        """Returns a predicate: the timestamp *column* lies in this interval."""
        # The bounds are text: delta-rs refuses to compare a column of µs with a TIMESTAMP literal, which has ns.
        return f"({column} >= '{iso(self.start_ms)}' and {column} < '{iso(self.end_ms)}')"


def join_intervals(starts_ms: Iterable[int], grain: Grain) -> list[Interval]:
    """Returns the intervals of *grain* that start at *starts_ms*, in order.

    Intervals without a gap between them become one.

    >>> join_intervals([120_000, 0, 60_000, 300_000], Grain.MINUTE)
    [Interval(start_ms=0, end_ms=180000), Interval(start_ms=300000, end_ms=360000)]
    """
    intervals: list[Interval] = []
    for start_ms in sorted(set(starts_ms)):
        touches = bool(intervals) and intervals[-1].end_ms == start_ms
        first_ms = intervals.pop().start_ms if touches else start_ms
        intervals.append(Interval(first_ms, start_ms + grain.length_ms))
    return intervals


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
INSTANT = re.compile(
    rf"{_DAY.pattern}([T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?(Z|[+-][0-9]{{2}}:[0-9]{{2}})?)?"
)
"""RFC 3339, whose zone, seconds and time of day are optional."""
YEAR_10_000_MS = 253_402_300_800_000


def instant_ms(text: str) -> int:
    """Returns epoch ms of an ISO instant, by default in UTC.

    Raises:
        InvalidArgument: it is no instant, or has another form of ISO 8601, such as a week.

    >>> instant_ms("1970-01-01T01:00:00+01:00")
    0
    """
    try:
        # Python reads more forms, and others in each version.
        at = datetime.fromisoformat(text) if INSTANT.fullmatch(text) else None
    except ValueError:
        at = None
    if at is None:
        hint = "; in a URL, write + as %2B" if re.search(r"[0-9] [0-9]{2}:[0-9]{2}$", text) else ""
        msg = f"an instant must be in ISO 8601, got {text!r}; write, for example, 2026-01-31T12:00:00Z{hint}"
        raise InvalidArgument(msg)
    at_ms = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= at_ms < YEAR_10_000_MS:
        msg = f"an instant must be after 1970 and before the year 10000, got {text!r}; correct the year"
        raise InvalidArgument(msg)
    return at_ms


def instants_ms(start: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Returns epoch ms of *start* and *end*; each may be None.

    Raises:
        InvalidArgument: one of them is no instant, or *end* is not after *start*.

    >>> instants_ms("1970-01-01T00:00:01Z", None)
    (1000, None)
    """
    start_ms, end_ms = (None if text is None else instant_ms(text) for text in (start, end))
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        msg = f"from must be before to, got from {start!r} and to {end!r}; swap them, or leave one out"
        raise InvalidArgument(msg)
    return start_ms, end_ms


def iso_day(text: str) -> date:
    """Returns the day that *text* names, such as 2013-06-27.

    Raises:
        InvalidArgument: it is no day.
    """
    try:
        day = date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        day = None
    if day is None:
        msg = f"a day must be in ISO 8601, got {text!r}; write, for example, 2013-06-27"
        raise InvalidArgument(msg)
    return day


def iso(at_ms: int) -> str:
    """Returns ISO 8601 text of epoch ms, UTC.

    >>> iso(1)
    '1970-01-01T00:00:00.001Z'
    """
    return utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


INSTANTS = re.compile(r"(?P<day>\d{4}-\d\d-\d\d)T(?P<clock>\d\d:\d\d:\d\d)\.(?P<ms>\d{3})Z")
"""Instants as `iso` writes them."""


def on_the_clock(text: str, zone: tzinfo = UTC, *, has_zone: bool = False) -> str:
    """Returns *text* with its instants as pages have them, by the clock of *zone*.

    Unlike on pages, milliseconds remain if they are not 0, so that a watermark of .998 does not look like the .999 that
    is needed. With *has_zone* the name of the zone follows, because in some zones one time of a day is two instants.

    >>> on_the_clock("done since 2026-01-31T12:00:00.000Z: 2026-01-31T11:59:59.999Z has passed")
    'done since 2026-01-31 12:00:00: 2026-01-31 11:59:59.999 has passed'
    >>> from zoneinfo import ZoneInfo
    >>> on_the_clock("since 2026-10-25T01:30:00.000Z", ZoneInfo("Europe/Berlin"), has_zone=True)
    'since 2026-10-25 02:30:00 CET'
    """

    def shown(match: re.Match[str]) -> str:
        at = datetime.fromisoformat(match[0]).astimezone(zone)
        ms = "" if match["ms"] == "000" else f".{match['ms']}"
        return f"{at:%Y-%m-%d %H:%M:%S}{ms}" + (f" {at:%Z}" if has_zone else "")

    return INSTANTS.sub(shown, text)


def epoch_ms(instant: datetime) -> int:
    """Returns *instant* in epoch ms.

    >>> epoch_ms(utc(1_500))
    1500
    """
    return round(instant.timestamp() * 1000)


def utc(at_ms: int) -> datetime:
    """Returns the instant of epoch ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def is_text(column: str, text: str) -> str:
    """Returns a predicate: *column* is *text*, with its quotes escaped."""
    quoted = text.replace("'", "''")
    return f"({column} = '{quoted}')"
