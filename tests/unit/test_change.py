import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.change import Versioned, decide, is_unchanged

from tidemark.semantics.change import Rule

versions = st.builds(Versioned, st.sampled_from([None, b"a", b"b"]), st.integers(0, 4))
histories = st.lists(versions, max_size=10)
stored = st.none() | versions


@pytest.mark.parametrize(
    ("rule", "earlier", "same", "later"),
    [
        (Rule.STRICTLY_NEWER, False, False, True),
        (Rule.SAME_INSTANT, False, True, False),
        (Rule.VALUE_ONLY, True, True, True),
    ],
)
def test_the_rules_differ_in_the_timestamp_of_an_equal_value(rule, earlier, same, later):
    old = Versioned(b"a", 10)
    assert is_unchanged(old, Versioned(b"a", 9), rule) is earlier
    assert is_unchanged(old, Versioned(b"a", 10), rule) is same
    assert is_unchanged(old, Versioned(b"a", 11), rule) is later


@pytest.mark.parametrize("rule", Rule)
def test_another_value_is_a_change_by_every_rule(rule):
    for timestamp_ms in (9, 10, 11):
        assert not is_unchanged(Versioned(b"a", 10), Versioned(b"b", timestamp_ms), rule)


@pytest.mark.parametrize("rule", Rule)
def test_an_absent_key_is_a_tombstone(rule):
    for absent in (None, Versioned(None, 5)):
        for timestamp_ms in (4, 5, 6):
            assert is_unchanged(absent, Versioned(None, timestamp_ms), rule)
            assert not is_unchanged(absent, Versioned(b"a", timestamp_ms), rule)
    assert not is_unchanged(Versioned(b"a", 5), Versioned(None, 6), rule)


@pytest.mark.parametrize("rule", Rule)
def test_an_empty_value_is_not_a_tombstone(rule):
    assert not is_unchanged(None, Versioned(b"", 1), rule)


def test_a_skipped_update_leaves_the_older_timestamp():
    decided = decide(Versioned(b"a", 1), [Versioned(b"a", 5), Versioned(b"a", 3)], Rule.STRICTLY_NEWER)
    assert decided.emits == (False, False)
    assert decided.stored == Versioned(b"a", 1)


def test_a_value_that_goes_away_and_comes_back_is_sent_on_twice():
    there_and_back = [Versioned(b"a", 1), Versioned(b"b", 2), Versioned(b"a", 3)]
    assert decide(None, there_and_back, Rule.STRICTLY_NEWER).emits == (True, True, True)


@given(stored, histories, st.sampled_from(Rule))
def test_what_is_stored_is_what_was_sent_on_last(stored, updates, rule):
    decided = decide(stored, updates, rule)
    sent_on = [update for update, emit in zip(updates, decided.emits, strict=True) if emit]
    assert decided.stored == (sent_on[-1] if sent_on else stored)


@given(stored, histories, st.integers(0, 10), st.sampled_from(Rule))
def test_a_history_may_be_split_anywhere(stored, updates, at, rule):
    first = decide(stored, updates[:at], rule)
    second = decide(first.stored, updates[at:], rule)
    assert decide(stored, updates, rule) == type(second)(first.emits + second.emits, second.stored)


@given(stored, histories, st.sampled_from([Rule.SAME_INSTANT, Rule.VALUE_ONLY]))
def test_deciding_on_ones_own_output_skips(stored, updates, rule):
    once = decide(stored, updates, rule)
    if once.stored is not None:
        assert decide(once.stored, [once.stored], rule).emits == (False,)


@given(stored, histories)
def test_deciding_ones_own_output_skips_when_strictly_newer(stored, updates):
    """The same timestamp is sent again on purpose (KAFKA-12508).

    The first update may never have arrived.
    """
    once = decide(stored, updates, Rule.STRICTLY_NEWER).stored
    if once is not None and once.value is not None:
        assert decide(once, [once], Rule.STRICTLY_NEWER).emits == (True,)
        assert decide(once, [Versioned(once.value, once.timestamp_ms + 1)], Rule.STRICTLY_NEWER).emits == (False,)


@given(stored, histories)
def test_each_rule_sends_on_at_least_what_value_only_does(stored, updates):
    least = decide(stored, updates, Rule.VALUE_ONLY).emits
    for rule in Rule:
        assert all(emit or not always for emit, always in zip(decide(stored, updates, rule).emits, least, strict=True))
