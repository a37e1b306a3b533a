import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.sampled import Sampled, measured, recorded

from tidemark.errors import InvalidArgument


def after(*values, state=None):
    state = state or Sampled(window_ms=10, samples=2)
    for now_ms, value_ms in values:
        state = recorded(state, value_ms, now_ms=now_ms)
    return state


def reading(state, now_ms):
    return measured(state, now_ms=now_ms)[1]


def test_a_reading_covers_samples_with_a_value_in_two_windows():
    state = after((0, 1), (9, 3), (10, 100))
    assert len(state.slots) == 2
    assert reading(state, 28).min_ms == 1
    assert reading(state, 29).min_ms == 100
    assert math.isnan(reading(state, 30).max_ms)


def test_an_empty_window_is_not_a_number():
    for state, now_ms in ((Sampled(), 0), (after((0, 50)), 20)):
        empty = reading(state, now_ms)
        assert (empty.n, empty.live_samples) == (0, 0)
        assert all(map(math.isnan, (empty.avg_ms, empty.min_ms, empty.max_ms)))


def test_the_ring_has_one_sample_more_than_it_covers():
    state = after((0, 1), (10, 2), (20, 3))
    assert [sample.started_at_ms for sample in state.slots] == [0, 10, 20]
    state = after((30, 4), state=state)
    assert [sample.started_at_ms for sample in state.slots] == [30, 10, 20]
    assert state.current == 0


def test_a_reading_empties_what_is_obsolete_and_starts_it_anew():
    state, _ = measured(after((0, 1)), now_ms=25)
    assert recorded(state, 2, now_ms=34).slots[0].started_at_ms == 25
    assert len(recorded(state, 2, now_ms=34).slots) == 1


def test_a_clock_that_goes_back_stays_in_the_sample():
    state = after((9, 1), (5, 2))
    assert (len(state.slots), reading(state, 9).n) == (1, 2)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 5)), min_size=1, max_size=12))
def test_a_reading_has_two_windows_and_none_older_than_three(values):
    values = sorted(values)
    now_ms = values[-1][0]
    shown = reading(after(*values), now_ms)
    recent = [value for at, value in values if at > now_ms - 20]
    recent_or_before = [value for at, value in values if at > now_ms - 30]
    assert len(recent) <= shown.n <= len(recent_or_before)
    assert shown.min_ms <= min(recent)
    assert shown.max_ms >= max(recent)


@pytest.mark.parametrize("bad", [{"window_ms": 0}, {"samples": 0}])
def test_samples_have_a_length_and_there_are_some(bad):
    with pytest.raises(InvalidArgument, match="got"):
        Sampled(**bad)


def test_the_state_is_json():
    assert json.loads(json.dumps(asdict(after((0, 1)))))["slots"][0]["values"]["n"] == 1
