"""Finds the boundaries of windows on the clock of a time zone.

Windows are half-open, [start, end), in epoch milliseconds. Without a zone they start at multiples of their length, or
hop, since the epoch plus an offset. In a zone they do so on the local clock, and a boundary is the first instant at
which that clock has reached it: a day in New York has 23, 24 or 25 hours. A local hour that comes twice makes its
windows longer. An hour that is left out leaves a window of no length, which has no records.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of the local clock has no zone
_MILLISECOND = timedelta(milliseconds=1)


def latest_shown_ms(at_ms: int, zone: ZoneInfo) -> int:
    """Returns the latest time that a zone's clock had shown by *at_ms*, in ms since it showed 1970-01-01 00:00.

    An instant is in a window of the local clock if this number is: the number never goes back, also when the clock
    does.
    """
    shown_ms = clock_ms(at_ms, zone)
    before_ms, after_ms = instant_of(shown_ms, zone), at_ms
    # The clock shows this time for the first time.
    if before_ms == after_ms:
        return shown_ms
    ahead_ms = shown_ms - before_ms
    # Bisection: the clock was put back at one instant between the two.
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if clock_ms(middle_ms, zone) - middle_ms == ahead_ms:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    # While an hour comes for the second time this stays at the end of the first pass.
    return before_ms + ahead_ms


def clock_ms(instant_ms: int, zone: ZoneInfo | None) -> int:
    """Returns what the clock of *zone* shows at *instant_ms*, in ms since it showed 1970-01-01 00:00."""
    if zone is None:
        return instant_ms
    shown = (_EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=instant_ms)).astimezone(zone)
    return (shown.replace(tzinfo=None) - _EPOCH) // _MILLISECOND


def instant_of(local_ms: int, zone: ZoneInfo | None) -> int:
    """Returns the first instant at which the clock of *zone* shows *local_ms*, or a later time if it skips that."""
    if zone is None:
        return local_ms
    local = (_EPOCH + timedelta(milliseconds=local_ms)).replace(tzinfo=zone)
    # PEP 495: for a time that the clock leaves out, fold=0 uses the offset before the change, which gives an
    # instant after it; fold=1 the other way round.
    after_ms, before_ms = _epoch_ms(local), _epoch_ms(local.replace(fold=1))
    if before_ms >= after_ms:
        return after_ms
    # The clock was put forward somewhere in between: that is when it passed the time it left out.
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if clock_ms(middle_ms, zone) < local_ms:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    return after_ms


def _epoch_ms(local: datetime) -> int:
    return (local.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MILLISECOND
