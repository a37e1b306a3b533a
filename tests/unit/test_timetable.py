"""Timetables of shortened batches, with a trigger every second.

Instants are ms of a day that begins at 0.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.semantics.timetable import Timetable, TimetableBatch

EACH_SECOND = 1_000


def busy(saved_ms):
    """Returns four batches of 1.5 s, 100 ms apart."""
    return Timetable([TimetableBatch(at, at + 1_500, saved_ms) for at in (0, 1_600, 3_200, 4_800)], EACH_SECOND)


@pytest.mark.parametrize(
    ("saved_ms", "upstream_ms", "sooner_ms"),
    [
        # With 0.3 s less they begin at 0, 1300, 2600, 3900 and 4800, where the last one began.
        (300, 3_000, 4_800 - 3_900),
        (300, 1_900, 4_800 - 2_600),
        (300, 4_000, 0),
        # With 0.9 s less they would be done after 0.6 s and wait for the trigger: 0, 1100, 2100, 3100, 4100, 4800.
        (900, 3_000, 4_800 - 3_100),
        (900, 4_000, 4_800 - 4_100),
        # With 1 s more: 0, 2600, 4800.
        (-1_000, 3_300, 0),
        (-1_000, 2_500, 4_800 - 2_600),
        (0, 4_000, 0),
    ],
)
def test_a_busy_driver_takes_a_window_in_its_next_batch(saved_ms, upstream_ms, sooner_ms):
    # Only what came after 3200 missed the batch that began then; the others were seen after it.
    visible_ms = max(upstream_ms, 3_201)
    shift_ms = visible_ms - upstream_ms
    assert busy(saved_ms).sooner_ms(4_800, visible_ms, shift_ms) == sooner_ms


def test_a_waiting_driver_begins_no_sooner_with_less_work():
    waits = Timetable([TimetableBatch(at, at + 700, saved_ms=400) for at in (50, 1_050, 2_050)], EACH_SECOND)
    assert waits.sooner_ms(2_050, 1_100, 0) == 0


def test_what_comes_sooner_may_make_an_earlier_trigger():
    waits = Timetable([TimetableBatch(at, at + 700) for at in (50, 1_050, 2_050)], EACH_SECOND)
    assert waits.sooner_ms(2_050, 1_100, 49) == 0
    assert waits.sooner_ms(2_050, 1_100, 50) == 1_000


def test_a_driver_without_records_looks_at_every_trigger():
    idle = Timetable([TimetableBatch(50, 750), TimetableBatch(5_050, 5_750)], EACH_SECOND)
    assert idle.sooner_ms(5_050, 4_500, 400) == 0
    assert idle.sooner_ms(5_050, 4_500, 500) == 1_000
    assert idle.sooner_ms(5_050, 4_500, 2_000) == 2_000


def test_a_pause_of_a_month_costs_no_more_than_one_of_a_second():
    paused = Timetable([TimetableBatch(50, 750), TimetableBatch(2_592_000_050, 2_592_000_750)], 1)
    assert sum(map(len, (paused._then._starts, paused._was._starts))) < 10
    assert paused.sooner_ms(2_592_000_050, 2_592_000_050, 700) == 700


def test_what_was_seen_late_stays_as_late_after_its_upstream():
    waits = Timetable([TimetableBatch(at, at + 700) for at in (50, 1_050, 2_050)], EACH_SECOND)
    # It came at 900 and was not in the batch of 1050: it was visible from 1051 on.
    assert waits.sooner_ms(2_050, 900, 0) == 0
    assert waits.sooner_ms(2_050, 900, 1) == 1_000


def test_without_batches_a_window_begins_as_long_after_upstream():
    assert Timetable([], EACH_SECOND).sooner_ms(2_050, 900, 30) == 30


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 5_000)), min_size=1, max_size=9), st.data())
def test_where_nothing_is_saved_nothing_begins_sooner(lengths_and_pauses, data):
    batches, at_ms = [], 10_000
    for length_ms, pause_ms in lengths_and_pauses:
        batches.append(TimetableBatch(at_ms, at_ms + length_ms))
        at_ms = max(at_ms + length_ms, (at_ms // 1_000 + 1) * 1_000) + pause_ms
    began_ms = data.draw(st.sampled_from(batches)).started_ms
    upstream_ms = data.draw(st.integers(0, began_ms + 500))
    assert Timetable(batches, EACH_SECOND).sooner_ms(began_ms, upstream_ms, 0) == 0
