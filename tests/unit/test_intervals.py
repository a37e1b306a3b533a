from __future__ import annotations

import re
from datetime import date

import duckdb
import pytest

from tidemark.errors import InvalidArgument
from tidemark.model.settings.intervals import Grain, Interval, instant_ms, instants_ms, is_text, iso, iso_day

HOUR, DAY = Grain.HOUR.length_ms, Grain.DAY.length_ms


def test_an_interval_is_half_open():
    predicate = Interval(1_000, 2_000).holds("finished_at")
    rows = duckdb.sql(
        "select ms from (select ms, make_timestamp(ms * 1000) as finished_at from range(0, 3001, 500) t(ms)) "
        f"where {predicate}"
    )
    assert [ms for (ms,) in rows.fetchall()] == [1_000, 1_500]


def test_touched_time_is_widened_to_whole_intervals_only():
    assert Interval(HOUR - 1, HOUR + 1).widened(Grain.HOUR) == Interval(0, 2 * HOUR)
    assert Interval(HOUR, 2 * HOUR).widened(Grain.HOUR) == Interval(HOUR, 2 * HOUR)
    assert Interval(-1, 1).widened(Grain.DAY) == Interval(-DAY, DAY)


@pytest.mark.parametrize("end_ms", [0, -1])
def test_an_interval_without_an_instant_is_refused(end_ms):
    with pytest.raises(InvalidArgument, match=r"must start before it ends.*swap"):
        Interval(0, end_ms)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2013-03-10T07:00:00Z", 1_362_898_800_000),
        ("2013-03-10T03:00:00-04:00", 1_362_898_800_000),
        ("1970-01-02", DAY),
    ],
)
def test_an_instant_is_utc_unless_it_says_otherwise(text, ms):
    assert instant_ms(text) == ms
    assert instant_ms(iso(ms)) == ms


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "",
        " 2026-01-31",
        "2026-01-31\n",
        "20260131",
        "2026-W05-6",
        "2026-02-30",
        "2026-01-31T24:01",
        "2026-01-31T12",
        "2026-01-31T12:00:00z",
        "2026-01-31T12:00:00+0100",
        "2026-01-31T12:00:00+01:00:30",
        "2026-01-31T12:00:00,5",
        "٢٠٢٦-٠١-٣١",
        "1769860800000",
    ],
)
def test_another_form_than_an_instant_is_refused(text):
    with pytest.raises(
        InvalidArgument, match=re.escape(f"ISO 8601, got {text!r}; write, for example, 2026-01-31T12:0")
    ):
        instant_ms(text)


def test_a_plus_that_a_url_lost_is_named():
    with pytest.raises(InvalidArgument, match=r"got '2026-01-31T12:00:00 01:00'; .*; in a URL, write . as %2B"):
        instant_ms("2026-01-31T12:00:00 01:00")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00"])
def test_an_instant_of_another_age_is_refused(text):
    with pytest.raises(InvalidArgument, match=f"after 1970 and before the year 10000, got '{text}'; correct the year"):
        instant_ms(text)


def test_the_ends_of_a_span_are_in_order():
    assert instants_ms("1970-01-02", "1970-01-03T00:00") == (DAY, 2 * DAY)
    assert instants_ms(None, "1970-01-02 00:00:00.5Z") == (None, DAY + 500)
    for end in ("1970-01-02", "1970-01-01"):
        with pytest.raises(
            InvalidArgument, match=f"from must be before to, got from '1970-01-02' and to '{end}'; swap"
        ):
            instants_ms("1970-01-02", end)


def test_a_day_has_one_form():
    assert iso_day("2013-06-27") == date(2013, 6, 27)
    for text in ("20130627", "2013-02-30", "2013-06-27T00:00", ""):
        with pytest.raises(
            InvalidArgument, match=f"a day must be in ISO 8601, got '{text}'; write, for example, 2013-"
        ):
            iso_day(text)


def test_text_in_a_predicate_stays_text():
    predicate = is_text("run_id", "x' or '1' = '1")
    rows = duckdb.sql(f"select run_id from (values ('a'), ('x'' or ''1'' = ''1')) t(run_id) where {predicate}")
    assert rows.fetchall() == [("x' or '1' = '1",)]
