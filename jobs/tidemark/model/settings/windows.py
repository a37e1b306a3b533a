"""Windows of record time, and their keys in a topology file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from zoneinfo import available_timezones

from tidemark.model.settings.lengths import for_people, length_in_toml
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_keys import Keys, read_inner
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
        timezone: IANA name; lengths are those of its local clock, so a day may have 23 or 25 hours. None: UTC.
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


def read_windows(keys: Keys) -> Windows | None:
    """Reads `window`, `allowed_lateness` and `reopen_for`; None without a window."""
    content = keys.mapping("window", '{ tumbling = "1 min" }', None)
    allowed_lateness_ms = keys.duration("allowed_lateness", "1 min", None, zero=True)
    reopen_for_ms = keys.duration("reopen_for", "1 d", None)
    if content is None:
        _refuse_without_window(keys)
        return None
    windows = read_inner(keys, "window", content, _read_window)
    if reopen_for_ms is not None and windows.shape is Shape.SESSION:
        remedy = 'leave it out, and give late records time with allowed_lateness = "1 d"'
        keys.fail("reopen_for", "is set for a session, whose bounds depend on all of its records", remedy)
    return replace(windows, allowed_lateness_ms=allowed_lateness_ms or 0, reopen_for_ms=reopen_for_ms)


def _read_window(keys: Keys) -> Windows:
    """Reads the windows of the table `window`."""
    ((shape, _),) = keys.one_of({shape.value: "1 min" for shape in Shape}).items()
    size_ms = keys.duration(shape, "1 min")
    hop_ms = keys.duration("every", "10 s") if shape == Shape.HOPPING else size_ms
    offset_ms = keys.duration("offset", "15 min", 0, zero=True) if shape != Shape.SESSION else 0
    timezone = _windows_timezone(keys, Shape(shape), hop_ms)
    if hop_ms > size_ms:
        remedy = "make it at most that long, or some records are in no window"
        keys.fail("every", f"is longer than the window ({dict(keys.content)})", remedy)
    return Windows(
        shape=Shape(shape),
        size_ms=size_ms,
        hop_ms=hop_ms,
        offset_ms=offset_ms,
        timezone=timezone,
    )


def _refuse_without_window(keys: Keys) -> None:
    for key in ("allowed_lateness", "reopen_for"):
        if key in keys.content:
            remedy = 'write window = { tumbling = "1 min" }, or leave it out'
            keys.fail(key, "is set, but there is no window", remedy, beside="window")


def read_complete(keys: Keys) -> Intervals | None:
    """Reads `complete`, the intervals of a table; None without the key."""
    content = keys.mapping("complete", '{ every = "1 h" }', None)
    if content is None:
        return None
    return read_inner(keys, "complete", content, _read_intervals)


def _read_intervals(keys: Keys) -> Intervals:
    """Reads the intervals of the table `complete`."""
    every_ms, timezone = keys.duration("every", "1 h"), _timezone(keys)
    every = keys.content["every"]
    if every_ms < LEAST_INTERVAL_MS:
        keys.fail("every", f"is {every!r}", f'write "{length_in_toml(LEAST_INTERVAL_MS)}" or more, such as "1 h"')
    if timezone and every_ms % DAY_MS and DAY_MS % every_ms:
        problem = f"is {every!r}, which divides no day of {timezone}"
        keys.fail("every", problem, 'write a part of a day such as "1 h", or whole days such as "1 d"')
    return Intervals(every_ms, timezone)


def _windows_timezone(keys: Keys, shape: Shape, hop_ms: int) -> str | None:
    """Reads the IANA name of the windows' clock; None: UTC."""
    name: str | None = keys.text("timezone", "America/New_York", None)
    if name is not None and shape is Shape.SESSION:
        keys.fail(
            "timezone",
            f"is {name!r}, but the window is a session",
            "leave it out: the length of a gap does not depend on it",
        )
    _timezone(keys)
    if name is not None and shape is Shape.HOPPING and hop_ms < LEAST_LOCAL_HOP_MS:
        problem, remedy = f"is {name!r}, but windows start every {for_people(hop_ms)}", 'start them every "2 h" or more'
        keys.fail("timezone", problem, f"{remedy}: several would start at once when daylight saving time begins")
    return name


@cache
def _zones() -> frozenset[str]:
    # It searches all folders of the data of time zones.
    return frozenset(available_timezones() - {"Factory", "localtime"})


def _timezone(keys: Keys) -> str | None:
    """Reads the IANA name of a time zone; None: UTC."""
    name: str | None = keys.text("timezone", "America/New_York", None)
    zones = _zones()
    if name is not None and name not in zones:
        near = difflib.get_close_matches(name, zones, n=1)
        remedy = f"use an IANA name, such as {near[0] if near else 'America/New_York'}"
        keys.fail("timezone", f"is {name!r}, which is not a known time zone", remedy)
    return name
