from hypothesis import given
from hypothesis import strategies as st
from reference.spark_watermark import Policy, SparkWatermark, after_batch, is_passed, restarted

batches = st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-5, 20)), max_size=6)


def run(state, *batches):
    for batch in batches:
        state = after_batch(state, batch)
    return state


def test_the_watermark_is_the_highest_event_time_less_the_delay():
    assert run(SparkWatermark(delays_ms={"a": 10}), {"a": 15}, {"a": 14}).watermark_ms == 5


def test_a_node_without_data_counts_as_zero():
    state = run(SparkWatermark(delays_ms={"a": 10, "b": 5}), {"a": 100})
    assert state.watermark_ms == 0
    assert run(state, {"b": 50}).watermark_ms == 45


def test_the_max_policy_follows_the_fastest_node():
    assert run(SparkWatermark(delays_ms={"a": 10, "b": 5}, policy=Policy.MAX), {"a": 100}).watermark_ms == 90


def test_a_restart_forgets_the_nodes_and_keeps_the_watermark():
    state = restarted(run(SparkWatermark(delays_ms={"a": 0, "b": 0}), {"a": 9, "b": 9}))
    assert (state.watermark_ms, dict(state.nodes_ms)) == (9, {})
    assert run(state, {"a": 20}).watermark_ms == 9


def test_a_row_at_the_watermark_is_passed():
    assert is_passed(15, 15)
    assert not is_passed(16, 15)


@given(batches, st.sampled_from(Policy))
def test_the_watermark_never_goes_back(batches, policy):
    state = SparkWatermark(delays_ms={"a": 3, "b": 1}, policy=policy)
    for batch in batches:
        before, state = state, after_batch(state, batch)
        assert state.watermark_ms >= before.watermark_ms
