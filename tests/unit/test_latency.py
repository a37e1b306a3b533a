import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.latency import OnInvalid, e2e_latency_ms, mean_ms, merged, times_of, usable_timestamp_ms

from tidemark.errors import InvalidTimestamp
from tidemark.semantics.latency import Latency, Times, latency_at

instants = st.integers(-100, 100)
batches = st.lists(instants, max_size=8)


def test_latency_is_signed():
    assert e2e_latency_ms(100, finished_at_ms=140) == 40
    assert e2e_latency_ms(100, finished_at_ms=40) == -60


def test_a_batch_is_measured_with_one_clock_read_at_its_end():
    assert latency_at(times_of([0, 10, 20]), finished_at_ms=3025) == Latency(n=3, min_ms=3005, max_ms=3025, sum_ms=9045)
    assert mean_ms(latency_at(times_of([0, 10, 20]), finished_at_ms=3025)) == 3015.0


@given(batches, instants)
def test_the_batch_end_identities_equal_measuring_every_record(timestamps, finished_at_ms):
    each = [e2e_latency_ms(timestamp_ms, finished_at_ms=finished_at_ms) for timestamp_ms in timestamps]
    latency = latency_at(times_of(timestamps), finished_at_ms=finished_at_ms)
    assert (latency.n, latency.sum_ms) == (len(each), sum(each))
    assert (latency.min_ms, latency.max_ms) == (min(each, default=None), max(each, default=None))


def test_without_records_there_is_no_latency():
    assert latency_at(Times(), finished_at_ms=5) == Latency()
    assert mean_ms(Latency()) is None


@given(instants, st.lists(instants, min_size=3, max_size=3))
def test_a_later_operator_never_has_a_lower_latency(timestamp_ms, clocks):
    """KIP-613: source <= stateful <= terminal for one record.

    This holds within and across sub-topologies.
    """
    source, stateful, terminal = (e2e_latency_ms(timestamp_ms, finished_at_ms=clock) for clock in sorted(clocks))
    assert source <= stateful <= terminal


@given(st.lists(batches, max_size=4))
def test_merging_batches_equals_measuring_their_union(batches):
    parts = [latency_at(times_of(batch), finished_at_ms=7) for batch in batches]
    union = latency_at(times_of([timestamp_ms for batch in batches for timestamp_ms in batch]), finished_at_ms=7)
    assert merged(parts) == union
    assert merged(reversed(parts)) == union
    assert merged([merged(parts[:1]), merged(parts[1:])]) == union


@pytest.mark.parametrize("policy", OnInvalid)
def test_a_usable_timestamp_is_used_whatever_the_policy(policy):
    assert usable_timestamp_ms(0, policy, partition_time_ms=7) == 0


@pytest.mark.parametrize("timestamp_ms", [None, -1])
def test_each_policy_for_a_timestamp_that_is_not_usable(timestamp_ms):
    assert usable_timestamp_ms(timestamp_ms, OnInvalid.DROP, partition_time_ms=7) is None
    assert usable_timestamp_ms(timestamp_ms, OnInvalid.USE_PARTITION_TIME, partition_time_ms=7) == 7
    with pytest.raises(InvalidTimestamp, match=f"got {timestamp_ms} with partition time 7"):
        usable_timestamp_ms(timestamp_ms, OnInvalid.FAIL, partition_time_ms=7)
    with pytest.raises(InvalidTimestamp, match="partition time None"):
        usable_timestamp_ms(timestamp_ms, OnInvalid.USE_PARTITION_TIME, partition_time_ms=None)
