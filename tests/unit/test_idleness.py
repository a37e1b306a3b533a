import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.idleness import IdlenessTimer, check_idle, with_record

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity, activity


def decided(*, silent_since_ms=0, now_ms=100, idle_after_ms=30, caught_up=True):
    return activity(silent_since_ms=silent_since_ms, now_ms=now_ms, idle_after_ms=idle_after_ms, caught_up=caught_up)


def test_a_partition_that_was_read_from_is_active():
    assert decided(silent_since_ms=None) is Activity.ACTIVE
    assert decided(silent_since_ms=None, caught_up=False) is Activity.ACTIVE


def test_silence_of_more_than_the_timeout_is_idleness():
    assert decided(silent_since_ms=70) is Activity.ACTIVE
    assert decided(silent_since_ms=69) is Activity.IDLE


def test_silence_with_unread_records_is_never_idleness():
    assert decided(caught_up=False) is Activity.BACKLOGGED
    assert decided(caught_up=False, silent_since_ms=99) is Activity.BACKLOGGED
    assert decided(caught_up=False, idle_after_ms=None) is Activity.BACKLOGGED


def test_without_a_timeout_nothing_becomes_idle():
    assert decided(idle_after_ms=None, now_ms=10**15) is Activity.ACTIVE


def test_a_clock_that_went_back_makes_nothing_idle():
    assert decided(silent_since_ms=200) is Activity.ACTIVE


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_timeout_is_above_zero(timeout_ms):
    with pytest.raises(InvalidArgument, match=f"got {timeout_ms}"):
        decided(idle_after_ms=timeout_ms)
    with pytest.raises(InvalidArgument, match=f"got {timeout_ms}"):
        IdlenessTimer(timeout_ms=timeout_ms)


def test_the_first_silent_check_only_starts_the_timer():
    timer, idle = check_idle(IdlenessTimer(timeout_ms=10), now_ms=0)
    assert (timer.silent_since_ms, idle) == (0, False)
    assert check_idle(timer, now_ms=10)[1] is False
    assert check_idle(timer, now_ms=11)[1] is True


def test_a_record_resets_the_timer():
    timer, _ = check_idle(IdlenessTimer(timeout_ms=10), now_ms=0)
    timer, idle = check_idle(with_record(timer), now_ms=50)
    assert (timer, idle) == (IdlenessTimer(timeout_ms=10), False)


@given(st.integers(1, 2000), st.integers(1, 400), st.integers(0, 399))
def test_the_timer_sees_idleness_one_to_three_intervals_late(timeout_ms, interval_ms, phase_ms):
    last_record_ms = phase_ms % interval_ms
    timer, now_ms, idle = with_record(IdlenessTimer(timeout_ms=timeout_ms)), 0, False
    while not idle:
        now_ms += interval_ms
        timer, idle = check_idle(timer, now_ms=now_ms)
    assert timeout_ms + interval_ms <= now_ms - last_record_ms <= timeout_ms + 3 * interval_ms


def test_the_timer_is_json():
    timer, _ = check_idle(IdlenessTimer(timeout_ms=10), now_ms=7)
    assert IdlenessTimer(**json.loads(json.dumps(asdict(timer)))) == timer
