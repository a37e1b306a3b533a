import math

from hypothesis import given
from hypothesis import strategies as st
from reference.skew import mean_skew, moving_average

from tidemark.semantics.skew import Bounds, HostWork, Skew, TimedHeartbeat, bounds_of_work, minimum_skew

DELAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8)


def beat(difference_ms, round_trip_ms=None):
    return TimedHeartbeat(sent_ms=1000, received_ms=1000 + difference_ms, round_trip_ms=round_trip_ms)


def test_a_moving_average_is_truncated_toward_zero():
    assert moving_average([], samples=10) == 0
    assert moving_average([1, 2], samples=10) == 1
    assert moving_average([-1, -2], samples=10) == -1
    assert moving_average([10, 20, 30, 40], samples=3) == 30
    assert moving_average([5], samples=0) == 0


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1), st.integers(1, 5))
def test_a_moving_average_is_never_further_from_0_than_the_mean(values, samples):
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


def span(first_ms, last_ms):
    return HostWork(first_ms=first_ms, last_ms=last_ms)


def bounds(low_ms, high_ms):
    return Bounds(low_ms=low_ms, high_ms=high_ms)


def test_work_lies_between_two_instants_of_the_reference_clock():
    # 10 ms from the beginning to its start and 30 from its last end; its clock is 5 s ahead.
    found = bounds_of_work([{"a": span(6010, 6470)}], began_ms=1000, ended_ms=1500, skews={})
    assert found == {"a": bounds(1000 - 6010 - 1, 1500 - 6470 + 1)} == {"a": bounds(-5011, -4969)}
    assert found["a"].skew == Skew(offset_ms=-4990, error_ms=21)


def test_a_host_is_not_taken_to_be_behind_since_others_are_slow():
    partitions = {"fast": span(6010, 6100), "slow": span(1020, 1110)}
    shards = {"fast": span(6130, 6150), "slow": span(1140, 1980)}  # in shards "slow" works 820 ms longer
    one_by_one = [{host: span(partitions[host].first_ms, shards[host].last_ms)} for host in ("fast", "slow")]
    alone = bounds_of_work(one_by_one[:1], began_ms=1000, ended_ms=2000, skews={})["fast"].skew
    assert alone == Skew(offset_ms=-4580, error_ms=431)
    found = bounds_of_work([partitions, shards], began_ms=1000, ended_ms=2000, skews={})
    # By its last end "slow" is 21 ms behind at most, so that shards were begun by 1140 + 21 + 1.
    assert found["fast"] == bounds(-5011, 1162 - 6100)
    assert found["fast"].skew == Skew(offset_ms=-4975, error_ms=37)


def test_bounds_from_before_count_unless_work_contradicts_them():
    work = [{"a": span(1010, 1480)}]
    assert bounds_of_work(work, began_ms=1000, ended_ms=1500, skews={"a": bounds(-3, 4)}) == {"a": bounds(-3, 4)}
    fresh = {"a": bounds(-11, 21)}
    assert bounds_of_work(work, began_ms=1000, ended_ms=1500, skews={"a": bounds(50, 60)}) == fresh
    assert bounds(-3, 4).after(10_000) == bounds(-4, 5)  # two clocks drift by 0.1 ms a second


def test_work_that_was_done_again_bounds_no_other_by_its_order():
    """Shard "a" repeats a task after "b" has finished.

    The result of a partition was lost.
    """
    again = [{"a": span(5000, 5100)}, {"a": span(1050, 5900), "b": span(1050, 1100)}]
    found = bounds_of_work(again, began_ms=1000, ended_ms=6000, skews={})
    assert found == {"a": bounds(-51, 101), "b": bounds(-51, 4901)}


def test_a_host_whose_clock_was_set_meanwhile_has_no_bounds():
    assert bounds_of_work([{"a": span(1010, 9000)}], began_ms=1000, ended_ms=1500, skews={}) == {}


LENGTHS = st.integers(0, 1000)
HOST = st.tuples(st.floats(-9000, 9000), *[st.tuples(LENGTHS, LENGTHS)] * 2)


@given(st.dictionaries(st.sampled_from("abc"), HOST, min_size=1), LENGTHS)
def test_the_true_offset_is_within_the_bounds_of_work(hosts, gap_ms):
    """Tasks wait and work as drawn, by drawn clocks, in whole ms."""
    stages, now_ms = [], 0.5
    for stage in (1, 2):
        spans, ended = {}, []
        for host, drawn in hosts.items():
            waits_ms, works_ms = drawn[stage]
            first, last = now_ms + waits_ms, now_ms + waits_ms + works_ms
            spans[host] = span(math.floor(first - drawn[0]), math.floor(last - drawn[0]))
            ended.append(last)
        stages.append(spans)
        now_ms = max(ended) + gap_ms
    found = bounds_of_work(stages, began_ms=0, ended_ms=math.floor(now_ms), skews={})
    assert found.keys() == hosts.keys()
    for host, (offset_ms, *_) in hosts.items():
        assert abs(found[host].skew.offset_ms - offset_ms) <= found[host].skew.error_ms
