"""Timetables of shortened batches.

Instants are ms of a day that begins at 0.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.semantics.timetable import Timetable, TimetableBatch, next_batch_ms

EACH_SECOND = 1_000
AT_ONCE = 0


def batches(length_ms, *starts_ms, saved_ms=0):
    """Returns batches of one length."""
    return [TimetableBatch(at_ms, at_ms + length_ms, saved_ms) for at_ms in starts_ms]


@pytest.mark.parametrize(
    ("saved_ms", "upstream_ms", "sooner_ms"),
    [
        # With 0.3 s less the driver is free at 1200, 2500 and 3800, and begins 100 ms later.
        (300, 3_000, 4_800 - 3_900),
        (300, 1_900, 4_800 - 2_600),
        (300, 4_000, 4_800 - 4_100),
        # With 0.9 s less it is free at 600, 1300 and 2300.
        (900, 3_000, 4_800 - 3_100),
        (900, 4_000, 4_800 - 4_100),
        # With 1 s more it begins at 2600 and 5200.
        (-1_000, 3_300, 4_800 - 5_200),
        (-1_000, 2_500, 4_800 - 2_600),
        (0, 4_000, 0),
    ],
)
def test_a_busy_driver_takes_a_window_in_its_next_batch(saved_ms, upstream_ms, sooner_ms):
    # It has four batches of 1.5 s, 100 ms apart.
    busy = Timetable(batches(1_500, 0, 1_600, 3_200, 4_800, saved_ms=saved_ms), EACH_SECOND)
    # Only what came after 3200 missed the batch that began then; the others were seen after it.
    visible_ms = max(upstream_ms, 3_201)
    assert busy.sooner_ms(4_800, visible_ms, visible_ms - upstream_ms) == sooner_ms


def test_a_driver_that_keeps_its_distance_begins_no_sooner():
    # The first batches begin as soon as they can, until the third has begun a second early.
    keeps = Timetable(batches(700, 0, 700, 1_400, 2_100, 3_000, 4_000, saved_ms=400), EACH_SECOND)
    assert keeps.sooner_ms(4_000, 3_100, 0) == 0
    assert keeps.sooner_ms(4_000, 3_100, 99) == 0
    # It is in the batch before.
    assert keeps.sooner_ms(4_000, 3_100, 100) == 1_000


def test_a_driver_that_its_writer_wakes_begins_as_much_sooner():
    # Three batches of a writer end at 900, 1800 and 2700. Spark plans for 60 ms.
    woken = Timetable(batches(500, 960, 1_860, 2_760, saved_ms=100), AT_ONCE, [900, 1_800, 2_700])
    assert woken.sooner_ms(2_760, 2_700, 0) == 0
    assert woken.sooner_ms(2_760, 2_700, 250) == 250
    # It would have come at 2200, while the batch before ran until 2260.
    assert woken.sooner_ms(2_760, 2_700, 500) == 440


def test_a_woken_driver_that_is_busy_begins_when_it_is_free():
    woken = Timetable(batches(1_500, 960, 2_520, 4_080, saved_ms=400), AT_ONCE, [900, 1_800, 2_700, 3_600])
    # It would be free at 2060 and, after a second batch from 2120, at 3220, when the window is not there.
    assert woken.sooner_ms(4_080, 3_600, 0) == 4_080 - 3_660
    assert woken.sooner_ms(4_080, 2_700, 0) == 4_080 - 3_280


def test_a_driver_without_records_begins_as_long_after_them():
    idle = Timetable(batches(700, 50, 5_050), EACH_SECOND)
    assert idle.sooner_ms(5_050, 4_500, 0) == 0
    assert idle.sooner_ms(5_050, 4_500, 400) == 400
    assert idle.sooner_ms(5_050, 4_500, 2_000) == 2_000
    # No sooner than the batch before has ended.
    assert idle.sooner_ms(5_050, 4_500, 4_000) == 5_050 - (750 + 550)


def test_windows_seen_late_stay_as_late_after_their_upstream():
    # It came at 900 and was not in the batch of 1050: it was visible from 1051 on.
    waits = Timetable(batches(700, 50, 1_050, 2_050), EACH_SECOND)
    assert waits.sooner_ms(2_050, 900, 0) == 0
    assert waits.sooner_ms(2_050, 900, 1) == 1_000


def test_a_distance_counts_from_before_the_state_was_loaded():
    # The first batch began at -200, so the driver expects one at 1800 and may begin it at 800, then at 1800 and 2800.
    loaded = Timetable(batches(400, 0, 400, 800, 1_800, 2_800, saved_ms=300), EACH_SECOND)
    assert loaded.sooner_ms(1_800, 900, 0) == 0
    assert loaded.sooner_ms(2_800, 1_900, 0) == 0


def test_without_batches_a_window_begins_as_long_after_upstream():
    assert Timetable([], EACH_SECOND).sooner_ms(2_050, 900, 30) == 30


def test_batches_are_a_distance_apart_and_one_may_begin_early():
    starts_ms, expected_ms = [], 0
    for _ in range(5):
        starts_ms.append(expected_ms - EACH_SECOND if starts_ms else 0)
        expected_ms = next_batch_ms(starts_ms[-1], expected_ms, EACH_SECOND)
    assert starts_ms == [0, 0, 1_000, 2_000, 3_000]
    assert next_batch_ms(50_000, expected_ms, EACH_SECOND) == 51_000


@given(
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 5_000)), min_size=1, max_size=9),
    st.lists(st.integers(0, 60_000), max_size=9).map(sorted),
    st.sampled_from([AT_ONCE, EACH_SECOND]),
    st.data(),
)
def test_where_nothing_is_saved_nothing_begins_sooner(lengths_and_pauses, commits_ms, distance_ms, data):
    ran, at_ms = [], 10_000
    for length_ms, pause_ms in lengths_and_pauses:
        ran.append(TimetableBatch(at_ms, at_ms + length_ms))
        at_ms += length_ms + pause_ms
    began_ms = data.draw(st.sampled_from(ran)).started_ms
    upstream_ms = data.draw(st.integers(0, began_ms + 500))
    assert Timetable(ran, distance_ms, commits_ms).sooner_ms(began_ms, upstream_ms, 0) == 0


@st.composite
def processes_at_their_distance(draw):
    """Returns batches, and the starts of those that kept the distance.

    The driver counts a batch from its beginning. In the first batch of a process `started_ms` is later: state is loaded
    before.
    """
    ran, waited_ms, free_ms, saved_ms = [], [], 0, draw(st.integers(1, 300))
    for first_delay_ms in draw(st.lists(st.integers(0, 5_000), min_size=1, max_size=3)):
        # A process takes longer to start than a distance.
        free_ms, expected_ms = free_ms + draw(st.integers(2_000, 9_000)), 0
        for number, length_ms in enumerate(draw(st.lists(st.integers(300, 900), min_size=3, max_size=9))):
            begins_ms = max(free_ms, expected_ms - EACH_SECOND)
            expected_ms = next_batch_ms(begins_ms, expected_ms, EACH_SECOND)
            started_ms = begins_ms if number else begins_ms + first_delay_ms
            if number and begins_ms > free_ms:
                waited_ms.append(started_ms)
            free_ms = started_ms + length_ms
            ran.append(TimetableBatch(started_ms, free_ms, saved_ms))
    return ran, waited_ms


@given(processes_at_their_distance(), st.data())
def test_at_its_distance_a_driver_gains_nothing_after_any_delay(process, data):
    ran, waited_ms = process
    timetable = Timetable(ran, EACH_SECOND)
    for began_ms in waited_ms:
        before_ms = max(batch.started_ms for batch in ran if batch.started_ms < began_ms)
        upstream_ms = data.draw(st.integers(before_ms + 1, began_ms))
        assert timetable.sooner_ms(began_ms, upstream_ms, 0) == 0
