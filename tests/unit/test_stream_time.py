import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st
from reference.stream_time import StreamTime, next_partition, processed


def test_lateness_is_against_the_tasks_highest_timestamp():
    state, lateness_ms = processed(StreamTime(), "p1", 5)
    assert lateness_ms == 0
    state, lateness_ms = processed(state, "p2", 2)
    assert lateness_ms == 3
    assert state == StreamTime(stream_time_ms=5, partition_times_ms={"p1": 5, "p2": 2})


def test_an_equal_timestamp_is_not_late():
    state, _ = processed(StreamTime(), "p", -5)
    assert processed(state, "p", -5)[1] == 0


def test_the_lowest_head_comes_first_and_then_the_first_by_name():
    assert next_partition({"a": 3, "b": 2}) == "b"
    assert next_partition({"b": 2, "a": 2}) == "a"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-5, 5))))
def test_stream_time_is_the_highest_timestamp_so_far(records):
    state = StreamTime()
    for at, (partition, timestamp_ms) in enumerate(records):
        state, lateness_ms = processed(state, partition, timestamp_ms)
        seen = records[: at + 1]
        assert state.stream_time_ms == max(t for _, t in seen)
        assert state.partition_times_ms[partition] == max(t for p, t in seen if p == partition)
        assert lateness_ms == state.stream_time_ms - timestamp_ms


def test_the_state_is_json():
    state, _ = processed(StreamTime(), "p", 1)
    assert StreamTime(**json.loads(json.dumps(asdict(state)))) == state
