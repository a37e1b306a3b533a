"""Limits by hour of the week, worked out by hand.

Weeks are counted back from 0, hours of the week from Monday, 00:00.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.sla.measures.hours_of_week import HOURS, HourBlock, hourly_limits, usual_maxima

WEEKS = range(4)


def week(day_ms: float, night_ms: float) -> dict[int, float]:
    """A week with one value on weekdays from 07:00 to 19:00."""
    return {h: day_ms if h // 24 < 5 and 7 <= h % 24 < 19 else night_ms for h in range(HOURS)}


def highest(*weeks: Mapping[int, float]) -> dict[tuple[int, int], float]:
    return {(number, hour): ms for number, of_week in enumerate(weeks) for hour, ms in of_week.items()}


def test_the_usual_maximum_is_the_median_of_weekly_maxima() -> None:
    # The fault of a week moves nothing; the maximum of an hour counts for both hours beside it.
    fault = week(8_000, 100_000) | {34: 900_000.0}
    usual = usual_maxima(highest(*[week(8_000, 100_000)] * 3, fault), WEEKS)
    assert {hour: usual[hour] for hour in (0, 6, 7, 8, 17, 18, 19, 33, 34, 35, 167)} == {
        0: 100_000, 6: 100_000, 7: 100_000, 8: 8_000, 17: 8_000, 18: 100_000, 19: 100_000, 33: 8_000, 34: 8_000,
        35: 8_000, 167: 100_000,
    }  # fmt: skip
    # Of four weeks with 10, 20, 40 and 80 s the median is 30 s.
    rising = highest(*(dict.fromkeys(range(HOURS), 10_000.0 * 2**n) for n in WEEKS))
    assert set(usual_maxima(rising, WEEKS).values()) == {30_000}


def test_an_hour_measured_in_two_weeks_has_no_usual_maximum() -> None:
    mondays = highest({10: 5.0}, {10: 7.0}, {11: 9.0})
    # Only 10 and 11 are beside a measurement in three weeks.
    assert usual_maxima(mondays, WEEKS) == {10: 7.0, 11: 7.0}


def test_limits_are_twice_the_usual_maximum_in_blocks_of_days() -> None:
    limits = hourly_limits(usual_maxima(highest(*[week(8_000, 100_000)] * 4), WEEKS))
    # 16 s is rounded up to 20 s, 200 s to 5 min.
    assert (limits.limit_ms, limits.blocks) == (300_000, (HourBlock((0, 1, 2, 3, 4), 8, 18, 20_000),))
    assert [limits.by_hour[hour] for hour in (7, 8, 17, 18, 128)] == [300_000, 20_000, 20_000, 300_000, 300_000]


def test_hours_without_a_usual_maximum_have_the_highest_limit() -> None:
    limits = hourly_limits({0: 40.0, 1: 700.0})
    assert (limits.limit_ms, limits.blocks) == (2_000, (HourBlock((0,), 0, 1, 100),))


def test_many_small_blocks_become_few_by_coarser_limits() -> None:
    # Hours alternate between limits of 10 s and 15 s, or of 30 s: these differ also in coarser steps.
    usual = {hour: 4_000.0 + 3_000 * (hour % 2) for hour in range(HOURS)} | {12: 14_000.0}
    limits = hourly_limits(usual)
    assert len(limits.blocks) <= 8
    assert all(limit_ms >= 2 * usual[hour] for hour, limit_ms in enumerate(limits.by_hour))


def test_equal_hours_have_one_limit_and_no_blocks() -> None:
    limits = hourly_limits(dict.fromkeys(range(HOURS), 4_000.0))
    assert (limits.limit_ms, limits.blocks) == (10_000, ())
