import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidArgument
from tidemark.semantics.change import Rule, Versioned
from tidemark.semantics.strategy import Decision, Strategy, on_change, on_update, on_window_close, periodic

OLD = Versioned(b"a", 5)


def test_the_four_strategies_have_the_names_of_the_kip():
    assert [*Strategy] == ["on_change", "on_update", "on_window_close", "periodic"]


def test_on_change_suppresses_what_says_nothing_new():
    assert on_change(OLD, Versioned(b"a", 6), Rule.STRICTLY_NEWER) is Decision.SUPPRESS
    assert on_change(OLD, Versioned(b"a", 6), Rule.SAME_INSTANT) is Decision.EMIT
    assert on_change(None, OLD, Rule.VALUE_ONLY) is Decision.EMIT


def test_on_update_sends_everything_on():
    assert on_update() is Decision.EMIT


def test_on_window_close_holds_until_the_window_takes_no_more():
    assert on_window_close(2000, None) is Decision.HOLD
    assert on_window_close(2000, 1998) is Decision.HOLD
    assert on_window_close(2000, 1999) is Decision.EMIT
    assert on_window_close(2000, 1999, allowed_lateness_ms=1) is Decision.HOLD


def test_periodic_sends_on_at_multiples_of_the_interval():
    assert periodic(10, held_since_ms=12, now_ms=19) is Decision.HOLD
    assert periodic(10, held_since_ms=12, now_ms=20) is Decision.EMIT
    assert periodic(10, held_since_ms=20, now_ms=20) is Decision.HOLD


def test_periodic_sends_nothing_on_when_the_clock_goes_back():
    assert periodic(10, held_since_ms=25, now_ms=5) is Decision.HOLD


@given(st.integers(1, 50), st.integers(0, 200), st.integers(0, 200))
def test_periodic_holds_nothing_for_longer_than_the_interval(interval_ms, held_since_ms, waited_ms):
    decision = periodic(interval_ms, held_since_ms=held_since_ms, now_ms=held_since_ms + waited_ms)
    if waited_ms >= interval_ms:
        assert decision is Decision.EMIT
    if waited_ms == 0:
        assert decision is Decision.HOLD


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_interval_is_above_zero(interval_ms):
    with pytest.raises(InvalidArgument, match=f"got {interval_ms}"):
        periodic(interval_ms, held_since_ms=0, now_ms=0)
