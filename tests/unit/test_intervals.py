from __future__ import annotations

import duckdb
import pytest

from tidemark.errors import InvalidArgument
from tidemark.model.settings.intervals import Grain, Interval, instant_ms, is_text, iso

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


def test_what_is_no_instant_is_refused():
    with pytest.raises(InvalidArgument, match="ISO 8601, got 'yesterday'; write"):
        instant_ms("yesterday")


def test_text_in_a_predicate_stays_text():
    predicate = is_text("run_id", "x' or '1' = '1")
    rows = duckdb.sql(f"select run_id from (values ('a'), ('x'' or ''1'' = ''1')) t(run_id) where {predicate}")
    assert rows.fetchall() == [("x' or '1' = '1",)]
