"""Calendars of exempt days, worked out by hand.

2026-11-28 is a Saturday. Berlin is an hour ahead of UTC in winter, two in summer.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from support.schemas import validator
from tidemark.cli.project.check import check
from tidemark.errors import InvalidSpec
from tidemark.facts.measures.fact_kinds import Fact, FactKind
from tidemark.model import topology
from tidemark.model.project.files import Project
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.slas.calendars import Country, ExemptDays, longest_between_days
from tidemark.model.slas.sla_spec import SlaSpec, files_of_dates, load_usable, mistakes, parse, slas_in
from tidemark.semantics.buckets import bucket_of
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.changes import excluded_because
from tidemark.sla.measures.status import Status, statuses
from tidemark.sla.sla_text import measurement_text

PROJECT = Path(__file__).parents[2]
TOML = tomllib.loads((PROJECT / "jobs" / "topologies" / "flights.toml").read_text(encoding="utf-8"))
TOML["operators"]["flight_board"]["complete"] = {"every": "1 d"}
FLIGHTS = topology.parse(TOML, file="flights.toml")
BERLIN = ZoneInfo("Europe/Berlin")
SATURDAY, SUNDAY = 5, 6
WEEKENDS = {"zone": "Europe/Berlin", "weekdays": ["Sat", "Sun"]}
MONDAY = "2026-11-29T23:00Z"
"""When the weekend of 2026-11-28 ends in Berlin."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def exempt(**days: Any) -> ExemptDays:
    return ExemptDays(**{"name": "x", "zone": BERLIN, **days})


def board(calendars: dict[str, Any] | None = None, folder: Path | None = None, **keys: Any) -> SlaSpec:
    """Returns an SLA of the staleness of a table, or as *keys* say, with days off."""
    names = calendars or {"weekends": WEEKENDS}
    table = {"subject": "flight_board", "owner": "desk", "except": [*names], **keys}
    (found,) = parse({"calendars": names, "flights": {"board": table}}, FLIGHTS, file="slas.toml", folder=folder)
    return found


def stale(spec: SlaSpec, newest: str, at: str) -> Status:
    """Returns the status at *at* of a table whose newest record is of *newest*."""
    facts = [Fact(what=FactKind.NEWEST, subject="flight_board", at_ms=instant_ms(newest))]
    (found,) = statuses([spec], FLIGHTS, facts, (), at_ms=instant_ms(at))
    return found


@pytest.mark.parametrize(
    ("days", "within", "without"),
    [
        (
            exempt(weekdays=frozenset({SATURDAY, SUNDAY})),
            ["2026-11-27T23:00Z", "2026-11-29T22:59:59.999Z", "2026-07-03T22:00Z", "2026-07-05T21:59Z"],
            ["2026-11-27T22:59:59.999Z", "2026-11-29T23:00Z", "2026-07-03T21:59Z", "2026-07-05T22:00Z"],
        ),
        (
            exempt(zone=ZoneInfo("UTC"), days_of_month=frozenset({1, 30, -1})),
            ["2028-02-29T12:00Z", "2027-02-28T12:00Z", "2026-04-30T12:00Z", "2026-05-30T12:00Z", "2026-05-31T12:00Z"],
            ["2028-02-28T12:00Z", "2026-04-29T12:00Z"],
        ),
        (
            exempt(zone=ZoneInfo("Asia/Kolkata"), dates=frozenset({date(2026, 12, 24)})),
            ["2026-12-23T18:30Z", "2026-12-24T18:29Z"],
            ["2026-12-23T18:29Z", "2026-12-24T18:30Z", "2027-12-24T12:00Z"],
        ),
        (
            # Epiphany is a holiday of Bavaria, and not of all of Germany.
            exempt(countries=(Country("DE", "BY"),)),
            ["2026-01-06T12:00Z", "2026-12-25T12:00Z"],
            ["2026-01-07T12:00Z"],
        ),
        (
            # The first of January of 2022 was a Saturday, and so observed on the Friday before.
            exempt(zone=ZoneInfo("America/New_York"), countries=(Country("US"), Country("DE"))),
            ["2021-12-31T05:00Z", "2026-12-26T12:00Z"],
            ["2021-12-31T04:59Z", "2026-01-06T12:00Z"],
        ),
    ],
    ids=["weekdays", "days of the month", "dates", "a part of a country", "countries"],
)
def test_days_are_those_of_the_zones_clock(days: ExemptDays, within: list[str], without: list[str]) -> None:
    assert [at for at in within + without if days.holds(instant_ms(at))] == within


@pytest.mark.parametrize(
    ("days", "at", "changed"),
    [
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), "2026-12-02T07:00Z", MONDAY),
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), MONDAY, MONDAY),
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), "2026-11-29T12:00Z", "2026-11-27T23:00Z"),
        # Clocks change on Sundays: a weekend of 49 hours in autumn, and one of 47 in spring.
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), "2026-10-26T07:00Z", "2026-10-25T23:00Z"),
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), "2026-10-25T07:00Z", "2026-10-23T22:00Z"),
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), "2026-03-30T07:00Z", "2026-03-29T22:00Z"),
        (exempt(weekdays=frozenset({SATURDAY, SUNDAY})), "2026-03-29T07:00Z", "2026-03-27T23:00Z"),
        # Friday 2026-04-24 begins at 01:00 in Cairo.
        (exempt(zone=ZoneInfo("Africa/Cairo"), weekdays=frozenset({3})), "2026-04-24T10:00Z", "2026-04-23T22:00Z"),
        # Christmas is a Friday, the day after it also a holiday.
        (
            exempt(weekdays=frozenset({SATURDAY, SUNDAY}), countries=(Country("DE"),)),
            "2026-12-28T12:00Z",
            "2026-12-27T23:00Z",
        ),
        (exempt(dates=frozenset({date(2026, 1, 1)})), "2026-12-31T12:00Z", "2026-01-01T23:00Z"),
        (exempt(dates=frozenset({date(2025, 1, 1)})), "2026-12-31T12:00Z", None),
        (exempt(weekdays=frozenset(range(7))), "2026-12-31T12:00Z", None),
    ],
)
def test_exempt_days_last_changed_at_a_midnight(days: ExemptDays, at: str, changed: str | None) -> None:
    at_ms, changed_ms = instant_ms(at), None if changed is None else instant_ms(changed)
    assert days.changed_ms(at_ms, after_ms=0) == changed_ms
    if changed_ms is not None:
        assert days.changed_ms(at_ms, after_ms=changed_ms - 1) == changed_ms
        assert days.changed_ms(at_ms, after_ms=changed_ms) is None


@pytest.mark.parametrize(
    ("newest", "at", "verdict", "observed_ms"),
    [
        ("2026-11-27T20:00Z", "2026-11-27T21:59:59Z", Verdict.PASS, 2 * HOUR_MS - 1_000),
        ("2026-11-27T20:00Z", "2026-11-27T22:30Z", Verdict.ERROR, 150 * MINUTE_MS),  # Friday 23:30
        ("2026-11-27T20:00Z", "2026-11-30T00:30Z", Verdict.PASS, 90 * MINUTE_MS),
        ("2026-11-29T12:00Z", "2026-11-30T00:30Z", Verdict.PASS, 90 * MINUTE_MS),  # a record of Sunday
        ("2026-11-27T20:00Z", "2026-11-30T01:00Z", Verdict.ERROR, 2 * HOUR_MS),
        ("2026-11-30T00:00Z", "2026-11-30T00:30Z", Verdict.PASS, 30 * MINUTE_MS),
    ],
)
def test_staleness_counts_from_the_end_of_exempt_days(newest: str, at: str, verdict: Verdict, observed_ms: int) -> None:
    found = stale(board(error_after="2 h"), newest, at)
    assert (found.verdict, found.observed_ms) == (verdict, observed_ms)


def test_what_was_measured_says_which_exempt_time_ended() -> None:
    spec = board({"weekends": WEEKENDS, "first": {"zone": "UTC", "days_of_month": [1]}}, error_after="2 h")
    found = stale(spec, "2026-11-27T20:00Z", "2026-11-30T01:30Z")
    assert measurement_text(found) == (
        "staleness of flight_board is 2 h 30 min, counted from 2026-11-29T23:00:00.000Z, "
        "when the exempt time of weekends ended; error from 2 h on"
    )
    assert found.crossed_ms == instant_ms("2026-11-30T01:00Z")


def test_in_exempt_days_no_incident_changes() -> None:
    spec = board(error_after="2 h")
    reasons = {
        at: excluded_because(spec, instant_ms(at), is_past=False)
        for at in ("2026-11-27T22:59Z", "2026-11-27T23:00Z", "2026-11-29T22:59Z", "2026-11-29T23:00Z")
    }
    assert [*reasons.values()] == [None, "calendar", "calendar", None]


def test_hours_and_exempt_days_hold_together() -> None:
    office = {"zone": "Europe/Berlin", "from": "07:00", "to": "19:00"}
    spec = board(error_after="2 h", calendar=office)
    # Saturday 12:00, Monday 06:00 and 08:00; what counts begins at 07:00.
    at = ["2026-11-28T11:00Z", "2026-11-30T05:00Z", "2026-11-30T07:00Z"]
    assert [spec.is_judged(instant_ms(each)) for each in at] == [False, False, True]
    assert stale(spec, "2026-11-27T12:00Z", at[-1]).observed_ms == HOUR_MS


def test_a_limit_longer_than_a_gap_is_reached_in_a_longer_one(tmp_path: Path) -> None:
    """A closed Tuesday leaves a Monday alone: its 24 hours are too few for 30, which pass on Thursday at 06:00."""
    (tmp_path / "closures.txt").write_text("2026-12-01\n")
    closed = {"zone": "Europe/Berlin", "files": ["closures.txt"]}
    spec = board({"weekends": WEEKENDS, "closures": closed}, tmp_path, error_after="30 h")
    verdicts = {
        at: stale(spec, "2026-11-27T20:00Z", at).verdict
        for at in ("2026-11-30T22:59Z", "2026-12-03T04:59Z", "2026-12-03T05:00Z")
    }
    assert [*verdicts.values()] == [Verdict.PASS, Verdict.PASS, Verdict.ERROR]


def test_too_few_records_are_unknown_until_they_could_have_come_after_exempt_days() -> None:
    spec = board(subject="carrier_state", measure="records", error_below=3, over="1 h")
    facts = [
        Fact(what=FactKind.BEGUN, subject="flights", at_ms=0),
        Fact(what="records", subject="carrier_state", over_ms=HOUR_MS, n=2),
    ]
    for minute, verdict in ((59, Verdict.UNKNOWN), (60, Verdict.ERROR)):
        at_ms = instant_ms(MONDAY) + minute * MINUTE_MS
        (found,) = statuses([spec], FLIGHTS, facts, (), at_ms=at_ms)
        assert found.verdict is verdict


P99 = {"subject": "carrier_delays", "measure": "latency_p99", "error_after": "1 s", "over": "10 min"}
BURN = {"subject": "carrier_delays", "measure": "burn_rate", "threshold": "1 s", "target": 0.99, "over": "1 h"}


@pytest.mark.parametrize(
    ("keys", "minutes", "lengths"),
    [
        # A check in exempt days, or long after them, counts over all of the time.
        (P99, -1, [10]),
        (P99, 4, [4]),
        (P99, 10, [10]),
        (P99, 11, [10]),
        # A burn rate is counted over an hour and its last five minutes.
        (BURN, 4, [4, 4]),
        (BURN, 20, [20, 5]),
        (BURN, 61, [60, 5]),
    ],
)
def test_what_is_counted_is_counted_from_the_end_of_exempt_days(
    keys: dict[str, Any], minutes: int, lengths: list[int]
) -> None:
    counted_ms = board(**keys).counted_ms(instant_ms(MONDAY) + minutes * MINUTE_MS)
    assert counted_ms == tuple(length * MINUTE_MS for length in lengths)


def test_a_check_at_the_end_of_exempt_days_counts_the_last_millisecond() -> None:
    assert board(**P99).counted_ms(instant_ms(MONDAY)) == (1,)


def test_slow_records_of_exempt_days_break_no_percentile() -> None:
    """Facts were counted 4 min after the weekend, and are judged again a minute later."""
    spec, measured_ms = board(**P99), instant_ms(MONDAY) + 4 * MINUTE_MS
    of_monday = Fact(what="latency", subject="carrier_delays", over_ms=4 * MINUTE_MS, bucket=bucket_of(500), n=9)
    of_both = Fact(what="latency", subject="carrier_delays", over_ms=10 * MINUTE_MS, bucket=bucket_of(9_000), n=99)
    for at_ms in (measured_ms, measured_ms + MINUTE_MS):
        (found,) = statuses([spec], FLIGHTS, [of_monday, of_both], (), at_ms=at_ms, measured_ms=measured_ms)
        assert (found.verdict, found.records) == (Verdict.PASS, 9)
        assert ", counted from 2026-11-29T23:00:00.000Z, when the exempt time of weekends ended; " in measurement_text(
            found
        )


@pytest.mark.parametrize(
    ("at", "since"),
    [
        ("2026-12-02T12:00Z", "2026-12-01T12:00Z"),
        ("2026-11-30T23:00Z", "2026-11-29T23:00Z"),  # the whole Monday
        ("2026-11-30T00:00Z", "2026-11-27T00:00Z"),  # an hour of Monday, and 23 of Friday
        ("2026-11-29T12:00Z", "2026-11-26T23:00Z"),
    ],
)
def test_groups_are_remembered_over_exempt_days(at: str, since: str) -> None:
    spec = board(subject="carrier_state", by=["carrier"], error_after="2 h")
    assert spec.remembered_since_ms(instant_ms(at)) == instant_ms(since)
    without = board({"holidays": {"zone": "UTC", "days_of_month": [15]}}, error_after="2 h", over="1 h")
    assert without.remembered_since_ms(instant_ms(at)) == instant_ms(at) - HOUR_MS


@pytest.mark.parametrize(
    ("at", "verdict", "crossed"),
    [
        # The day of Friday ends on Saturday at 01:00 in Berlin. Its deadline is moved from Saturday to Monday, 06:00.
        ("2026-11-30T04:59Z", Verdict.PASS, None),
        ("2026-11-30T05:00Z", Verdict.ERROR, "2026-11-30T05:00Z"),
    ],
)
def test_a_deadline_in_exempt_days_is_moved_behind_them(at: str, verdict: Verdict, crossed: str | None) -> None:
    spec = board(complete_by="06:00 Europe/Berlin")
    thursday = instant_ms("2026-11-27T00:00Z")
    fact = Fact(what=FactKind.COMPLETE, subject="flight_board", at_ms=thursday, n=thursday + HOUR_MS)
    (found,) = statuses([spec], FLIGHTS, [fact], (), at_ms=instant_ms(at))
    assert (found.verdict, found.crossed_ms) == (verdict, None if crossed is None else instant_ms(crossed))
    said = "by 06:00 Europe/Berlin, counted from 2026-11-29T23:00:00.000Z, when the exempt time of weekends ended"
    assert measurement_text(found).endswith(said) == (verdict is Verdict.ERROR)


def test_a_deadline_before_exempt_days_stays_where_it_is() -> None:
    spec = board(complete_by="06:00 Europe/Berlin")
    wednesday = instant_ms("2026-11-26T00:00Z")
    fact = Fact(what=FactKind.COMPLETE, subject="flight_board", at_ms=wednesday, n=wednesday + HOUR_MS)
    (found,) = statuses([spec], FLIGHTS, [fact], (), at_ms=instant_ms("2026-11-30T00:00Z"))
    assert (found.verdict, found.crossed_ms) == (Verdict.ERROR, instant_ms("2026-11-27T05:00Z"))


def test_counts_that_do_not_add_up_are_as_old_as_the_time_after_exempt_days() -> None:
    spec = board(subject="outcomes", measure="completeness", error_after="1 h")
    accounts = [{"operator": "o", "open_since_ms": instant_ms("2026-11-28T12:00Z")}]
    for minutes, verdict in ((59, Verdict.PASS), (60, Verdict.ERROR)):
        (found,) = statuses([spec], FLIGHTS, (), accounts, at_ms=instant_ms(MONDAY) + minutes * MINUTE_MS)
        assert (found.verdict, found.observed_ms) == (verdict, minutes * MINUTE_MS)


@pytest.mark.parametrize(
    ("days", "longest"),
    [
        ([exempt(weekdays=frozenset({SATURDAY, SUNDAY}))], 5),
        ([exempt(weekdays=frozenset({0, 2}))], 4),
        ([exempt(days_of_month=frozenset({31}))], 60),  # from April 1 to May 30
        ([exempt(days_of_month=frozenset(range(1, 32)))], 0),
        ([exempt(weekdays=frozenset({SATURDAY})), exempt(weekdays=frozenset({0, 1, 2, 3, 4, SUNDAY}))], 0),
        # Days of another zone begin elsewhere.
        ([exempt(weekdays=frozenset({SATURDAY})), exempt(zone=ZoneInfo("UTC"), weekdays=frozenset({SUNDAY}))], 6),
        ([exempt(dates=frozenset({date(2026, 12, 24)}), countries=(Country("DE"),))], None),
        ([], None),
    ],
)
def test_days_that_come_again_and_again_leave_so_many_days_between_them(
    days: list[ExemptDays], longest: int | None
) -> None:
    assert longest_between_days(days) == longest


WRONG = """
[calendars.weekends]
zone = "Berlin"
weekdays = ["Sat", "Sunn"]
[calendars.nothing]
zone = "UTC"
[calendars.closures]
zone = "UTC"
files = ["closures.txt", "none.txt", "nowhere.txt"]
[calendars.months]
zone = "UTC"
days_of_month = [1, 32]
[calendars.always]
zone = "UTC"
weekdays = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
[calendars.abroad]
zone = "UTC"
holidays = ["Germany"]
dates = ["2026-12-24"]
[calendars.Days]
zone = "UTC"
[calendars.good]
zone = "UTC"
weekdays = ["Sat", "Sun"]
[flights.board]
subject = "flight_board"
error_after = "2 min"
owner = "desk"
except = ["weekends"]
[flights.second]
subject = "flight_board"
error_after = "2 min"
owner = "desk"
except = ["good", "week_ends"]
[flights.third]
subject = "flight_board"
warn_after = "2 min"
error_after = "5 d"
owner = "desk"
except = ["good"]
[flights.fourth]
subject = "carrier_state"
measure = "records"
error_below = 1
over = "6 d"
owner = "desk"
except = ["good"]
"""
FOUND = [
    "calendars.weekends.zone: is 'Berlin', which is no time zone; write a name such as zone = \"Europe/Berlin\"",
    "calendars.weekends.weekdays: has 'Sunn'; use any of Mon, Tue, Wed, Thu, Fri, Sat, Sun; did you mean Sun?",
    "calendars.nothing.weekdays: is missing, and so is everything else that gives days; "
    'write weekdays = ["Sat", "Sun"] or holidays = ["DE-BY"] or days_of_month = [1, -1] or files = ["closures.txt"]',
    "calendars.closures.files: names closures.txt, whose line 3 is '24.12.2026', which is no date; "
    "write a date a line, such as 2026-12-24",
    "calendars.closures.files: names closures.txt, whose line 5 is '2026-02-30', which is no date; "
    "write a date a line, such as 2026-12-24",
    "calendars.closures.files: names none.txt, which has no date; write a date a line, or leave it out",
    "calendars.closures.files: names nowhere.txt, which cannot be read: No such file or directory; "
    "write the file into the folder of this one, or leave it out",
    "calendars.months.days_of_month: has 32; "
    "write numbers from 1 to 31, or -1 for the last day, such as days_of_month = [1, -1]",
    "calendars.always.weekdays: exempts every day, so that nothing is ever judged; leave a day out",
    "calendars.abroad.holidays: has 'Germany'; "
    'write codes of countries, or of their parts, such as holidays = ["DE-BY"]',
    "calendars.abroad.dates: is not a valid key here; known keys: days_of_month, files, holidays, weekdays, zone",
    "calendars.Days: is not a valid name of a calendar; use a lower-case letter, then lower-case letters, digits and _",
    "flights.second.except: has 'week_ends', which is no calendar; did you mean weekends?",
    "flights.third.error_after: is 5 d, but at most 5 d lie between the days that except leaves out: "
    "it counts anew after each, and never breaks; write a length below 5 d",
    "flights.fourth.over: is 6 d, but at most 5 d lie between the days that except leaves out: "
    "it counts anew after each, and never breaks; write a length below 5 d",
]


def test_every_mistake_of_calendars_is_told_once_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "slas.toml").write_text(WRONG)
    (tmp_path / "closures.txt").write_text("# closed\n2026-12-24  # Christmas Eve\n24.12.2026\n\n2026-02-30\n")
    (tmp_path / "none.txt").write_text("# nothing yet\n")
    found = mistakes(tmp_path / "slas.toml", [FLIGHTS, FLIGHTS], ["flights"])
    lines = "\n".join(map(str, found)).splitlines()
    assert lines == [f"slas.toml: {line}" for line in FOUND]


def test_an_sla_with_a_wrong_calendar_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "slas.toml").write_text(WRONG)
    found = load_usable(tmp_path / "slas.toml", FLIGHTS)
    assert (found.specs, [*found.errors]) == ((), ["board", "second", "third", "fourth"])
    assert str(found.errors["board"]).startswith("slas.toml: calendars.weekends.zone: is 'Berlin'")


def test_a_file_without_calendars_is_told_how_to_write_one() -> None:
    table = {"subject": "flight_board", "error_after": "2 min", "owner": "desk", "except": ["days_off"]}
    message = r"board\.except: has 'days_off', which is no calendar; write a table \[calendars\.days_off\]$"
    with pytest.raises(InvalidSpec, match=message):
        parse({"flights": {"board": table}}, FLIGHTS, file="slas.toml")


def test_calendars_that_leave_no_day_are_refused_where_they_are_named() -> None:
    workdays = {"zone": "Europe/Berlin", "weekdays": ["Mon", "Tue", "Wed", "Thu", "Fri"]}
    message = r"board\.except: exempts every day, so that nothing is ever judged; leave a calendar out$"
    with pytest.raises(InvalidSpec, match=message):
        board({"weekends": WEEKENDS, "workdays": workdays}, error_after="2 min")


OF_COUNTRIES = """
[calendars.holidays]
zone = "UTC"
holidays = ["DE", "XX", "DE-XX", "VA-XX"]
[flights.board]
subject = "flight_board"
error_after = "2 min"
owner = "desk"
except = ["holidays"]
[flights.always]
subject = "flight_board"
error_after = "2 min"
owner = "desk"
"""


def test_unknown_countries_are_mistakes_of_the_check_and_of_the_slas_that_name_them(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.topologies.mkdir()
    (project.topologies / "flights.toml").write_text((PROJECT / "jobs" / "topologies" / "flights.toml").read_text())
    project.slas.parent.mkdir()
    project.slas.write_text(OF_COUNTRIES)
    with pytest.raises(InvalidSpec) as refused:
        check([], tmp_path / "warehouse", project)
    at = "slas.toml: calendars.holidays.holidays: "
    country, part, other = (line for line in str(refused.value).splitlines() if line.startswith(at))
    assert country == (
        f"{at}has 'XX', a country that the package holidays does not know; "
        'write the code of a country, such as ["DE-BY"], or a file of its dates'
    )
    assert part.startswith(f"{at}has 'DE-XX', a part of DE that the package holidays does not know; use one of DE-BB, ")
    assert other == f"{at}has 'VA-XX', a part of VA that the package holidays does not know; leave the part out"
    found = load_usable(project.slas, FLIGHTS)
    assert ([spec.name for spec in found.specs], [*found.errors]) == (["always"], ["board"])


def test_a_missing_library_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    project = Project(tmp_path)
    project.slas.parent.mkdir(exist_ok=True)
    project.slas.write_text(OF_COUNTRIES)
    message = "slas.toml: calendars.holidays.holidays: needs a package: holidays is not installed; run `make setup`"
    assert [str(each) for each in mistakes(project.slas, [FLIGHTS], ["flights"])] == [message]
    found = load_usable(project.slas, FLIGHTS)
    assert ([spec.name for spec in found.specs], str(found.errors["board"])) == (["always"], message)
    # Whoever judges nothing needs no library: drivers, and commands that show names.
    assert [spec.name for spec in slas_in(project, FLIGHTS).specs] == ["board", "always"]


def test_the_library_is_imported_by_those_alone_who_judge_by_a_calendar_with_a_country(tmp_path: Path) -> None:
    file = tmp_path / "expectations" / "slas.toml"
    file.parent.mkdir()
    file.write_text(OF_COUNTRIES.replace(', "XX", "DE-XX", "VA-XX"', ""))
    weekends = tmp_path / "weekends.toml"
    weekends.write_text(file.read_text().replace('holidays = ["DE"]', 'weekdays = ["Sun"]'))
    script = f"""
import sys
from pathlib import Path
from tidemark.model import topology
from tidemark.model.slas import sla_spec
flights = topology.load(Path({str(PROJECT / "jobs" / "topologies" / "flights.toml")!r}))
with_country, weekends = Path({str(file)!r}), Path({str(weekends)!r})
def imported(of):
    assert of
    return "holidays" in sys.modules
print(imported(sla_spec.load_usable(weekends, flights).specs[0].is_judged(0)))
print(imported(sla_spec.mistakes(with_country, [flights], ["flights"]) == []))
print(imported(sla_spec.load_usable(with_country, flights).specs))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False", "True"]


def test_calendars_are_no_topology(tmp_path: Path) -> None:
    (tmp_path / "slas.toml").write_text('[calendars]\nrecorded = true\n[flights.calendars]\nsubject = "x"\n')
    found = [str(each) for each in mistakes(tmp_path / "slas.toml", [], ["flights"])]
    assert found == ["slas.toml: calendars.recorded: is True; write a table [calendars.recorded]"]
    with pytest.raises(InvalidSpec, match="name: is 'calendars', which is reserved for the calendars of SLAs; use ano"):
        topology.parse({**TOML, "name": "calendars"}, file="calendars.toml")


def test_files_of_dates_are_followed(tmp_path: Path) -> None:
    (tmp_path / "slas.toml").write_text(WRONG)
    names = ("closures.txt", "none.txt", "nowhere.txt")
    assert files_of_dates(tmp_path / "slas.toml") == [tmp_path / name for name in names]
    assert files_of_dates(tmp_path / "nowhere.toml") == []


def test_the_example_of_days_off_loads(tmp_path: Path) -> None:
    """In Bavaria 2027-01-06 is a holiday, a Wednesday; the file has a day of the company."""
    page = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
    section = page.partition("### Days off")[2].partition("\n### ")[0]
    (example,) = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    (tmp_path / "closures.txt").write_text("2027-01-07\n")
    assert [*validator("slas").iter_errors(tomllib.loads(example))] == []
    (spec,) = parse(tomllib.loads(example), FLIGHTS, file="slas.toml", folder=tmp_path)
    days = {day: spec.is_judged(instant_ms(f"2027-01-0{day}T12:00Z")) for day in range(1, 10)}
    assert [day for day, is_judged in days.items() if is_judged] == [4, 5, 8]
