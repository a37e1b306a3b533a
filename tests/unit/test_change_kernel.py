"""The set-based form equals the sequential rule for all batches."""

import random
import time

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.change import Versioned, decide

from tidemark.kernels.updates.change import judge
from tidemark.semantics.change import Rule

SCHEMA = {"key": pl.Int64(), "value": pl.Binary(), "timestamp_ms": pl.Int64()}
UPDATE = st.tuples(st.integers(0, 3), st.sampled_from([None, b"a", b"b"]), st.integers(0, 4))
STORED = st.lists(UPDATE, max_size=4, unique_by=lambda row: row[0])


def frame(rows):
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def sequentially(updates, stored, rule):
    """Computes the rows and stored versions of `judge`, update by update."""
    versions = {key: Versioned(value, timestamp_ms) for key, value, timestamp_ms in stored}
    verdicts = []
    for key, value, timestamp_ms in updates:
        old = versions.get(key)
        decided = decide(old, [Versioned(value, timestamp_ms)], rule)
        verdicts.append((*decided.emits, old and old.value, old and old.timestamp_ms))
        if decided.emits[0]:
            versions[key] = decided.stored
    return verdicts, {key: (version.value, version.timestamp_ms) for key, version in versions.items()}


def in_batches(updates, stored, rule, size):
    """The same, a batch of *size* updates at a time."""
    state, verdicts = stored, []
    for start in range(0, updates.height, size):
        batch = updates[start : start + size]
        judged = judge(batch, state, rule=rule)
        state = pl.concat([state, batch.filter(judged["emit"])]).unique("key", keep="last")
        verdicts += judged.drop("run", "old_run").rows()
    return verdicts, {key: (value, timestamp_ms) for key, value, timestamp_ms in state.rows()}


@given(st.lists(UPDATE, max_size=20), STORED, st.sampled_from(Rule), st.integers(1, 20))
def test_a_batch_is_decided_as_one_update_after_the_other(updates, stored, rule, size):
    assert in_batches(frame(updates), frame(stored), rule, size) == sequentially(updates, stored, rule)


@pytest.mark.parametrize("rule", Rule)
def test_four_thousand_keys_at_once_equal_one_after_the_other(rule):
    """Each key is a random case, as 2,000 examples cost many batches."""
    rng = random.Random(20261121)

    def versions(key, n):
        return [(key, rng.choice([None, b"a", b"b", b"b"]), rng.randrange(5)) for _ in range(n)]

    updates = [row for key in range(4_000) for row in versions(key, rng.randrange(9))]
    stored = [row for key in range(4_000) for row in versions(key, rng.randrange(2))]
    rng.shuffle(updates)
    expected = sequentially(updates, stored, rule)
    assert in_batches(frame(updates), frame(stored), rule, len(updates)) == expected
    assert in_batches(frame(updates), frame(stored), rule, 3001) == expected


def test_comparing_with_the_row_before_is_not_enough():
    """The stored timestamp is 2 by the third row.

    It is not the 5 of the row before it.
    """
    updates = frame([(1, b"a", 2), (1, b"a", 5), (1, b"a", 3)])
    assert judge(updates, frame([]), rule=Rule.STRICTLY_NEWER)["emit"].to_list() == [True, False, False]


def test_each_row_says_which_version_it_was_compared_with():
    updates = frame([(1, b"a", 5), (2, b"x", 6), (1, b"b", 7), (1, b"b", 8), (1, None, 9)])
    verdicts = judge(updates, frame([(1, b"a", 4)]), rule=Rule.STRICTLY_NEWER)
    assert verdicts.drop("run", "old_run").rows() == [
        (False, b"a", 4),
        (True, None, None),
        (True, b"a", 4),
        (False, b"b", 7),
        (True, b"b", 7),
    ]


def test_what_follows_an_update_that_is_sent_on_is_of_its_run():
    updates = frame([(1, b"a", 5), (2, None, 6), (1, b"a", 7), (1, b"b", 8), (1, b"b", 9), (2, None, 9), (1, b"b", 10)])
    verdicts = judge(updates, frame([(1, b"a", 4)]), rule=Rule.STRICTLY_NEWER)
    assert verdicts["emit"].to_list() == [False, False, False, True, False, False, False]
    runs = verdicts["run"].to_list()
    before, deleted, _, changed, *_ = runs
    assert runs == [before, deleted, before, changed, changed, deleted, changed]
    assert len({before, deleted, changed}) == 3
    assert verdicts["old_run"].to_list() == [None, None, None, None, changed, None, changed]


@pytest.mark.parametrize("rule", Rule)
def test_an_empty_batch_decides_nothing(rule):
    assert judge(frame([]), frame([(1, b"a", 1)]), rule=rule).schema == {
        "emit": pl.Boolean(),
        "old_value": pl.Binary(),
        "old_timestamp_ms": pl.Int64(),
        "run": pl.Int64(),
        "old_run": pl.Int64(),
    }


@pytest.mark.parametrize("timestamp_ms", [-(2**63), 2**63 - 1])
def test_the_first_and_last_instant_are_ordinary_timestamps(timestamp_ms):
    updates = [(1, b"a", timestamp_ms), (1, b"a", 0), (1, b"a", timestamp_ms)]
    for rule in Rule:
        assert in_batches(frame(updates), frame([]), rule, 3) == sequentially(updates, [], rule)


def test_one_key_with_all_the_updates_is_no_trap():
    updates = pl.select(key=pl.lit(1, pl.Int64), value=pl.lit(b"a"), timestamp_ms=pl.int_range(200_000, 0, -1))
    assert judge(updates, frame([]), rule=Rule.STRICTLY_NEWER)["emit"].all()
    check_costs_a_third(updates, frame([]))


def test_a_hundred_thousand_keys_cost_a_third_at_once():
    key = (pl.int_range(200_000) * 7919) % 100_000
    value = (key % 3).cast(pl.String).cast(pl.Binary)
    updates = pl.select(key=key, value=value, timestamp_ms=pl.int_range(200_000))
    check_costs_a_third(updates, updates.head(100_000).with_columns(value=pl.lit(b"1")))


def check_costs_a_third(updates, stored):
    few = updates.head(2_000)
    known = stored.filter(pl.col("key").is_in(few["key"].implode())).rows()
    one_by_one_s = seconds(lambda: sequentially(few.rows(), known, Rule.STRICTLY_NEWER)) / few.height
    assert seconds(lambda: judge(updates, stored, rule=Rule.STRICTLY_NEWER)) / updates.height < one_by_one_s / 3


def seconds(call):
    """Returns the least CPU time of three runs."""

    def once():
        started = time.process_time()
        call()
        return time.process_time() - started

    return min(once() for _ in range(3))
