import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import (
    CombinedWatermark,
    Progress,
    bounded_out_of_orderness,
    combine,
    combine_inputs,
    is_late,
    is_window_late,
)

MINUTE_MS = 60_000
ONE_O_CLOCK = 13 * 60 * MINUTE_MS

watermarks = st.none() | st.integers(-5, 5)
parts = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Progress, watermark_ms=watermarks, activity=st.sampled_from(Activity)),
    max_size=4,
)


def active(watermark_ms):
    return Progress(watermark_ms=watermark_ms)


def idle(watermark_ms):
    return Progress(watermark_ms=watermark_ms, activity=Activity.IDLE)


def backlogged(watermark_ms):
    return Progress(watermark_ms=watermark_ms, activity=Activity.BACKLOGGED)


def test_the_four_partitions_of_the_watermark_article():
    """Two sources of two partitions, with five minutes of disorder.

    Partition 1 is empty at first.
    """

    def after(minute):
        return active(bounded_out_of_orderness(ONE_O_CLOCK + minute * MINUTE_MS, bound_ms=5 * MINUTE_MS))

    upper = combine({"0": after(10), "2": after(35)}, previous_ms=None)
    assert upper == CombinedWatermark(watermark_ms=ONE_O_CLOCK + 5 * MINUTE_MS - 1, idle=False, held_by="0")

    lower = combine({"1": active(None), "3": after(18)}, previous_ms=None)
    assert lower == CombinedWatermark(watermark_ms=None, idle=False, held_by="1")
    both = {"upper": active(upper.watermark_ms), "lower": active(lower.watermark_ms)}
    assert combine_inputs(both, previous_ms=None) == CombinedWatermark(watermark_ms=None, idle=False, held_by="lower")

    lower = combine({"1": after(30), "3": after(18)}, previous_ms=None)
    assert lower == CombinedWatermark(watermark_ms=ONE_O_CLOCK + 13 * MINUTE_MS - 1, idle=False, held_by="3")
    both = {"upper": active(upper.watermark_ms), "lower": active(lower.watermark_ms)}
    assert combine_inputs(both, previous_ms=None).watermark_ms == ONE_O_CLOCK + 5 * MINUTE_MS - 1


def test_an_empty_partition_holds_back_until_it_is_idle():
    read = active(100)
    assert combine({"0": read, "1": active(None)}, previous_ms=None).watermark_ms is None
    assert combine({"0": read, "1": backlogged(None)}, previous_ms=None).watermark_ms is None
    assert combine({"0": read, "1": idle(None)}, previous_ms=None) == CombinedWatermark(
        watermark_ms=100, idle=False, held_by="0"
    )


def test_the_watermark_is_newest_less_bound_less_one():
    assert bounded_out_of_orderness(1000, bound_ms=0) == 999
    assert bounded_out_of_orderness(-5, bound_ms=10) == -16
    assert bounded_out_of_orderness(None, bound_ms=10) is None


def test_a_keep_alive_record_moves_the_watermark_like_any_other():
    silent = {"0": active(bounded_out_of_orderness(100, bound_ms=10)), "1": active(None)}
    assert combine(silent, previous_ms=None).watermark_ms is None
    kept_alive = {**silent, "1": active(bounded_out_of_orderness(60, bound_ms=10))}
    assert combine(kept_alive, previous_ms=None).watermark_ms == 49


def test_a_bound_is_not_negative():
    with pytest.raises(InvalidArgument, match="got -1"):
        bounded_out_of_orderness(5, bound_ms=-1)


def test_an_idle_partition_is_left_out_but_not_a_backlogged_one():
    others = {"a": active(7), "b": active(9)}
    assert combine({**others, "c": idle(3)}, previous_ms=3) == CombinedWatermark(
        watermark_ms=7, idle=False, held_by="a"
    )
    assert combine({**others, "c": backlogged(3)}, previous_ms=3) == CombinedWatermark(
        watermark_ms=3, idle=False, held_by="c"
    )


def test_when_all_are_idle_the_highest_is_sent_on():
    everyone = {"a": idle(7), "b": idle(9), "c": idle(None)}
    assert combine(everyone, previous_ms=7) == CombinedWatermark(watermark_ms=9, idle=True, held_by=None)


def test_without_partitions_the_watermark_stays():
    assert combine({}, previous_ms=None) == CombinedWatermark(watermark_ms=None, idle=False, held_by=None)
    assert combine({}, previous_ms=5) == CombinedWatermark(watermark_ms=5, idle=True, held_by=None)


def test_of_equally_low_partitions_the_first_by_name_is_named():
    assert combine({"b": active(1), "a": active(1), "c": active(2)}, previous_ms=None).held_by == "a"
    assert combine({"b": active(None), "c": active(None), "a": active(0)}, previous_ms=None).held_by == "b"


def test_an_input_resumed_behind_holds_back_after_catching_up():
    ahead = {"a": active(12), "b": active(10)}
    assert combine_inputs({**ahead, "c": active(5)}, previous_ms=7).watermark_ms == 10
    assert combine({**ahead, "c": active(5)}, previous_ms=7).watermark_ms == 7
    assert combine_inputs({**ahead, "c": active(9)}, previous_ms=7) == CombinedWatermark(
        watermark_ms=9, idle=False, held_by="c"
    )


def test_when_every_active_input_is_behind_the_lowest_is_named():
    assert combine_inputs({"a": active(3), "b": active(2), "c": idle(9)}, previous_ms=7) == CombinedWatermark(
        watermark_ms=7, idle=False, held_by="b"
    )


@given(st.lists(parts, max_size=6))
def test_a_watermark_never_goes_back(steps):
    for rule in (combine, combine_inputs):
        previous_ms = None
        for step in steps:
            watermark_ms = rule(step, previous_ms=previous_ms).watermark_ms
            assert previous_ms is None or watermark_ms >= previous_ms
            previous_ms = watermark_ms


@given(parts, watermarks)
def test_the_watermark_is_the_lowest_of_those_that_are_not_idle(parts, previous_ms):
    result = combine(parts, previous_ms=previous_ms)
    awake = [part.watermark_ms for part in parts.values() if part.activity is not Activity.IDLE]
    if awake:
        lowest = float("-inf") if None in awake else min(awake)
        assert parts[result.held_by].watermark_ms == (None if None in awake else lowest)
        assert result.watermark_ms == (
            previous_ms if previous_ms is not None and previous_ms > lowest else min_or(awake)
        )


def min_or(awake):
    return None if None in awake else min(awake)


@given(st.lists(st.integers(-20, 20), min_size=1), st.integers(0, 10))
def test_a_record_within_the_bound_of_the_newest_is_never_late(timestamps, bound_ms):
    newest = max(timestamps)
    watermark_ms = bounded_out_of_orderness(newest, bound_ms=bound_ms)
    for timestamp_ms in timestamps:
        assert is_late(timestamp_ms, watermark_ms) == (timestamp_ms < newest - bound_ms)


def test_a_record_is_late_at_the_watermark_and_not_one_after():
    assert is_late(1999, 1999)
    assert not is_late(2000, 1999)
    assert not is_late(1999, 1999, allowed_lateness_ms=1)
    assert not is_late(-(2**62), None)


def test_a_window_is_late_once_the_watermark_is_at_its_end():
    assert not is_window_late(2000, 1998)
    assert is_window_late(2000, 1999)
    assert not is_window_late(2000, 2498, allowed_lateness_ms=500)
    assert is_window_late(2000, 2499, allowed_lateness_ms=500)
    assert not is_window_late(2000, None)


def test_progress_and_result_are_json():
    assert json.loads(json.dumps(asdict(idle(3)))) == {"watermark_ms": 3, "activity": "idle"}
    assert json.loads(json.dumps(asdict(combine({"a": active(1)}, previous_ms=None)))) == {
        "watermark_ms": 1,
        "idle": False,
        "held_by": "a",
    }
