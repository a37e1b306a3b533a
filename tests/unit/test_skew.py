from hypothesis import given
from hypothesis import strategies as st

from tidemark.semantics.skew import Heartbeat, Skew, mean_skew, minimum_skew, moving_average

DELAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8)


def beat(difference_ms, round_trip_ms=None):
    return Heartbeat(sent_ms=1000, received_ms=1000 + difference_ms, round_trip_ms=round_trip_ms)


def test_a_moving_average_is_truncated_toward_zero():
    assert moving_average([], samples=10) == 0
    assert moving_average([1, 2], samples=10) == 1
    assert moving_average([-1, -2], samples=10) == -1
    assert moving_average([10, 20, 30, 40], samples=3) == 30
    assert moving_average([5], samples=0) == 0


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1), st.integers(1, 5))
def test_a_moving_average_is_never_further_from_zero_than_the_mean(values, samples):
    last = values[-samples:]
    average = moving_average(values, samples=samples)
    assert abs(average) == abs(sum(last)) // len(last)
    assert average * sum(last) >= 0


def test_apex_takes_the_mean_of_the_last_hundred_differences():
    beats = [beat(1_000_000), *[beat(-195), beat(-194)] * 50]
    assert mean_skew(beats) == Skew(offset_ms=-194, error_ms=None)
    assert mean_skew(beats, samples=0) == Skew(offset_ms=0, error_ms=None)


def test_the_shortest_round_trip_says_most():
    beats = [beat(90, 120), beat(33, 7), beat(50, 60), beat(10)]
    assert minimum_skew(beats) == Skew(offset_ms=30, error_ms=4)


def test_without_round_trips_the_lowest_difference_has_no_bound():
    assert minimum_skew([beat(40), beat(30), beat(70)]) == Skew(offset_ms=30, error_ms=None)
    assert minimum_skew([]) is None
    assert minimum_skew([beat(1)], samples=0) is None


def test_only_the_last_heartbeats_count():
    assert minimum_skew([beat(1), beat(40), beat(30)], samples=2) == Skew(offset_ms=30, error_ms=None)


@given(st.integers(-1000, 1000), DELAYS)
def test_the_true_offset_is_within_the_bound(offset_ms, delays):
    beats = [beat(offset_ms + there_ms, there_ms + back_ms) for there_ms, back_ms in delays]
    skew = minimum_skew(beats)
    assert abs(skew.offset_ms - offset_ms) <= skew.error_ms
    assert skew.error_ms == (min(there_ms + back_ms for there_ms, back_ms in delays) + 1) // 2
