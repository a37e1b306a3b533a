import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import multiplexer as mux
from reference import valve
from reference.multiplexer import Delivery, Multiplexer

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import combine

NAMES = "abc"
news = st.integers(0, 6) | st.sampled_from([Activity.ACTIVE, Activity.IDLE])
steps = st.lists(st.tuples(st.sampled_from(NAMES), news), max_size=15)


def multiplexed(steps, delivery):
    state = Multiplexer()
    for name in NAMES:
        state = mux.registered(state, name)
    for name, what in steps:
        if isinstance(what, Activity):
            state = mux.marked(state, name, what, delivery)
        else:
            state = mux.advanced(state, name, what, delivery)
    return state


@given(steps)
def test_deferred_news_are_combined_all_at_once(steps):
    state = multiplexed(steps, Delivery.DEFERRED)
    assert (state.watermark_ms, state.idle) == (None, False)
    once = combine(state.outputs, previous_ms=None)
    state = mux.combined(state)
    assert (state.watermark_ms, state.idle) == (once.watermark_ms, once.idle)


@given(steps)
def test_immediate_news_need_no_periodic_emission(steps):
    state = multiplexed(steps, Delivery.IMMEDIATE)
    if steps:
        assert mux.combined(state) == state


def test_a_lower_immediate_watermark_releases_no_deferred_one():
    state = mux.registered(Multiplexer(), "a")
    state = mux.advanced(state, "a", 5, Delivery.DEFERRED)
    state = mux.advanced(state, "a", 2, Delivery.IMMEDIATE)
    assert state.watermark_ms is None
    assert mux.combined(state).watermark_ms == 5


def test_removing_what_held_back_shows_at_the_next_combination():
    state = mux.registered(mux.registered(Multiplexer(), "low"), "high")
    state = mux.advanced(mux.advanced(state, "low", 1, Delivery.IMMEDIATE), "high", 9, Delivery.IMMEDIATE)
    state = mux.unregistered(state, "low")
    assert state.watermark_ms == 1
    assert mux.combined(state).watermark_ms == 9


def test_a_source_that_has_lost_all_its_partitions_is_idle():
    state = mux.advanced(mux.registered(Multiplexer(), "a"), "a", 1, Delivery.IMMEDIATE)
    state = mux.combined(mux.unregistered(state, "a"))
    assert (state.watermark_ms, state.idle) == (1, True)


def test_an_output_is_registered_once_and_before_use():
    state = mux.registered(Multiplexer(), "a")
    with pytest.raises(InvalidArgument, match="'a' is registered already"):
        mux.registered(state, "a")
    with pytest.raises(InvalidArgument, match="registered: a"):
        mux.advanced(state, "b", 1, Delivery.IMMEDIATE)
    assert mux.unregistered(state, "b") == state


def fed(steps):
    state, emitted = valve.opened(NAMES), []
    for name, what in steps:
        feed = valve.marked if isinstance(what, Activity) else valve.advanced
        state, news = feed(state, name, what)
        emitted += news
    return state, emitted


@given(steps)
def test_a_valves_watermarks_rise_and_its_status_alternates(steps):
    state, emitted = fed(steps)
    sent = [each for each in emitted if not isinstance(each, Activity)]
    assert sent == sorted(set(sent))
    assert sent[-1:] == ([] if state.watermark_ms is None else [state.watermark_ms])
    statuses = [each for each in emitted if isinstance(each, Activity)]
    assert statuses == [Activity.IDLE, Activity.ACTIVE] * (len(statuses) // 2) + [Activity.IDLE] * (len(statuses) % 2)


@given(steps, st.permutations(NAMES))
def test_once_all_are_idle_their_order_does_not_matter(steps, order):
    state, _ = fed(steps)
    highest = max((part.watermark_ms for part in state.inputs.values() if part.watermark_ms is not None), default=None)
    for name in order:
        state, _ = valve.marked(state, name, Activity.IDLE)
    assert (state.watermark_ms, state.idle) == (highest, True)


def test_an_idle_input_is_not_listened_to():
    state, news = valve.marked(valve.opened(["a"]), "a", Activity.IDLE)
    assert news == (Activity.IDLE,)
    assert valve.advanced(state, "a", 50) == (state, ())


def test_a_valve_knows_its_inputs():
    with pytest.raises(InvalidArgument, match="a, b; got 'c'"):
        valve.marked(valve.opened(["b", "a"]), "c", Activity.IDLE)


def test_both_machines_are_json():
    state, _ = fed([("a", 3), ("b", Activity.IDLE)])
    assert json.loads(json.dumps(asdict(state)))["inputs"]["b"] == {"watermark_ms": None, "activity": "idle"}
    assert json.dumps(asdict(multiplexed([("a", 3)], Delivery.IMMEDIATE)))
