"""What a page says in words and numbers; tests/browser shows that a browser sees it."""

import pytest

from tidemark.inert import inert
from tidemark.report.page import length, name_of
from tidemark.spec.intervals import Interval

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("interval", "name"),
    [
        (Interval(0, HOUR_MS), "1970-01-01T00"),
        (Interval(23 * HOUR_MS, DAY_MS), "1970-01-01T23"),
        (Interval(DAY_MS, 2 * DAY_MS), "1970-01-02"),
        (Interval(1_000, HOUR_MS + 1_000), "1970-01-01T000001Z--1970-01-01T010001Z"),
        (Interval(0, 1_500), "1970-01-01T000000Z--1970-01-01T000001Z"),
    ],
)
def test_a_page_is_named_after_its_day_its_hour_or_its_instants(interval, name):
    assert name_of(interval) == name


@pytest.mark.parametrize(
    ("ms", "told"),
    [(0, "0 ms"), (431, "431 ms"), (-1_500, "-1.50 s"), (6_237.5, "6.24 s"), (200_000, "3.33 min"), (None, "–")],
)
def test_a_length_has_the_unit_in_which_it_reads_best(ms, told):
    assert length(ms) == told


def test_text_that_a_terminal_would_obey_is_written_out_and_all_else_stays():
    assert inert("by_carrier → Zürich\n") == "by_carrier → Zürich\n"
    assert inert("\x1b[2J\x07\x7f\x9b\u202e\U000e0001") == r"\u001b[2J\u0007\u007f\u009b\u202e\udb40\udc01"
