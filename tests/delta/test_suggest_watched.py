"""`tidemark suggest slas watch` proposes limits of watched tables from their past, worked out by hand.

The past begins on Monday, 2026-06-01, and days are those of UTC.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tidemark.cli.main import _parser
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import Project
from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.slas.calendars import ExemptDays
from tidemark.model.slas.sla_spec import usable_slas, watched_topology
from tidemark.model.tables.catalog import TABLE_AGES
from tidemark.query.sql import Warehouse
from tidemark.sla.watched_suggestion import RecordedCommit, TableProposal, propose, suggest_watched
from tidemark.storage.delta.report_tables import replace_rows

HOUR, DAY = 3_600_000, 86_400_000
MONDAY = date(2026, 6, 1)
UTC_ZONE = ZoneInfo("UTC")


def at(day: date, hour: float) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000 + hour * HOUR)


def commits(hours: Iterable[int], *, rows: int = 100) -> list[RecordedCommit]:
    """Commits at such instants, each with an event of an hour before it."""
    found: list[RecordedCommit] = []
    for at_ms in hours:
        gap_ms = at_ms - found[-1].at_ms if found else None
        peak_ms = None if gap_ms is None else gap_ms + HOUR
        found.append(RecordedCommit(at_ms=at_ms, gap_ms=gap_ms, peak_ms=peak_ms, rows=rows))
    return found


def evenings(days: int, but: Callable[[date], bool] = lambda _: False) -> list[RecordedCommit]:
    """A commit at 18:00 of so many days, *but* some."""
    all_days = [MONDAY + timedelta(days=n) for n in range(days)]
    return commits(at(day, 18) for day in all_days if not but(day))


def proposed(past: list[RecordedCommit], days: int, *calendars: ExemptDays) -> TableProposal:
    return propose(past, zone=UTC_ZONE, calendars=calendars, now_ms=at(MONDAY + timedelta(days=days), 0))


def limits(proposal: TableProposal) -> dict[str, int]:
    return {str(each.measure): each.limit for each in proposal.limits}


def is_weekend(day: date) -> bool:
    return day.weekday() >= 5


def test_a_limit_is_one_and_a_half_of_what_three_days_reached() -> None:
    # Every 4 h for 30 days, but 10 h between two commits of the days 5, 9 and 20, and 12 h on day 25.
    gone = {(5, 8), (9, 8), (20, 8), (25, 8)}
    hours = [(n, hour) for n in range(30) for hour in range(0, 24, 4)]
    late = {n: (2 if n < 25 else 4) for n, _ in gone}
    past = commits(
        at(MONDAY + timedelta(days=n), hour + (late.get(n, 0) if hour == 12 else 0))
        for n, hour in hours
        if (n, hour) not in gone
    )
    # Of 12 h, 10 h, 10 h and 10 h the third is 10 h: 15 h, rounded up to a day. Of ages it is 11 h, and 16 h 30 min.
    # At 14:00 of those days four commits are in the last day: 400 rows, divided by 1.5, cut to two digits.
    assert limits(proposed(past, 30)) == {"commit_age": DAY, "staleness": DAY, "volume": 260}
    (age,) = (each for each in proposed(past, 30).limits if str(each.measure) == "commit_age")
    assert age.fact == (
        "just before a commit: median 4 h, p99 10 h, longest 12 h, on 3 days 10 h or more; "
        "0 of 175 would have broken the limit"
    )


def test_what_two_days_reached_may_have_been_faults() -> None:
    past = commits(at(MONDAY, hour) for hour in range(0, 30 * 24, 4) if not 100 < hour < 140 and not 400 < hour < 440)
    assert limits(proposed(past, 30))["commit_age"] == 6 * HOUR  # 1.5 times 4 h


def test_weekdays_without_commits_are_days_off_and_ages_count_from_their_end() -> None:
    past = proposed(evenings(42, is_weekend), 42)
    (off,) = past.exempt
    assert (off.weekdays, off.days_of_month, off.zone) == ({5, 6}, frozenset(), UTC_ZONE)
    # 24 h on four days of each week, and 18 h on Mondays instead of 72 h: 36 h, in whole days.
    assert limits(past)["commit_age"] == 2 * DAY
    assert "no commit on Sat, Sun, 12 of these days" in past.facts


def test_one_commit_on_a_saturday_leaves_no_day_off_and_a_limit_beyond_weekends() -> None:
    past = proposed(evenings(42, lambda day: is_weekend(day) and day != date(2026, 6, 20)), 42)
    assert past.exempt == ()
    assert limits(past)["commit_age"] == 5 * DAY  # 1.5 times 72 h, in whole days


@pytest.mark.parametrize(("holidays", "fits"), [(2, False), (3, True)])
def test_a_calendar_with_dates_fits_from_three_of_them_in_the_past(holidays: int, *, fits: bool) -> None:
    dates = [date(2026, 6, day) for day in (4, 11, 24)][:holidays]
    closed = ExemptDays(name="closed", zone=UTC_ZONE, weekdays=frozenset({5, 6}), dates=frozenset(dates))
    past = proposed(evenings(42, lambda day: is_weekend(day) or day in dates), 42, closed)
    assert [each.name for each in past.exempt] == (["closed"] if fits else [""])
    told = [fact for fact in past.facts if "other day" in fact]
    assert told == (
        [] if fits else ["no commit on 2 other days, at last 2026-06-04, 2026-06-11: a calendar may have them"]
    )


def test_a_calendar_on_one_of_whose_days_a_commit_came_does_not_fit() -> None:
    dates = frozenset(date(2026, 6, day) for day in (4, 11, 24, 25))
    closed = ExemptDays(name="closed", zone=UTC_ZONE, dates=dates)
    past = evenings(42, lambda day: day in dates and day.day != 25)
    assert proposed(past, 42, closed).exempt == ()


@pytest.mark.parametrize(("days", "fits"), [(80, False), (92, True)])
def test_month_ends_are_days_off_from_three_of_them_in_the_past(days: int, *, fits: bool) -> None:
    past = evenings(days, lambda day: (day + timedelta(days=1)).day == 1)
    assert [each.days_of_month for each in proposed(past, days).exempt] == ([{-1}] if fits else [])


def test_a_table_that_is_written_once_a_week_has_no_days_off() -> None:
    past = proposed(evenings(210, lambda day: day.weekday() != 6), 210)
    assert past.exempt == ()
    assert limits(past)["commit_age"] == 11 * DAY  # 1.5 times 7 d, in whole days


@pytest.mark.parametrize(
    ("past", "days", "found"),
    [
        (evenings(19), 40, "19 commits that changed data on 18 of 39 days"),
        (commits(at(MONDAY, hour) for hour in range(480)), 20, "480 commits that changed data on 19 of 19 days"),
    ],
)
def test_of_a_short_past_there_is_no_limit(past: list[RecordedCommit], days: int, found: str) -> None:
    proposal = proposed(past, days)
    assert proposal.limits == ()
    assert proposal.facts == (f"{found}: a proposal needs at least 20 commits in 21 days",)


def row(table: str, version: int, commit: RecordedCommit) -> dict[str, Any]:
    known = {"committed_at": commit.at_ms, "gap_ms": commit.gap_ms, "peak_high_ms": commit.peak_ms, "rows": commit.rows}
    about = {"topology": WATCH, "table": table, "table_id": table, "version": version, "clock": "writer"}
    return {**about, "change": "appended", "operation": "WRITE", "bytes": 1, "read_at": commit.at_ms, **known}


def write(home: Path, of_tables: dict[str, list[RecordedCommit]]) -> None:
    rows = [row(table, n, commit) for table, past in of_tables.items() for n, commit in enumerate(past)]
    replace_rows(rows, TABLE_AGES, Layout(home).report_table(WATCH, TABLE_AGES.name), where="true")


SILVER = {"tables": ["/lake/silver"], "owner": "desk"}


def test_the_text_is_valid_and_says_what_it_rests_on(tmp_path: Path) -> None:
    past = evenings(42, is_weekend)
    write(tmp_path, {"/lake/silver/eu/orders": past, "/lake/silver/stock": past, "/lake/gold": past})
    content = {"watch": {"silver": SILVER, "kept": {"subject": "silver.stock", "error_after": "3 d"}}}
    watch = watched_topology(content, file="slas.toml")
    specs = usable_slas(content, watch, file="slas.toml").specs
    now_ms = at(MONDAY + timedelta(days=42), 0)
    orders, stock = suggest_watched(Warehouse(tmp_path), watch, specs, {}, now_ms=now_ms)
    # Rows of two days are no limit: after each weekend too few of their checks are left, 12 of the 20 that are needed.
    assert str(orders).splitlines() == [
        "# silver.eu/orders: 30 commits that changed data on 29 of 41 days.",
        "# no commit on Sat, Sun, 12 of these days.",
        "",
        "[calendars.off_sat_sun]",
        'zone = "UTC"',
        'weekdays = ["Sat", "Sun"]',
        "",
        "# staleness just before a commit: median 1 d 1 h, p99 1 d 1 h, longest 1 d 1 h, on 3 days 1 d 1 h or more; "
        "0 of 29 would have broken the limit.",
        "[watch.silver_eu_orders_staleness]",
        'subject = "silver.eu/orders"',
        'measure = "staleness"',
        'error_after = "2 d"',
        'except = ["off_sat_sun"]',
        "",
        "# commit_age just before a commit: median 1 d, p99 1 d, longest 1 d, on 3 days 1 d or more; "
        "0 of 29 would have broken the limit.",
        "[watch.silver_eu_orders_commit_age]",
        'subject = "silver.eu/orders"',
        'measure = "commit_age"',
        'error_after = "2 d"',
        'except = ["off_sat_sun"]',
    ]
    assert "# staleness has an SLA already: kept." in str(stock)
    assert "[calendars" not in str(stock)  # the first table has it
    pasted = tomllib.loads(f"{orders}\n{stock}")
    pasted["watch"] |= content["watch"]
    assert [spec.name for spec in usable_slas(pasted, watch, file="slas.toml").specs] == [
        "silver_eu_orders_staleness",
        "silver_eu_orders_commit_age",
        "silver_stock_commit_age",
        "kept",
    ]


def test_the_command_proposes_and_changes_nothing(
    tmp_path: Path, own_project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    options = _parser().parse_args(["--warehouse", str(tmp_path), "suggest", "slas", "watch"])
    with pytest.raises(InvalidArgument, match="it has no set of watched tables"):
        options.run(options)
    own_project.slas.write_text('[watch.silver]\ntables = ["/lake/silver"]\n')
    write(tmp_path, {"/lake/gold": []})
    with pytest.raises(InvalidArgument, match="table_ages has no commit of the tables in"):
        options.run(options)
    now_ms = wall_clock_ms()
    write(tmp_path, {"/lake/silver/orders": commits(range(now_ms - 20 * DAY, now_ms, HOUR))})
    assert options.run(options) == 1
    assert "a proposal needs at least 20 commits in 21 days" in capsys.readouterr().out
    write(tmp_path, {"/lake/silver/orders": commits(range(now_ms - 30 * DAY, now_ms, HOUR))})
    assert options.run(options) == 0
    said = capsys.readouterr().out
    assert "nobody is alerted" in said
    assert '[watch.silver_orders_commit_age]\nsubject = "silver.orders"' in said
    assert 'owner = "' in said
    assert own_project.slas.read_text() == '[watch.silver]\ntables = ["/lake/silver"]\n'
