import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.change import Versioned
from reference.strategy import EmissionDecision, on_change, on_update, on_window_close, periodic

from tidemark.errors import InvalidArgument
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy

OLD = Versioned(b"a", 5)


def test_the_four_strategies_have_the_names_of_the_kip():
    assert [*Strategy] == ["on_change", "on_update", "on_window_close", "periodic"]


def test_on_change_suppresses_what_says_nothing_new():
    assert on_change(OLD, Versioned(b"a", 6), Rule.STRICTLY_NEWER) is EmissionDecision.SUPPRESS
    assert on_change(OLD, Versioned(b"a", 6), Rule.SAME_INSTANT) is EmissionDecision.EMIT
    assert on_change(None, OLD, Rule.VALUE_ONLY) is EmissionDecision.EMIT


def test_on_update_sends_everything_on():
    assert on_update() is EmissionDecision.EMIT


def test_on_window_close_holds_until_the_window_takes_no_more():
    assert on_window_close(2000, None) is EmissionDecision.HOLD
    assert on_window_close(2000, 1998) is EmissionDecision.HOLD
    assert on_window_close(2000, 1999) is EmissionDecision.EMIT
    assert on_window_close(2000, 1999, allowed_lateness_ms=1) is EmissionDecision.HOLD


def test_periodic_sends_on_at_multiples_of_the_interval():
    assert periodic(10, held_since_ms=12, now_ms=19) is EmissionDecision.HOLD
    assert periodic(10, held_since_ms=12, now_ms=20) is EmissionDecision.EMIT
    assert periodic(10, held_since_ms=20, now_ms=20) is EmissionDecision.HOLD


def test_periodic_sends_nothing_on_when_the_clock_goes_back():
    assert periodic(10, held_since_ms=25, now_ms=5) is EmissionDecision.HOLD


@given(st.integers(1, 50), st.integers(0, 200), st.integers(0, 200))
def test_periodic_holds_nothing_for_longer_than_the_interval(interval_ms, held_since_ms, waited_ms):
    decision = periodic(interval_ms, held_since_ms=held_since_ms, now_ms=held_since_ms + waited_ms)
    if waited_ms >= interval_ms:
        assert decision is EmissionDecision.EMIT
    if waited_ms == 0:
        assert decision is EmissionDecision.HOLD


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_interval_is_above_zero(interval_ms):
    with pytest.raises(InvalidArgument, match=f"got {interval_ms}"):
        periodic(interval_ms, held_since_ms=0, now_ms=0)
